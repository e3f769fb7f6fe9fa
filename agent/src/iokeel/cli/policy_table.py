"""The table of `iokeel policy check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypedDict

from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, VmPolicy
from iokeel.words.units import duration


class PolicyValues(TypedDict):
    """A policy for --json: the attributes of its promises, to the VM and to drives by target.

    job_bps: as in DomainPolicy.
    """

    tenant: str | None
    vm: dict[str, object] | None
    drives: dict[str, dict[str, object]]
    job_bps: int | None


def policy_table(
    found: DomainPolicy, targets: Sequence[str] | None, waits: Mapping[str, float] | None = None
) -> PlainTable:
    """Return what a policy promises each drive it covers, and all together.

    targets: the domain's drives that can be limited; None if they aren't known. waits: how long one
    request of 1 MiB waits, by the names that the table has for the drives.
    """
    waits = waits or {}
    headings = (
        "drive",
        "reservation",
        "limit",
        "burst",
        "credit",
        "weight",
        "latency target",
        "budget",
        "1 MiB waits",
    )
    rows = [
        (
            name_cell(target),
            *_promise(drive),
            str(drive.weight),
            NONE if drive.latency_target_ms is None else f"{drive.latency_target_ms:g} ms",
            "separate" if drive.separate_budgets else "shared",
            duration(waits[target]) if target in waits else NONE,
        )
        for target, drive in _covered(found, targets)
    ]
    if found.vm is not None:
        rows.append(("all together", *_promise(found.vm), "", "", "", ""))
    return PlainTable(headings, rows, layouts("budget", "weight", "credit", "1 MiB waits"))


def _promise(policy: DrivePolicy | VmPolicy) -> Iterator[str]:
    """Yield the cells of what drives and VMs are promised alike."""
    yield rate_cell(policy.reservation)
    yield rate_cell(policy.limit)
    yield rate_cell(policy.burst)
    yield f"{policy.burst_seconds} s" if policy.burst is not None else NONE


def policy_values(found: DomainPolicy, targets: Sequence[str] | None) -> PolicyValues:
    """Return the same as JSON-able values."""
    covered = {target: asdict(drive) for target, drive in _covered(found, targets)}
    vm = asdict(found.vm) if found.vm is not None else None
    return {"tenant": found.tenant, "vm": vm, "drives": covered, "job_bps": found.job_bps}


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
