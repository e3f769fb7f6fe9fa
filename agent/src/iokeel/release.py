"""Gives drives and cgroups back what they had before the agent, once it has gone for good."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import DriveState
from iokeel.daemon import Agent
from iokeel.errors import IokeelError
from iokeel.host.cgroup.files import bounded
from iokeel.host.cgroup.groups import Cgroups
from iokeel.report.metrics.prometheus import Metrics
from iokeel.service import sources_of
from iokeel.store.store import StateStore

# Sources connect again after 5 s at most (hypervisors/pace.py), and an order may take 5 s more
# (enforcer.py), so each QEMU that answers is tried. Others are left for a second call.
_MOST_S = 20.0
# Less than a tick, because somebody waits for it.
_LOOK_S = 0.2


async def release_all(config: Config) -> int:
    """Give every drive and cgroup of the agent's back what it had before.

    Return the number of drives that had limits of the agent's. Limits that somebody else has set
    since stay. Raises IokeelError if an agent runs, if the state file can't be used, or if some are
    left: a second try then goes on with those.
    """
    store = StateStore(config.agent.state_dir, strict=True)
    with store.lock():
        agent = Agent(config, sources_of(config, store), store, Metrics(), releasing=True)
        agent.remember()
        Cgroups(store).restore()
        before = len(_held(agent))
        unknown = _of_unknown_vms(agent)
        followers = [asyncio.create_task(source.run()) for source in agent.sources]
        try:
            await _release_drives(agent)
            if not _held(agent):
                for source in agent.sources:
                    await source.forget_records()
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
            await agent.save({**unknown, **agent.state.drives}, whole=True)
        held, groups = _held(agent), store.load_cgroups()
        if left := [*unknown, *held, *groups]:
            mends = []
            if unknown:
                mends.append("put each VM's [[vm]] or [[discover]] back, or enable [libvirt]")
            elif held:
                mends.append("see that libvirt's daemon and each QEMU answer")
            if groups:
                files = [file for path in map(Path, groups) for file in bounded(path) or [path]]
                mends.append(f"put back by hand the bounds in {', '.join(map(str, files))}")
            mend = f"{', '.join(mends)}, and try again"
            raise IokeelError(", ".join(sorted(map(str, left))), "not given back", mend)
    return before


async def _release_drives(agent: Agent) -> None:
    deadline = time.monotonic() + _MOST_S
    while True:
        all_read = not _may_hold_more(agent)
        await agent.look(None)
        if (all_read and not _held(agent)) or time.monotonic() >= deadline:
            return
        await asyncio.sleep(_LOOK_S)


def _may_hold_more(agent: Agent) -> bool:
    """Return whether some of libvirt's VMs aren't read yet: limits may have come along with one."""
    return agent.config.libvirt.enabled and agent.observer.unread_vms() != set()


def _of_unknown_vms(agent: Agent) -> dict[DriveId, DriveState]:
    """Return the drives of VMs that no source can have. What isn't libvirt's is at a socket."""
    if agent.config.libvirt.enabled:  # it knows all VMs; one that it lacks has ended
        return {}
    known = {name for source in agent.sources for name in source.sockets()}
    known |= agent.store.leaving.keys()
    return {drive: kept for drive, kept in agent.state.drives.items() if drive.domain not in known}


def _held(agent: Agent) -> list[DriveId]:
    """Return the drives that still have limits of the agent's."""
    return [drive for drive, known in agent.state.drives.items() if known.sent.limits is not None]
