"""Prints docs/metrics.md, which is made from the table of metrics: `make metrics-doc`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from iokeel.report.metrics.prometheus import process_registry
from iokeel.report.metrics.table import DESCRIPTIONS, ERROR_KINDS
from iokeel.rules.known import INFO

_HEAD = """\
# Metrics

<!-- Made by `make metrics-doc` from agent/src/iokeel/report/metrics/table.py. Don't edit it. -->

`GET /metrics` answers in Prometheus' text format: on the agent's socket, and on a port if
`metrics_address` is set ([configuration](configuration.md)). Values are taken when they are asked
for, so a scrape may be as rare as you like. A metric that isn't known has no sample.

"Normalized I/O operations" are counted in 4 KiB reads: a larger request, or a write, counts as
several by the [cost curve](design/control-law.md). "Only if QEMU counts" marks what stock QEMU
doesn't tell: it takes the [patches](../qemu-patches/README.md).

[playbooks/monitoring](../playbooks/monitoring/README.md) has alerts and a dashboard for them.
"""
_ELSEWHERE = """\
## Prometheus on another host

Beyond loopback, the agent answers by TLS only, and only those who show a certificate or a password.
`web.yml` is the [web configuration file][web] of Prometheus' exporters.

1. Put a certificate and its key into `/etc/iokeel`, mode 0600, and write `/etc/iokeel/web.yml`:

   ```yaml
   tls_server_config:
     cert_file: metrics.crt
     key_file: metrics.key
     client_auth_type: RequireAndVerifyClientCert
     client_ca_file: prometheus-ca.crt
   ```

   For a password, write this in place of the last two lines. `htpasswd -nBC 10 prometheus` makes
   the hash:

   ```yaml
   basic_auth_users:
     prometheus: $2y$10$...
   ```

2. Write `metrics_address = "0.0.0.0:9632"` and `metrics_web_config = "/etc/iokeel/web.yml"` under
   `[agent]`.
3. Let Prometheus' address in: `systemctl edit iokeel`, with `IPAddressAllow=192.0.2.10` under
   `[Service]`. The [role](../playbooks/roles/iokeel/README.md) does it by
   `iokeel_metrics_clients`.
4. Type `iokeel agent --check && systemctl restart iokeel`.
5. In Prometheus, give the job `scheme: https`, and its `tls_config` or `basic_auth`.

The file may have these keys:

- `tls_server_config`: `cert_file`, `key_file`, `client_auth_type`, `client_ca_file`, and
  `min_version` and `max_version`, which are `TLS12` or `TLS13`. Paths may be relative to the file.
- `client_auth_type` is `NoClientCert`, `VerifyClientCertIfGiven` or `RequireAndVerifyClientCert`.
  Any certificate that `client_ca_file` has signed is let in.
- `basic_auth_users`: bcrypt hashes by name, of a cost of at most 13. If there is a
  `RequireAndVerifyClientCert` too, both are asked for.

Others are refused by name. All files are read again when they change, so a renewed certificate
needs no restart. If a new file can't be used, the log says so once, and what was read before counts
until it is mended. A port that can't be opened is tried again each minute.

[web]: https://prometheus.io/docs/prometheus/latest/configuration/https/
"""
_LABELS = """\
## Labels

| label | value |
|---|---|
| `domain` | the VM's name, as libvirt or `[[vm]]` has it |
| `target_device` | the drive's name in it: the disk's target (`vda`), or its QMP device |
| `direction` | `read` or `write` |
| `storage` | the name of what drives share, as `iokeel stats --storage` shows it |
| `tenant` | the tenant that the VM's policy names |
| `mode` | `exact` if QEMU charges by the cost curve, `retune` if the agent adjusts the limits |
| `class` | the class that the drive's policy or its rule names; `[[vm]]` doesn't tell |
| `uuid` | the VM's, as libvirt or its platform has it |
| `project`, `guest` | what the platform calls the VM's owner and the VM: see below |
| `promise` | `reservation`, `limit` or `latency_target`, if the drive has one that is enforced |
| `outcome` | `kept` or `missed`: see below |
| `kind` | of an error: see below. Of pressure: `some` or `full` of the tasks waited |

A label of an info metric is empty if there is nothing to tell.

`outcome` is judged at each look, as the control law judges:

- A reservation is missed if the drive did less than 95 % of it and of its demand. If limits held
  the drive, it wanted more. If its storage may have, its latency above `latency_target_ms` of
  `[storage]` tells; without one nobody can tell.
- A limit is missed if the drive did more than 105 % of what the limit and a full bucket (a tenth of
  a second) let through. While its burst is open, that counts.
- A latency target is missed if the mean latency is above it, without the wait for the throttle.

One request more or less is no miss. `IokeelReservationMissed` looks at the storage instead: whether
it can keep what is asked of it.

## Projects and guests

The [facts](platforms.md) that give these labels:
"""


def page() -> str:
    """Return the page."""
    own = [
        (f"`{d.name}`", d.kind, ", ".join(f"`{label}`" for label in d.labels), d.unit, d.help)
        for d in DESCRIPTIONS
    ]
    return "\n".join(
        [
            _HEAD,
            _ELSEWHERE,
            "## All metrics",
            "",
            *_table(("metric", "type", "labels", "unit", "meaning"), own),
            "",
            _LABELS,
            *_table(("platform", *(f"`{label}`" for label in INFO)), _platforms()),
            "",
            "## Kinds of errors",
            "",
            *_table(("kind", "meaning"), [(f"`{k}`", text) for k, text in ERROR_KINDS.items()]),
            "",
            "## The agent's process",
            "",
            "The Prometheus client adds these of its own.",
            "",
            *_table(("metric", "type", "unit", "meaning"), _of_process()),
            "",
        ]
    )


def _platforms() -> Iterator[tuple[str, ...]]:
    for platform in dict.fromkeys(name for by in INFO.values() for name in by):
        yield platform, *(f"`{by[platform]}`" if platform in by else "" for by in INFO.values())


def _of_process() -> Iterator[tuple[str, ...]]:
    for family in process_registry().collect():
        suffix = family.name.rpartition("_")[2]
        unit = suffix if suffix in ("bytes", "seconds") else ""
        total = "_total" if family.type == "counter" else ""
        yield f"`{family.name}{total}`", family.type, unit, family.documentation


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(page(), end="")
