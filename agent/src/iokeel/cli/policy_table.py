"""The table of `iokeel policy check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TypedDict

from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.core.values.policy import FIGURES, ONE_WAY, DomainPolicy, DrivePolicy, VmPolicy
from iokeel.report.records import ErrorReport
from iokeel.words.units import bytes_rate, duration

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
