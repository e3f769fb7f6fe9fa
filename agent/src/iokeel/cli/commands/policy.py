"""The command `iokeel policy`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.cli.options import ConfigOption, JsonOption, SocketOption, out, text_of, vm_names
from iokeel.cli.output import complain, say, say_json
from iokeel.cli.tables import storage_complaints
from iokeel.config.load import load
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.core.values.policy import FIGURES, OBSERVE, ONE_WAY, DomainPolicy, DrivePolicy, VmPolicy
from iokeel.errors import ConnectionLost, IokeelError, PolicyError, TargetsMissing
from iokeel.libvirt_xml.ceiling import ceiling_of
from iokeel.libvirt_xml.domain import domain_in, unlimited_for
from iokeel.libvirt_xml.policy import check_groups, check_targets, check_throttled, parse_policy
from iokeel.libvirt_xml.xml import MOST_BYTES
from iokeel.report.promises import drive_complaints, waits_of
from iokeel.report.records import ErrorReport
from iokeel.words.quoting import did_you_mean, few, shown, shown_path
from iokeel.words.units import bytes_rate, duration, rate

# What parse_policy refuses for its size. The word may also name a disk of 100 GB.
_ENOUGH_BYTES = MOST_BYTES + 1
_MEND_OF_NONE = (
    "set one by virsh metadata with --live too: with --config alone, it holds from the VM's next"
    " start on"
)
app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Check policies."""


@app.command()
def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|VM",
            help="A file, - for standard input, or a running VM.",
            autocompletion=vm_names,
        ),
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Check the policy of a running VM, or one in a file: domain XML, or the policy alone."""
    text = text_of(what, _ENOUGH_BYTES)
    if text is None:
        _check_running(what, socket, as_json)
        return
    name = "standard input" if what == "-" else shown_path(what)
    _check_xml(text, name, config, as_json)


def _check_xml(text: bytes, name: str, config: Path | None, as_json: bool) -> None:
    settings = load(config, default_missing=True)
    found = parse_policy(text, settings.classes, name)
    if found is None:
        raise PolicyError(name, "has no policy", "put an iokeel:policy element in its metadata")
    domain = domain_in(text)
    limitable = None
    if domain is not None:
        disks = domain.disks
        unlimited = unlimited_for(disks)
        limitable = [target for target in domain.targets if target not in unlimited]
        try:
            check_targets(found, domain.targets, name)
        except TargetsMissing as error:
            if not domain.has_arguments:
                raise
            limitable += error.missing
            complain(
                f"{name}: {few(error.missing)}: no disk of libvirt's, so the agent looks"
                " for it among the drives of QEMU's command line once the domain runs"
            )
        try:
            check_throttled(found, disks, name)
        except PolicyError as error:
            if found.drives.keys() - limitable:
                raise
            # A class may be meant for the other disks. The agent serves those too.
            complain(str(error))
        check_groups(found, disks, name)
    if (ceiling := ceiling_of(settings.ceilings, domain.name if domain else "")) is not None:
        targets = None if domain is None or domain.has_arguments else limitable
        found, more = ceiling.hold(found, targets, name)
        if more is not None:  # the agent serves it, but for that
            complain(str(more))
    waits, complaints = waits_of(found, covered(found, limitable), settings, {})
    if as_json:
        values = policy_values(found, limitable)
        say_json(PolicyChecked(**values, large_waits_s=waits, warnings=complaints))
    else:
        out.print(policy_table(found, limitable, waits))
        if found.job_bps is not None:
            say(f"Each block job runs at {rate(found.job_bps, 'B/s')}.")
        if (found.mode or settings.rules.mode) == OBSERVE:
            say("The guest is only observed: nothing of this is enforced.")
    for complaint in complaints:
        complain(f"{name}: {complaint}")


def _check_running(vm: str, socket: Path, as_json: bool) -> None:
    try:
        reports = client.vms(socket)
    except ConnectionLost as error:
        raise IokeelError(shown(vm), f"no such file, and {error}") from None
    report = next((report for report in reports if report.domain == vm), None)
    if report is None:
        names = [report.domain for report in reports]
        what = "no such file and no such running VM"
        raise IokeelError(shown(vm), what, did_you_mean(vm, names))
    mine = {drive.storage for drive in report.drives}
    storages = [storage for storage in client.storages(socket) if storage.storage in mine]
    warnings = [*storage_complaints(storages), *drive_complaints(report.drives)]
    wrong = report.policy_error
    if wrong is None and not report.has_policy:
        wrong = ErrorReport(where=vm, what="has no policy", mend=_MEND_OF_NONE)
    if as_json:
        values = RunningChecked(domain=vm, error=wrong, warnings=warnings)
        say_json(msgspec.to_builtins(values), indent=None)
    if wrong is not None:
        raise wrong.error()
    if not as_json:
        say(f"{vm}: its policy is valid", *warnings)


# Attributes that most policies don't have: they have a column only if some drive has them.
_RARE = frozenset({*ONE_WAY, "max_bytes", "start_credit_seconds"})


class PolicyValues(TypedDict):
    """A policy for --json: the attributes of its promises, to the VM and to drives by target.

    job_bps, mode: as in DomainPolicy.
    """

    tenant: str | None
    vm: dict[str, object] | None
    drives: dict[str, dict[str, object]]
    job_bps: int | None
    mode: str | None


class PolicyChecked(PolicyValues):
    """The same, and how long one request of 1 MiB waits, by target."""

    large_waits_s: dict[str, float]
    warnings: list[str]


class RunningChecked(TypedDict):
    """What is wrong with the policy of a running VM, if anything."""

    domain: str
    error: ErrorReport | None
    warnings: list[str]


def policy_table(
    found: DomainPolicy, targets: Sequence[str] | None, waits: Mapping[str, float] | None = None
) -> PlainTable:
    """Return what a policy promises each drive it covers, and all together.

    targets: the domain's drives that can be limited; None if they aren't known. waits: how long one
    request of 1 MiB waits, by the names that the table has for the drives.
    """
    waits, drives = waits or {}, [*_covered(found, targets)]
    names = [
        field.name
        for field in fields(DrivePolicy)
        if field.name not in _RARE or any(getattr(drive, field.name) for _, drive in drives)
    ]
    called = [FIGURES[name].called if name in FIGURES else "budget" for name in names]
    rows = [
        (
            name_cell(target),
            *(_cell(drive, name) for name in names),
            duration(waits[target]) if target in waits else NONE,
        )
        for target, drive in drives
    ]
    if found.vm is not None:
        rows.append(("all together", *(_cell(found.vm, name) for name in names), ""))
    left_out = layouts("budget", "weight", "credit", "start credit", "1 MiB waits")
    return PlainTable(("drive", *called, "1 MiB waits"), rows, left_out)


def _cell(policy: DrivePolicy | VmPolicy, name: str) -> str:
    """Return the cell of a promise's field; empty if a VM has no such field."""
    if not hasattr(policy, name):
        return ""
    value, figure = getattr(policy, name), FIGURES.get(name)
    if figure is None:
        return "separate" if value else "shared"
    if figure.unit == "iops":
        return rate_cell(value)
    if figure.unit == "B/s" and value is not None:
        return bytes_rate(value)
    if value is None or (name == "burst_seconds" and policy.burst is None):
        return NONE
    return f"{value:g} {figure.unit}".rstrip()


def policy_values(found: DomainPolicy, targets: Sequence[str] | None) -> PolicyValues:
    """Return the same as JSON-able values."""
    covered = {target: asdict(drive) for target, drive in _covered(found, targets)}
    vm = asdict(found.vm) if found.vm is not None else None
    return {
        "tenant": found.tenant,
        "vm": vm,
        "drives": covered,
        "job_bps": found.job_bps,
        "mode": found.mode,
    }


def covered(found: DomainPolicy, targets: Sequence[str] | None) -> list[str]:
    """Return the table's names for the drives that a policy covers."""
    return [target for target, _ in _covered(found, targets)]


def _covered(
    found: DomainPolicy, targets: Sequence[str] | None
) -> Iterator[tuple[str, DrivePolicy]]:
    for target in sorted(found.drives) if targets is None else targets:
        drive = found.for_drive(target)
        if drive is not None:
            yield target, drive
    if targets is None and found.for_others is not None:
        yield "every other", found.for_others
