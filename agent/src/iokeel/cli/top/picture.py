"""What the screen shows at one moment, and the rates of the last two minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from iokeel.cli import client
from iokeel.cli.drive_tables import bound_by
from iokeel.cli.tables import TenantSums, tenants
from iokeel.report.records import DriveReport, HistoryReport, StorageReport, VmReport

ERROR, SUFFERS, BURSTS, HELD, FREE = "error", "suffers", "bursts", "held", "-"
STATES = (ERROR, SUFFERS, BURSTS, HELD, FREE)
Key: TypeAlias = tuple[str, ...]


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


"""A row: ("drive", VM, drive), ("storage", name) or ("tenant", name)."""

SPAN_S = 120
_BLOCKS = "▁▂▃▄▅▆▇█"
_NOT_KNOWN = " "


def drive_key(domain: str, target: str) -> Key:
    """Return the key of a drive's row."""
    return ("drive", domain, target)


def storage_key(name: str | None) -> Key:
    """Return the key of a storage's row."""
    return ("storage", name or "")


def tenant_key(name: str | None) -> Key:
    """Return the key of a tenant's row."""
    return ("tenant", name or "")


class Trends:
    """The rates of each row, oldest first; None: not known."""

    def __init__(self) -> None:
        self._rates: dict[Key, deque[float | None]] = {}

    def of(self, key: Key) -> Sequence[float | None]:
        """Return a row's rates, the last one being now."""
        return [*self._rates.get(key, ())]

    def begin(self, history: HistoryReport, now: Picture) -> None:
        """Take over the agent's own history. Drives count for the storage that they are on now.

        What was known before is replaced.
        """
        homes = {(d.domain, d.target): (d.storage, d.tenant) for d in now.drives}
        seconds: list[dict[Key, float]] = [{} for _ in range(SPAN_S)]
        for drive in history.drives:
            if (drive.domain, drive.target) not in homes:
                continue
            storage, tenant = homes[drive.domain, drive.target]
            keys = (drive_key(drive.domain, drive.target), storage_key(storage), tenant_key(tenant))
            values = dict(_by_age(history.ages_s, drive.series.get("normalized_iops", ())))
            for age in range(SPAN_S):
                # Samples are two seconds apart: each stands for the second after it, too.
                value = values.get(age, values.get(age + 1))
                if value is not None:
                    second = seconds[SPAN_S - 1 - age]
                    for key in keys:
                        second[key] = second.get(key, 0.0) + value
        for rates in seconds:
            self._append(rates)

    def add(self, now: Picture | None) -> None:
        """Append a second's rates; None: the agent didn't answer."""
        rates: dict[Key, float] = {}
        for drive in now.drives if now is not None else ():
            if drive.normalized_iops is not None:
                rates[drive_key(drive.domain, drive.target)] = drive.normalized_iops
                for key in (storage_key(drive.storage), tenant_key(drive.tenant)):
                    rates[key] = rates.get(key, 0.0) + drive.normalized_iops
        self._append(rates)

    def _append(self, rates: Mapping[Key, float]) -> None:
        for key in rates.keys() - self._rates.keys():
            self._rates[key] = deque([None] * SPAN_S, SPAN_S)
        for key, values in [*self._rates.items()]:
            value = rates.get(key)
            values.append(value)
            if value is None and not any(v is not None for v in values):
                del self._rates[key]


def _by_age(ages_s: Sequence[float], values: Sequence[float | None]) -> dict[int, float]:
    """Return the values that are known by their age in whole seconds."""
    found = zip(ages_s, values, strict=False)
    return {int(age_s): value for age_s, value in found if value is not None}


def sparkline(rates: Sequence[float | None], width: int, most: float) -> str:
    """Return rates in so many characters, as high as their part of `most`.

    A rate above that is as high as the highest. What isn't known is a space.
    """
    most = max([most, *(rate for rate in rates if rate is not None)])
    text = []
    for place in range(width):
        part = rates[len(rates) * place // width : max(1, len(rates) * (place + 1) // width)]
        known = [rate for rate in part if rate is not None]
        if not known:
            text.append(_NOT_KNOWN)
            continue
        height = sum(known) / len(known) / most if most > 0 else 0.0
        text.append(_BLOCKS[min(len(_BLOCKS) - 1, int(height * len(_BLOCKS)))])
    return "".join(text)
