"""The outcomes of orders: those that are on their way, and those that have failed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import STOCK, Abilities, ThrottleLimits
from iokeel.core.values.observation import SetLimits
from iokeel.errors import IokeelError, LimitsRejected
from iokeel.host.process import Process
from iokeel.hypervisors.source import DriveInfo
from iokeel.words.log_lines import Sparing

log = logging.getLogger(__name__)

# QEMU will refuse again what it has refused once, so don't ask every second.
_REJECTED_RETRY_S = 30.0
_CURVE_RETRY_S = 60.0
# Lines on a VM's orders a minute. A guest with 20 drives writes some 40.
_MOST_LINES = 100
# A QEMU that doesn't answer is tried ever less often, until it answers again.
_MOST_RETRY_S = 30.0


@dataclass(slots=True)
class _Failure:
    """The last order of a drive that failed.

    rejected: QEMU or libvirt refused it. wait_s: how long to wait before the next try. again_at:
    when that is. silent: the drive's counters have been missing since the failure.
    """

    limits: ThrottleLimits
    rejected: bool
    wait_s: float
    again_at: float
    silent: bool = False


class Outcomes:
    """The outcome of each drive's last order. retry_s: when to try again after most failures.

    lines: those of the log about orders. errors: orders that failed, by drive. last: the errors of
    drives whose last order failed, or whose QEMU takes no curve.
    """

    def __init__(self, retry_s: float) -> None:
        self.errors: Counter[DriveId] = Counter()
        self.last: dict[DriveId, IokeelError] = {}
        self.lines = Sparing(_MOST_LINES, 60.0)
        self._retry_s = retry_s
        self._pending: Counter[DriveId] = Counter()
        self._failures: dict[DriveId, _Failure] = {}
        self._curve_again_at: dict[DriveId, float] = {}
        self._processes: dict[DriveId, Process | None] = {}  # of drives in `errors`

    def seen(
        self, drive: DriveId, info: DriveInfo, process: Process | None, *, counted: bool
    ) -> tuple[ThrottleLimits | None, bool, Abilities | None]:
        """Return a drive's limits in force, whether to send its order again, and its abilities.

        process: its QEMU. counted: its counters have just been read. After a failure the limits
        aren't known until it is time to try again. An order that timed out has succeeded if its
        limits are in force then. A QEMU that has refused a curve counts as stock QEMU: the law then
        makes limits that need none.
        """
        abilities, in_force = info.abilities, info.in_force
        if drive not in self.errors:  # most often none of its orders has failed
            return None if drive in self._pending else in_force, False, abilities
        self._check_process(drive, process)
        if drive in self._curve_again_at and self._curve_again_at[drive] > time.monotonic():
            abilities = STOCK
        if drive in self._pending:
            return None, False, abilities
        failure = self._failures.get(drive)
        if failure is None:
            return in_force, False, abilities
        if failure.silent and counted:  # it answers again
            failure.again_at, failure.wait_s = 0.0, 0.0
        failure.silent = not counted and not failure.rejected
        if failure.again_at > time.monotonic():
            return None, False, abilities
        if in_force == failure.limits:
            self._settled(drive, failure.limits)
            return in_force, False, abilities
        return in_force, True, abilities

    def begun(self, drive: DriveId) -> None:
        """Note that an order is on its way."""
        self._pending[drive] += 1

    def ended(self, drive: DriveId) -> bool:
        """Note that an order has ended, and return whether it was the last one on its way."""
        self._pending[drive] -= 1
        if self._pending[drive]:
            return False
        del self._pending[drive]
        return True

    def succeeded(self, order: SetLimits) -> None:
        """Note that an order was carried out."""
        drive = order.drive
        self.lines.info(log, drive.domain, "%s: limits set: %s", drive, order.reason.value)
        self._settled(drive, order.limits)

    def _settled(self, drive: DriveId, limits: ThrottleLimits) -> None:
        """Note that the limits of a drive's last order are in force."""
        self._failures.pop(drive, None)
        if limits.cost_read is not None:
            self._curve_again_at.pop(drive, None)
        if drive not in self._curve_again_at:
            self.last.pop(drive, None)

    def failed(self, order: SetLimits, error: IokeelError) -> bool:
        """Note why an order failed; return True if other limits have to be made at once."""
        drive, now = order.drive, time.monotonic()
        rejected = isinstance(error, LimitsRejected)
        no_curve = rejected and order.limits.cost_read is not None
        if no_curve:
            self._curve_again_at[drive] = now + _CURVE_RETRY_S
        else:
            wait_s = _REJECTED_RETRY_S if rejected else self._next_wait_s(drive)
            self._failures[drive] = _Failure(order.limits, rejected, wait_s, now + wait_s)
        self.errors[drive] += 1
        if self.last.get(drive) != error:
            log.error("%s", error)
        self.last[drive] = error
        return no_curve

    def _next_wait_s(self, drive: DriveId) -> float:
        last = self._failures.get(drive)
        if last is None or last.rejected:
            return self._retry_s
        return max(self._retry_s, min(2 * last.wait_s, _MOST_RETRY_S))

    def troubled(self) -> Collection[DriveId]:
        """Return the drives that have had an order that failed."""
        return self.errors.keys()

    def forget(self, drives: Iterable[DriveId]) -> None:
        """Forget drives that are gone. Others of the same names may come."""
        for drive in drives:
            self.errors.pop(drive, None)
            self.last.pop(drive, None)
            self._failures.pop(drive, None)
            self._curve_again_at.pop(drive, None)
            self._processes.pop(drive, None)

    def settle(self, drives: Iterable[DriveId]) -> None:
        """Forget the last orders of drives that have none to be tried again."""
        for drive in drives:
            self._failures.pop(drive, None)
            self.last.pop(drive, None)

    def _check_process(self, drive: DriveId, process: Process | None) -> None:
        """Forget what an earlier QEMU of the same name did, which may have ended unnoticed."""
        if self._processes.setdefault(drive, process) != process and process is not None:
            self.forget([drive])
