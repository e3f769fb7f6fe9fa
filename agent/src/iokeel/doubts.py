"""When to read the limits of drives again that do more than these let through."""

from __future__ import annotations

from collections.abc import Collection

from iokeel.core.counters import DriveId

# If limits are found to be right, there is another reason, such as a storage that catches up, or
# requests that QEMU merges. Such a drive is doubted ever less often.
_LEAST_S, _MOST_S = 1.0, 60.0


class Doubts:
    """The drives that have been doubted: when each may be again, and how long that lasts."""

    def __init__(self) -> None:
        self._again: dict[DriveId, tuple[float, float]] = {}

    def due(self, beyond: Collection[DriveId], now_s: float) -> set[str]:
        """Return the VMs whose limits to read now. beyond: the drives beyond their limits."""
        due: set[str] = set()
        for drive in beyond:
            again_at, wait_s = self._again.get(drive, (now_s, _LEAST_S))
            if now_s >= again_at:
                due.add(drive.domain)
                self._again[drive] = now_s + wait_s, min(2 * wait_s, _MOST_S)
        for drive in [d for d, (at, _) in self._again.items() if now_s > at + _MOST_S]:
            del self._again[drive]
        return due
