"""The part of the backstop's benchmark that runs in the guest; it prints JSON (told.py).

Makes a VM's group as libvirt does, carries out the agent's orders for it, does I/O beside QEMU in
it, and reads the kernel's counts. Imports only the agent: nothing else is in the guest.
"""

from __future__ import annotations

import faulthandler
import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from iokeel.core.enforce.backstop import CgroupOrder, backstop
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.host.block_devices import StoragePaths
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process, process

ROOT = Path("/sys/fs/cgroup")
SLICE = ROOT / "machine.slice"
SCOPE = SLICE / r"machine-qemu\x2d1\x2ddb1.scope"
DISK = "/dev/vda"
STATE = Path("/root/state.json")
SHARE = 400  # normalized iops
MARGIN, TARGET_S = 1.25, 0.0025
SETTLE_S, COUNTED_S = 1.5, 7
#: A run takes half a minute; past this it says where it waits, and ends.
HANGS_S = 240


class SavedInFile:
    """Keeps the former settings of cgroups, as the state file does; the guest has no msgspec."""

    def load_cgroups(self) -> dict[str, str]:
        """Return what was saved, by path."""
        return dict(json.loads(STATE.read_text())) if STATE.exists() else {}

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        """Save changes, by path; None forgets one."""
        saved = {**self.load_cgroups(), **changed}
        STATE.write_text(json.dumps({path: text for path, text in saved.items() if text}))


def start_guest() -> Process:
    """Start a QEMU in a group like the one that libvirt and systemd give a guest."""
    subprocess.run(["mount", "-t", "cgroup2", "none", ROOT], check=True)
    (ROOT / "cgroup.subtree_control").write_text("+io")
    (SCOPE / "libvirt").mkdir(parents=True)
    for group in (SLICE, SCOPE):
        (group / "cgroup.subtree_control").write_text("+io")
    emulator = SCOPE / "libvirt/emulator"
    emulator.mkdir()
    (emulator / "cgroup.type").write_text("threaded")
    qemu = subprocess.Popen(["qemu-storage-daemon", "--blockdev", "null-co,node-name=n"])
    (SCOPE / "libvirt/cgroup.procs").write_text(str(qemu.pid))
    time.sleep(0.5)
    for thread in os.listdir(f"/proc/{qemu.pid}/task"):
        (emulator / "cgroup.threads").write_text(thread)
    found = process(qemu.pid)
    assert found is not None
    return found


def counted(number: str) -> dict[str, int]:
    """Return the kernel's counts of the VM's group on a device."""
    for line in (SCOPE / "io.stat").read_text().splitlines():
        device, *fields = line.split()
        if device == number:
            return {name: int(value) for name, value in (f.split("=") for f in fields)}
    return {}


def rates(number: str, size: str, *orders: str, limit: int | None = None) -> dict[str, float]:
    """Return the rates of I/O beside QEMU, in its group, by the kernel's counts.

    size, orders: of fio's requests, all orders at once. limit: fio's own. The rates are those of
    the median second, because the host may stop the guest in one.
    """
    jobs = [word for order in orders for word in (f"--name={order}", f"--rw={order}")]
    fio = subprocess.Popen(
        ["fio", f"--filename={DISK}", f"--bs={size}", "--direct=1", "--ioengine=libaio",
         "--iodepth=8", "--time_based", "--thread", "--runtime=600",
         *([] if limit is None else [f"--rate_iops={limit}"]), *jobs],
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: enter(SCOPE / "libvirt"),
    )  # fmt: skip
    while not counted(number):
        assert fio.poll() is None
        time.sleep(0.05)
    time.sleep(SETTLE_S)
    counts = [(time.monotonic(), counted(number))]
    for _ in range(COUNTED_S):
        time.sleep(1.0)
        counts.append((time.monotonic(), counted(number)))
    assert fio.poll() is None
    fio.kill()
    fio.wait()
    return {
        name: statistics.median(
            (after[name] - before[name]) / (end - start)
            for (start, before), (end, after) in pairwise(counts)
        )
        for name in counts[-1][1]
    }


def enter(group: Path) -> None:
    """Move this process into a group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def files() -> dict[str, str]:
    """Return the settings of the VM's group, as the kernel shows them."""
    names = ("io.max", "io.weight", "io.bfq.weight", "io.latency")
    return {n: (SCOPE / n).read_text().strip() for n in names if (SCOPE / n).exists()}


def main() -> Mapping[str, object]:
    """Return all settings and rates by their moment."""
    qemu = start_guest()
    place = StoragePaths().places(DISK)[-1]
    number = place.number or ""
    bounds = {number: backstop(DEFAULT_MODEL, SHARE, MARGIN)}
    order = CgroupOrder(bounds, weight=300, latency_targets_s={number: TARGET_S})
    limits = dict(bounds[number].items())
    told: dict[str, object] = {"disk": [place.name, number], "limits": limits}
    told |= {"share": SHARE, "margin": MARGIN}

    def agent() -> Cgroups:
        return Cgroups(SavedInFile())

    told["before"] = files()
    told["free"] = rates(number, "4k", "randread")
    groups = agent()
    groups.apply({"db1": order}, {"db1": qemu})
    told["set"] = files()
    # io.max bounds reads and writes apart.
    told["reads"] = told["writes"] = rates(number, "4k", "randread", "randwrite")
    # Large, but small against the bytes that the bound allows while the kernel counts.
    told["large reads"] = told["large writes"] = rates(number, "64k", "read", "write")
    told["within"] = rates(number, "4k", "randread", limit=SHARE)

    # An agent that is killed, and another that stops.
    agent().restore()
    told["restored"] = files()

    # Somebody's own bound is kept if it is tighter, and comes back.
    (SCOPE / "io.max").write_text(f"{number} riops=123 wiops=100000")
    groups = agent()
    groups.apply({"db1": order}, {"db1": qemu})
    told["set over another's"] = files()
    groups.restore()
    told["another's restored"] = files()
    (SCOPE / "io.max").write_text(f"{number} riops=max wiops=max")

    # Weights, under schedulers that go by them.
    Path("/sys/block/vda/queue/scheduler").write_text("bfq")
    groups = agent()
    groups.apply({"db1": order}, {"db1": qemu})
    told["bfq"] = files()
    groups.restore()
    told["bfq restored"] = files()
    Path("/sys/block/vda/queue/scheduler").write_text("none")
    (ROOT / "io.cost.qos").write_text(f"{number} enable=1 ctrl=user max=100.00")
    groups = agent()
    groups.apply({"db1": order}, {"db1": qemu})
    told["iocost"] = files()
    groups.restore()
    told["iocost restored"] = files()

    # A guest that ends.
    groups = agent()
    groups.apply({"db1": order}, {"db1": qemu})
    os.kill(qemu.pid, 9)
    os.waitpid(qemu.pid, 0)
    (SCOPE / "libvirt/emulator").rmdir()
    (SCOPE / "libvirt").rmdir()
    SCOPE.rmdir()
    groups.apply({"db1": order}, {"db1": qemu})
    groups.restore()
    told["errors"] = dict(groups.errors)
    told["saved"] = SavedInFile().load_cgroups()
    return told


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    print(json.dumps(main()))
