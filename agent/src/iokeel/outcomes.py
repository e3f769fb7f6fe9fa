"""The outcomes of orders: those that are on their way, and those that have failed."""

from __future__ import annotations

import logging
import time
from collections import Counter

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.core.orders import SetLimits
from iokeel.errors import IokeelError, LimitsRejected
from iokeel.hypervisors.source import DriveInfo

log = logging.getLogger(__name__)

# QEMU will refuse again what it has refused once, so don't ask every second.
_REJECTED_RETRY_S = 30.0
_CURVE_RETRY_S = 60.0


class Outcomes:
    """The outcome of each drive's last order. retry_s: when to try again after most failures.

    errors: orders that failed, by drive. last: the errors of drives whose last order failed, or
    whose QEMU takes no curve.
    """

    def __init__(self, retry_s: float) -> None:
        self.errors: Counter[DriveId] = Counter()
        self.last: dict[DriveId, IokeelError] = {}
        self._retry_s = retry_s
        self._pending: Counter[DriveId] = Counter()
        self._again_at: dict[DriveId, tuple[float, ThrottleLimits]] = {}
        self._curve_again_at: dict[DriveId, float] = {}

    def seen(
        self, drive: DriveId, info: DriveInfo
    ) -> tuple[ThrottleLimits | None, bool, Abilities]:
        """Return a drive's limits in force, whether to send its order again, and its abilities.

        After a failure the limits aren't known until it is time to try again. An order that timed
        out has succeeded if its limits are in force then. A QEMU that has refused a curve counts as
        stock QEMU: the law then makes limits that need none.
        """
        abilities, in_force = info.abilities, info.in_force
        if drive in self._curve_again_at and self._curve_again_at[drive] > time.monotonic():
            abilities = STOCK
        if drive in self._pending:
            return None, False, abilities
        if drive not in self._again_at:
            return in_force, False, abilities
        again_at, failed = self._again_at[drive]
        if again_at > time.monotonic():
            return None, False, abilities
        if in_force == failed:
            self._settled(drive, failed)
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
        log.info("%s: limits set: %s", drive, order.reason.value)
        self._settled(drive, order.limits)

    def _settled(self, drive: DriveId, limits: ThrottleLimits) -> None:
        """Note that the limits of a drive's last order are in force."""
        self._again_at.pop(drive, None)
        if limits.cost_read is not None:
            self._curve_again_at.pop(drive, None)
        if drive not in self._curve_again_at:
            self.last.pop(drive, None)

    def failed(self, order: SetLimits, error: IokeelError) -> bool:
        """Note why an order failed; return True if other limits have to be made at once."""
        drive = order.drive
        rejected = isinstance(error, LimitsRejected)
        no_curve = rejected and order.limits.cost_read is not None
        if no_curve:
            self._curve_again_at[drive] = time.monotonic() + _CURVE_RETRY_S
        else:
            retry_s = _REJECTED_RETRY_S if rejected else self._retry_s
            self._again_at[drive] = time.monotonic() + retry_s, order.limits
        self.errors[drive] += 1
        if self.last.get(drive) != error:
            log.error("%s", error)
        self.last[drive] = error
        return no_curve
