"""The table of `iokeel policy check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from iokeel.cli.cells import NONE, plain_table, rate_cell
from iokeel.core.policy import DomainPolicy, DrivePolicy


def policy_table(found: DomainPolicy, targets: Sequence[str]) -> Table:
    """Return what a policy promises each drive it covers."""
    table = plain_table(
        "drive", "reservation", "limit", "burst", "credit", "weight", "latency target"
    )
    for target, drive in _covered(found, targets):
        table.add_row(
            target,
            rate_cell(drive.reservation),
            rate_cell(drive.limit),
            rate_cell(drive.burst),
            f"{drive.burst_seconds} s" if drive.burst is not None else NONE,
            str(drive.weight),
            NONE if drive.latency_target_ms is None else f"{drive.latency_target_ms:g} ms",
        )
    return table


def policy_values(found: DomainPolicy, targets: Sequence[str]) -> dict[str, Any]:
    """Return the same as JSON-able values."""
    covered = {target: asdict(drive) for target, drive in _covered(found, targets)}
    return {"tenant": found.tenant, "drives": covered}


def _covered(found: DomainPolicy, targets: Sequence[str]) -> Iterator[tuple[str, DrivePolicy]]:
    for target in targets or sorted(found.drives):
        drive = found.for_drive(target)
        if drive is not None:
            yield target, drive
    if not targets and found.default is not None:
        yield "every other", found.default
