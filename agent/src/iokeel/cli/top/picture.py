"""What the screen shows at one moment, as the agent answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iokeel.cli import client
from iokeel.cli.drive_columns import bound_by
from iokeel.cli.tenant_table import TenantSums, tenants
from iokeel.report.records import DriveReport, StorageReport, VmReport

ERROR, SUFFERS, BURSTS, HELD, FREE = "error", "suffers", "bursts", "held", "-"
STATES = (ERROR, SUFFERS, BURSTS, HELD, FREE)
"""The words for a drive's state, worst first."""


@dataclass(frozen=True)
class Picture:
    """The VMs and storages, and each drive's state."""

    vms: Sequence[VmReport]
    storages: Sequence[StorageReport]
    drives: Sequence[DriveReport]
    tenants: Sequence[TenantSums]
    states: dict[tuple[str, str], str]

    @classmethod
    def of(cls, vms: Sequence[VmReport], storages: Sequence[StorageReport]) -> Picture:
        """Return the picture of what the agent has answered."""
        suffering = {drive for storage in storages for drive in storage.suffering}
        drives, states = [], {}
        for vm in vms:
            for drive in vm.drives:
                drives.append(drive)
                wrong = drive.error is not None or vm.policy_error is not None
                states[drive.domain, drive.target] = _state(drive, wrong, suffering)
        return cls(vms, storages, drives, tenants(drives), states)

    def state(self, drive: DriveReport) -> str:
        """Return a drive's state."""
        return self.states[drive.domain, drive.target]

    def worst(self, drives: Sequence[DriveReport]) -> str:
        """Return the worst state of some drives."""
        return min((self.state(drive) for drive in drives), key=STATES.index, default=FREE)


def _state(drive: DriveReport, wrong: bool, suffering: set[str]) -> str:
    if wrong:
        return ERROR
    if f"{drive.domain}/{drive.target}" in suffering:
        return SUFFERS
    if drive.bursts:
        return BURSTS
    return FREE if bound_by(drive) is None else HELD


def ask(socket: Path) -> Picture:
    """Return the picture now. Raises IokeelError, ConnectionLost."""
    return Picture.of(client.vms(socket), client.storages(socket))
