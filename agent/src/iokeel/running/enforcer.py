"""Carries out the law's orders at the VMs' sources, and notes what came of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.values.counters import DriveId
from iokeel.core.values.observation import SetLimits
from iokeel.core.values.state import NEW, State
from iokeel.errors import ConnectionLost, DriveGone, IokeelError, LimitsRejected
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.observer import Observer
from iokeel.running.outcomes import Outcomes
from iokeel.running.tasks import Tasks

log = logging.getLogger(__name__)

# A QEMU that takes longer hangs. Its order is then sent again, ever less often (outcomes.py).
_SET_TIMEOUT_S = 5.0


@dataclass
class Enforcer:
    """Carries out orders, each in a task of its own.

    on_success: called with an order that was carried out, if no other is on its way to its drive,
    because that may have higher limits. on_refused: called with the domain of one whose QEMU needs
    other limits at once.
    """

    observer: Observer
    metrics: Metrics
    outcomes: Outcomes
    tasks: Tasks
    on_success: Callable[[SetLimits], None]
    on_refused: Callable[[str], None]

    def send(self, order: SetLimits) -> asyncio.Task[bool]:
        """Begin to carry out an order."""
        self.outcomes.begun(order.drive)
        return self.tasks.spawn(self._carry_out(order))

    async def send_all(self, orders: Sequence[SetLimits]) -> list[SetLimits]:
        """Carry out orders at once, and return those that succeeded."""
        done = await asyncio.gather(*(self.send(order) for order in orders), return_exceptions=True)
        return [order for order, succeeded in zip(orders, done, strict=True) if succeeded is True]

    def static_orders(self, state: State, drives: Iterable[DriveId]) -> list[SetLimits]:
        """Return the orders that leave some of the state's drives at their static limits."""
        orders, failures = static_orders(state, drives)
        for name, error in failures.items():
            self.metrics.errors["internal"] += 1
            log.error(
                "%s: no static limits, please report it; its limits stay", name, exc_info=error
            )
        return orders

    def forget_gone(self, domains: Collection[str] | None, seen: Collection[DriveId]) -> None:
        """Forget the failed orders of drives that are certainly gone.

        seen: the drives of the domains that were looked at; of all VMs if that is None.
        """
        missing = {
            drive: None
            for drive in self.outcomes.troubled()
            if drive not in seen and (domains is None or drive.domain in domains)
        }
        if missing:
            self.outcomes.forget(missing.keys() - set(self.observer.unread(missing, ())))

    def forget_released(self, before: State, after: State) -> None:
        """Forget the failed orders of drives that have no limits of ours any more.

        Nothing may be left to send: others of a drive's throttle group hold it now.
        """
        self.outcomes.settle(
            drive
            for drive in self.outcomes.troubled()
            if before.drives.get(drive, NEW).sent.limits is not None
            and after.drives.get(drive, NEW).sent.limits is None
        )

    async def _carry_out(self, order: SetLimits) -> bool:
        """Carry out an order, and return whether that succeeded."""
        try:
            done = await self._is_taken(order)
        finally:
            is_last = self.outcomes.ended(order.drive)
        if done and is_last:
            self.on_success(order)
        return done

    async def _is_taken(self, order: SetLimits) -> bool:
        """Return whether QEMU has taken an order, and note it."""
        try:
            await self._set(order)
        except DriveGone as error:
            self.outcomes.lines.info(log, order.drive.domain, "%s", error)
            return False
        except IokeelError as error:
            self.metrics.errors["rejected" if isinstance(error, LimitsRejected) else "set"] += 1
            if self.outcomes.failed(order, error):
                self.on_refused(order.drive.domain)
            return False
        else:
            self.outcomes.succeeded(order)
            return True

    async def _set(self, order: SetLimits) -> None:
        source = self.observer.source_of(order.drive.domain)
        if source is not None:
            await source.set_limits(order.drive, order.limits, _SET_TIMEOUT_S)
        elif self.observer.may_run(order.drive.domain):
            raise ConnectionLost(str(order.drive), "its guest can't be reached; its limits stay")
        else:
            raise DriveGone(str(order.drive), "its guest is no longer there")
