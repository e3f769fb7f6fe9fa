"""The rates of the last two minutes, a value a second, and how a row shows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from iokeel.cli.top.picture import Picture
from iokeel.report.records import HistoryReport

Key: TypeAlias = tuple[str, ...]
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
