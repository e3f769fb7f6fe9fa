"""Prints docs/metrics.md.

python -m iokeel.report.metrics.doc >docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from iokeel.report.metrics.prometheus import process_registry
from iokeel.report.metrics.table import DESCRIPTIONS, ERROR_KINDS

_HEAD = """\
# Metrics

<!-- Made by `make metrics-doc` from agent/src/iokeel/report/metrics/table.py. Don't edit it. -->

`GET /metrics` answers in Prometheus' text format: on the agent's socket, and on a loopback port if
`metrics_address` is set ([configuration](configuration.md)). Values are taken when they are asked
for, so a scrape may be as rare as you like. A metric that isn't known has no sample.

"Normalized I/O operations" are counted in 4 KiB reads: a larger request, or a write, counts as
several by the [cost curve](design/control-law.md). "Only if QEMU counts" marks what stock QEMU
doesn't tell: it takes the [patches](../qemu-patches/README.md).

[playbooks/monitoring](../playbooks/monitoring/README.md) has alerts and a dashboard for them.
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
| `kind` | of an error: see below. Of pressure: `some` or `full` of the tasks waited |

`storage`, `tenant` and `mode` of `iokeel_drive_info` are empty if there is none.
"""


def page() -> str:
    """Return the page."""
    own = [
        (f"`{d.name}`", d.kind.value, ", ".join(f"`{label}`" for label in d.labels), d.unit, d.help)
        for d in DESCRIPTIONS
    ]
    return "\n".join(
        [
            _HEAD,
            *_table(("metric", "type", "labels", "unit", "meaning"), own),
            "",
            _LABELS,
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
