"""Leaves the VMs that go from the configuration: each drive at its policy's static limit.

A VM with a drive that can't be set, because its QEMU hangs, stays connected. It isn't served any
more, but its drives stay known, with what they had before the agent. It is tried again each minute
and whenever it changes, until all its drives are set, or it is certain that it doesn't run. The
state file has it, so that the next agent goes on with that. It has the VMs that are served, too, so
that those are left that go while no agent runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import DriveState, Pricing, State
from iokeel.errors import IokeelError
from iokeel.hypervisors.source import Source
from iokeel.running.enforcer import Enforcer
from iokeel.running.observer import Observer

log = logging.getLogger(__name__)

# A QEMU that hung is tried at once when it answers again. This is in case nothing tells that.
_LEAVE_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of an attempt to leave the VMs of a source, by `config`.

    leaving: their drives. left: those that have their static limits. failed: those that couldn't be
    set. A drive may be in neither, if it needs no static limit or is gone.
    """

    source: Source
    config: Config
    leaving: Mapping[DriveId, DriveState]
    left: Mapping[DriveId, DriveState]
    failed: Mapping[DriveId, IokeelError]


@dataclass
class Leaving:
    """The VMs that are being left; the observer has those that couldn't be so far."""

    observer: Observer
    enforcer: Enforcer
    _due_s: float = 0.0
    _is_trying: bool = False

    def reconfigured(self, config: Config) -> None:
        """Note which VMs have come back into the configuration."""
        stuck, names = self.observer.leaving, {vm.name for vm in config.vms}
        for name, vm in [*stuck.items()]:
            if name in names or config.discovered(vm) is not None:
                del stuck[name]

    def changed(self, domain: str) -> None:
        """Try again soon if this VM couldn't be left: it may answer now."""
        if domain in self.observer.leaving:
            self._due_s = 0.0

    def is_due(self) -> bool:
        """Return whether to try again."""
        return (
            bool(self.observer.leaving) and not self._is_trying and time.monotonic() >= self._due_s
        )

    async def attempt(self, source: Source, config: Config, state: State) -> Attempt:
        """Set the drives of VMs that a source follows, but that are no longer configured."""
        self._due_s, self._is_trying = time.monotonic() + _LEAVE_AGAIN_S, True
        observer, outcomes, vms = self.observer, self.enforcer.outcomes, source.leaves(config)
        names = {name for name in vms if observer.source_of(name) in (source, None)}
        leaving = {d: known for d, known in state.drives.items() if d.domain in names}
        errors = {drive: outcomes.errors[drive] for drive in leaving}
        try:
            done = await self.enforcer.send_all(self.enforcer.static_orders(state, leaving))
        finally:
            self._is_trying = False
        left = {order.drive: leaving[order.drive].with_sent(order.limits) for order in done}
        failed = {
            drive: outcomes.last.get(drive) or IokeelError(str(drive), "can't be set")
            for drive, before in errors.items()
            if outcomes.errors[drive] > before and drive not in left
        }
        return Attempt(source, config, leaving, left, failed)

    def settled(self, tried: Attempt, state: State) -> State:
        """Forget the VMs that have been left, and have the source follow the others.

        One that is at another socket now is priced anew. It may be the same QEMU, so what there
        was before the agent stays known.
        """
        stuck = self.observer.leaving
        stay = {vm.name for vm in tried.config.vms}  # at another socket
        may_run = {*tried.source.vms(), *(tried.source.unread() or ())}
        failed = {d: error for d, error in tried.failed.items() if d.domain in may_run - stay}
        names = {drive.domain for drive in failed} | stuck.keys()
        leaves = tried.source.leaves(tried.config)
        for name in names & leaves.keys():
            errors = {str(drive): error for drive, error in failed.items() if drive.domain == name}
            if not errors:
                log.info("VM %s: is left, as the configuration says", name)
                del stuck[name]
            elif name not in stuck:
                log.error("%s", _cant_be_left(name, errors))
                stuck[name] = leaves[name]
        drives = {d: known for d, known in state.drives.items() if d not in tried.leaving}
        for drive in tried.leaving.keys() & state.drives.keys():
            known = tried.left.get(drive, state.drives[drive])
            if drive.domain in stay:
                drives[drive] = known._replace(pricing=Pricing(mix=known.pricing.mix))
            elif drive.domain in stuck:
                drives[drive] = known
        vms = (*tried.config.vms, *stuck.values())
        tried.source.configure(replace(tried.config, vms=vms))
        return replace(state, drives=drives)


def _cant_be_left(name: str, errors: Mapping[str, IokeelError]) -> IokeelError:
    drives = ", ".join(sorted(errors))
    first = errors[min(errors)].what
    return IokeelError(
        f"VM {name}",
        f"has gone from the configuration, but {drives} can't be set to a static limit: {first}",
        "see that its QEMU answers, or end it; until then it is tried again each minute",
    )
