"""The agent as a process: its start, its signals, and what it tells the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Callable
from pathlib import Path

from iokeel.config.last import keep
from iokeel.config.load import for_running, load
from iokeel.config.settings import Config
from iokeel.daemon import Agent
from iokeel.errors import ConfigError
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.service_manager import ServiceManager
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import Source
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.recorder import Recorder
from iokeel.store.store import StateStore

log = logging.getLogger(__name__)

# A tick makes many objects and drops as many old ones at its end, but hardly any cycle. A garbage
# collection in between would go through all of them in vain: 0.1 s with 5,000 drives. So one only
# begins once this many objects have been made and not dropped, and so many more for each drive.
_OBJECTS, _OBJECTS_A_DRIVE = 100_000, 100
# VMs and drives are counted for the service manager once in so many ticks.
_COUNT_TICKS = 10
# A write of the configuration that takes longer is left to itself: a reload has been carried out.
_KEEP_S = 2.0


def sources_of(config: Config, store: StateStore) -> list[Source]:
    """Return the sources of VMs, not running yet. QMP's may have VMs after a reload.

    It comes first: others may pick the names of libvirt's domains.
    """
    sources: list[Source] = [QmpSource(config.vms, store.processes, config, store.policies)]
    if config.libvirt.enabled:
        from iokeel.hypervisors.libvirt.source import LibvirtSource

        sources.append(
            LibvirtSource(
                config.libvirt.uri,
                config.classes,
                store.policies,
                config.ceilings,
                config.rules,
                config.facts_dir,
                passes_on=config.libvirt.passthrough,
            )
        )
    return sources


def join_fleet(agent: Agent) -> None:
    """Make an agent a member of the fleet, if it is configured. Raises IokeelError."""
    if (config := agent.config).fleet is not None:
        from iokeel.fleet.keys import Kind
        from iokeel.fleet.member import Member

        sums_of = {Kind.TENANT: agent.tenant_sums, Kind.STORAGE: agent.storage_sums}
        agent.fleet = Member(config.fleet, config.agent.state_dir, sums_of)
        agent.fleet.rules = config.rules.digest


async def run_agent(config: Config, file: Path | None, refused: ConfigError | None = None) -> None:
    """Run an agent until SIGTERM or SIGINT, which stop it cleanly. SIGHUP reads the configuration.

    file: has the configuration; None for DEFAULT_CONFIG. refused: what is wrong with it, if
    `config` is the one that was in force last.
    Raises IokeelError if it can't start: another agent runs, or its folders can't be used.
    """
    loop = asyncio.get_running_loop()
    store = StateStore(config.agent.state_dir)
    with store.lock():
        config = store.keep_tables(config)
        agent = Agent(config, sources_of(config, store), store, Metrics(), cgroups=Cgroups(store))
        weeks, hours = config.agent.state_dir / "history.db", config.history.keep_hours
        agent.recorder = Recorder(weeks, config.agent.socket, agent.metrics, hours)
        join_fleet(agent)
        service = Service(agent, file, refused)
        task = asyncio.create_task(agent.run())

        def stop() -> None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # more of them don't cut it short
            service.manager.stopping()
            task.cancel()

        def at_signal(number: int, call: Callable[[], object]) -> None:
            # The loop's own handlers leave the default in force, which ends the process, for a
            # moment when they are removed.
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))

        at_signal(signal.SIGTERM, stop)
        at_signal(signal.SIGINT, stop)
        at_signal(signal.SIGHUP, lambda: agent.tasks.spawn(service.reload()))
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Service:
    """An agent, its configuration's source, and its service manager."""

    def __init__(self, agent: Agent, file: Path | None, refused: ConfigError | None) -> None:
        self.agent = agent
        self.manager = ServiceManager()
        self._file = file
        self._refused = ""
        self._counted, self._ticks = "", 0
        self._changing, self._keeping = asyncio.Lock(), asyncio.Lock()
        self._kept: set[asyncio.Task[None]] = set()
        self._keeps = refused is None  # its first configuration, once that has been in force
        if refused is not None:
            self._refuse(refused)
        agent.on_tick = self._after_tick
        _collect_seldom(0)

    async def reload(self) -> None:
        """Read the configuration again. A bad one changes nothing, and is told."""
        with self.manager.reloading():
            async with self._changing:
                try:
                    config, waiting = for_running(self.agent.config, load(self._file))
                except ConfigError as error:
                    self._refuse(error)
                    return
                await self.agent.reconfigure(config)
                self._refused = ""
                self.agent.metrics.set_config_valid(True)
            await self._keep()
        logging.getLogger().setLevel(config.agent.log_level.upper())
        log.info("the configuration was read again")
        if waiting:
            log.warning("%s: takes a restart of the agent", ", ".join(waiting))

    async def _keep(self) -> None:
        """Keep the latest configuration. A disk that hangs is told, and nothing waits for it."""
        keeping = asyncio.create_task(self._keep_latest())
        self._kept.add(keeping)
        keeping.add_done_callback(self._kept.discard)
        await asyncio.wait([keeping], timeout=_KEEP_S)
        if keeping.done():
            keeping.result()
        else:
            log.warning(
                "%s: its disk doesn't answer; until it does, an agent that starts with a bad"
                " configuration goes by the one before; see what holds the disk up",
                self.agent.config.agent.state_dir,
            )

    async def _keep_latest(self) -> None:
        async with self._keeping:
            await asyncio.to_thread(keep, self.agent.config, self._file)

    def _refuse(self, error: ConfigError) -> None:
        """Tell that a configuration isn't taken over."""
        self.agent.metrics.errors["config"] += 1
        self.agent.metrics.set_config_valid(False)
        self._refused = f"; the configuration stays as it was: {error}"
        log.error("the configuration stays as it was: %s", error)

    def _after_tick(self) -> None:
        drives = self.agent.state.drives
        _collect_seldom(len(drives))
        if self._keeps:
            self._keeps = False
            self.agent.tasks.spawn(self._keep())
        if self._ticks % _COUNT_TICKS == 0:
            held = sum(drive.sent.limits is not None for drive in drives.values())
            self._counted = f"VMs: {len(self.agent.observer.vms())}, drives with limits: {held}"
        self._ticks += 1
        self.manager.alive(f"{self._counted}{self._refused}")


def _collect_seldom(drives: int) -> None:
    gc.set_threshold(_OBJECTS + _OBJECTS_A_DRIVE * drives, 20, 50)
