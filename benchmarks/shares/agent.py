"""An agent for a scenario's drives."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.shares.scenario import Drive, Scenario
from iokeel.cli import client
from testing.lab.host import Host
from testing.lab.shared_disk import SharedDisk

_KNOWN_S = 20


@contextmanager
def agent(
    scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk, folder: Path, host: Host | None
) -> Iterator[None]:
    """Run an agent that knows all drives. host: of the guests; None: there are none."""
    api, config = folder / "agent.sock", folder / "agent.toml"
    config.write_text(_config(scenario, drives, disk, folder, host))
    command = [str(Path(sys.executable).parent / "iokeel"), "agent", "--config", str(config)]
    with (folder / "agent.log").open("w") as log:
        start = host.popen if host is not None else subprocess.Popen
        process = start(command, stderr=log)
        try:
            deadline = time.monotonic() + _KNOWN_S
            while not api.exists() or not _all_known(api, len(drives)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "agent.log").read_text()[-2000:])
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(20)


def _all_known(api: Path, drives: int) -> bool:
    return sum(len(vm.drives) for vm in client.vms(api)) >= drives


def _config(
    scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk, folder: Path, host: Host | None
) -> str:
    exports = [drive for drive in drives if not drive.guest]
    lines = [
        "[agent]",
        f'socket = "{folder}/agent.sock"',
        f'state_dir = "{folder}/state"',
        "[libvirt]",
        f'uri = "{host.uri}"' if host is not None else "enabled = false",
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
    return "\n".join(lines) + "\n"
