"""The backstop on this machine's own kernel, if it has blkio: bounds, weight, and back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from iokeel.core.enforce.backstop import CgroupOrder, IoMax
from iokeel.host.block_devices import StoragePaths
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.cgroup.place import io_hierarchy
from iokeel.host.kernel import is_hard_disk_with_bfq
from iokeel.host.process import Process, process
from testing.agents import Agent, iokeel, start_qemu
from testing.host.cgroups import Memory
from testing.lab.processors import Processors
from testing.waiting import eventually

if not shutil.which("qemu-storage-daemon"):
    pytest.skip("qemu-storage-daemon is not there", allow_module_level=True)

SIZE_BYTES = 32 << 20
SECONDS = 4


@dataclass
class Rig:
    """A guest's group with a QEMU in it, and a disk."""

    group: Path
    qemu: Process
    disk: Path
    number: str

    def read(self, file: str) -> str:
        return (self.group / file).read_text().strip()

    def served(self, what: str) -> int:
        """Return the reads, or the bytes read, that the kernel has counted for the group."""
        for line in self.read(f"blkio.throttle.io_{what}").splitlines():
            if line.startswith(f"{self.number} Read "):
                return int(line.split()[2])
        return 0

    def bypass(self, size: str) -> subprocess.Popen[bytes]:
        """Start reading beside QEMU, in its group."""
        return subprocess.Popen(
            ["fio", "--name=bypass", f"--filename={self.disk}", "--rw=randread", f"--bs={size}",
             "--direct=1", "--ioengine=libaio", "--iodepth=4", "--time_based", "--thread",
             f"--runtime={SECONDS}"],
            preexec_fn=lambda: _enter(self.group), stdout=subprocess.DEVNULL,
        )  # fmt: skip


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def own() -> Iterator[Path]:
    """A group for the groups of a test."""
    hierarchy = io_hierarchy()
    if hierarchy is None or hierarchy.version != 1:
        pytest.skip("this machine's kernel has no blkio mounted (it has v2, which a guest tries)")
    group = hierarchy.folder / f"iokeel-test-{os.getpid()}"
    group.mkdir()
    yield group
    group.rmdir()


@pytest.fixture
def rig(own: Path, tmp_path: Path) -> Iterator[Rig]:
    backing = tmp_path / "disk"
    block = os.urandom(1 << 20)
    with backing.open("wb") as file:
        for _ in range(SIZE_BYTES >> 20):
            file.write(block)
    group = own / "qemu-1-db1.libvirt-qemu"
    disk = subprocess.check_output(["losetup", "--find", "--show", backing], text=True).strip()
    try:
        group.mkdir()
        qemu = subprocess.Popen(
            ["qemu-storage-daemon", "--blockdev", "null-co,node-name=n"],
            preexec_fn=lambda: _enter(group),
        )
        try:
            identity = process(qemu.pid)
            assert identity is not None
            yield Rig(group, identity, Path(disk), StoragePaths().places(disk)[0].number or "")
        finally:
            qemu.kill()
            qemu.wait()
            group.rmdir()
    finally:
        subprocess.run(["losetup", "--detach", disk], check=True)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("size", "what", "limits"),
    [
        ("4k", "serviced", IoMax(riops=400)),
        ("64k", "service_bytes", IoMax(rbps=8 << 20)),
    ],
)
def test_what_bypasses_qemus_throttle_is_held(
    rig: Rig, size: str, what: str, limits: IoMax
) -> None:
    memory = Memory()
    groups = Cgroups(memory)
    groups.apply({"db1": CgroupOrder({rig.number: limits})}, {"db1": rig.qemu})
    assert not groups.errors
    bound = limits.riops or limits.rbps
    assert bound is not None
    fio = rig.bypass(size)
    try:
        eventually(lambda: rig.served(what), what="fio reads", process=fio)
        processors = Processors.now()
        start, before = time.monotonic(), rig.served(what)
        time.sleep(SECONDS - 1)
        end, after = time.monotonic(), rig.served(what)
        stolen = Processors.now().stolen_ratio(processors)
    finally:
        assert fio.wait(30) == 0
    rate = (after - before) / (end - start)
    assert rate <= 1.05 * bound
    assert rate >= 0.95 * bound or stolen > 0.02  # by another machine

    groups.restore()
    assert memory.saved == {}
    for file in rig.group.glob("blkio.throttle.*_device"):
        assert file.read_text() == ""


def test_bfqs_weight_is_set_and_put_back(rig: Rig) -> None:
    scheduler = Path(f"/sys/block/{rig.disk.name}/queue/scheduler")
    if "bfq" not in scheduler.read_text():
        pytest.skip("this machine's kernel has no BFQ")
    before = scheduler.read_text().split("[")[1].split("]")[0]
    scheduler.write_text("bfq")
    try:
        groups = Cgroups(Memory())
        order = CgroupOrder({rig.number: IoMax()}, weight=800)
        groups.apply({"db1": order}, {"db1": rig.qemu})
        assert rig.read("blkio.bfq.weight") == "800"
        assert groups.weighted == {"db1": True}
        for rotational in (True, False):
            (scheduler.parent / "rotational").write_text(str(int(rotational)))
            assert is_hard_disk_with_bfq(rig.number) is rotational
        groups.restore()
        assert rig.read("blkio.bfq.weight") == "100"
    finally:
        scheduler.write_text(before)


def test_a_group_that_is_gone_is_passed_over(rig: Rig, tmp_path: Path) -> None:
    groups = Cgroups(Memory())
    order = CgroupOrder({rig.number: IoMax(riops=100)})
    groups.apply({"db1": order}, {"db1": rig.qemu})
    groups.apply({"db1": order}, {"db1": Process(rig.qemu.pid, rig.qemu.started + 1)})
    assert rig.read("blkio.throttle.read_iops_device") == ""
    assert not groups.errors


def test_a_device_that_the_kernel_does_not_know_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    groups = Cgroups(Memory())
    for riops in (100, 200, 300):
        groups.apply({"db1": CgroupOrder({"999:9": IoMax(riops=riops)})}, {"db1": rig.qemu})
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert groups.errors["cgroup"] == 3


VM = """
[[vm]]
name = "db1"
socket = "{socket}"
[vm.drives.vda]
limit = 400
[vm.drives.vdb]
limit = 200
[cgroup]
enabled = {enabled}
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        yield Path(name)


def test_an_agent_bounds_a_qemu_without_libvirt_and_puts_back_what_was_there(
    own: Path, short_folder: Path
) -> None:
    place = StoragePaths().places(str(short_folder))[-1]
    if place.number is None:
        pytest.skip(f"{short_folder} is on {place.name}, which is not a block device")
    number, group = place.number, own / "db1"
    bound = group / "blkio.throttle.read_iops_device"
    group.mkdir()
    qemu, socket = start_qemu(short_folder)
    agents = []

    def agent(*, enabled: bool) -> Agent:
        vm = VM.format(socket=socket, enabled=str(enabled).lower())
        agents.append(Agent(short_folder, vm))
        return agents[-1].start()

    def is_bound(riops: int) -> bool:
        return bound.read_text() == f"{number} {riops}\n"

    try:
        (group / "cgroup.procs").write_text(str(qemu.pid))
        bound.write_text(f"{number} 90000")
        first = agent(enabled=True)
        # 4K costs 1, so that is the most reads of (400 + 200) * 1.25.
        eventually(partial(is_bound, 750), what=f"the bound\n{first.log()}")
        held = first.ask("/v1/vms")[0]["cgroup"]
        assert held[f"blkio.throttle.read_iops_device {number}"] == "750"
        first.stop(signal.SIGKILL)
        assert is_bound(750)
        without = agent(enabled=False)
        eventually(partial(is_bound, 90000), what="what was there before")
        without.stop()
        second = agent(enabled=True)
        eventually(partial(is_bound, 750), what="the bound again")
        for enabled, riops in (("false", 90000), ("true", 750)):
            text = second.config.read_text()
            table = rf"\1 {enabled}"
            second.config.write_text(re.sub(r"(\[cgroup\]\nenabled =) \w+", table, text))
            second.send(signal.SIGHUP)
            eventually(partial(is_bound, riops), what=f"a bound of {riops}")
        assert second.stop() == 0
        assert is_bound(750), "no agent, no more I/O"
        done = iokeel("agent", "--release", "--config", second.config)
        assert done.status == 0, done.err
        assert is_bound(90000)
    finally:
        for each in agents:
            each.end()
        qemu.kill()
        qemu.wait()
        group.rmdir()
