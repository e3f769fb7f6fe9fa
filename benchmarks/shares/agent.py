"""An agent for a scenario's drives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.shares.scenario import Drive, Scenario
from testing.agents import Agent, HostAgent
from testing.lab.host import Host
from testing.lab.shared_disk import SharedDisk
from testing.waiting import eventually

_KNOWN_S = 20


@contextmanager
def agent(
    scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk, folder: Path, host: Host | None
) -> Iterator[None]:
    """Run an agent that knows all drives. host: of the guests; None: there are none."""
    tables = _tables(scenario, drives, disk)
    running = (HostAgent(host, tables) if host is not None else Agent(folder, tables)).start()

    def all_known() -> bool:
        return sum(len(vm["drives"]) for vm in running.ask("/v1/vms")) >= len(drives)

    try:
        what = f"the agent knows {len(drives)} drives; it says: {running.log()[-2000:]}"
        eventually(all_known, _KNOWN_S, what=what, process=running.process)
        yield
        running.stop()
    finally:
        running.end()


def _tables(scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk) -> str:
    """Return the configuration beside [agent] and [libvirt]."""
    exports = [drive for drive in drives if not drive.guest]
    lines = [
        "[cgroup]\nenabled = false",
        "[storage.shared]",
        f"drives = {[f'{drive.name}/*' for drive in exports]}",
        f'device = "{disk.device}"',
        f"capacity = {round(scenario.capacity)}",
        f"curve_read = {[list(p) for p in scenario.model.read.points]}",
        f"curve_write = {[list(p) for p in scenario.model.write.points]}",
        f"latency_target_ms = {scenario.latency_target_ms}",
    ]
    for i, drive in enumerate(exports):
        lines += ["[[vm]]", f'name = "{drive.name}"', f'socket = "{disk.qmp_socket(i)}"']
        lines.append(f"[vm.drives.group{i}]")
        lines += [f"{key} = {value}" for key, value in drive.policy.items()]
    return "\n".join(lines)
