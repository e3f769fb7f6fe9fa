"""libvirt in a container: its paths are others than the host's, and the agent runs outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.host.cgroup.place import io_hierarchy
from testing.agents import Agent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy

pytestmark = pytest.mark.timeout(600)
SIZE_MIB = 32
INSTANCES = Path("/var/lib/nova/instances")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


def test_a_drive_is_on_the_storage_that_its_qemu_sees(host: Host, tmp_path: Path) -> None:
    """Its path is there outside, too, but on another storage."""
    volume = host.dir / "volume"
    volume.mkdir()
    disk = make_disk(volume / "vm.raw", 8)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        shutil.copy(disk, folder)
        host.run(["mkdir", "/run/images"])  # of the container's own
        for point in (volume, "/run/images"):
            host.run(["mount", "--bind", folder, point])
        wanted = policy('target="vda" limit="500"', 'target="vdb" limit="500"')
        drives = [DiskSpec("vda", disk), DiskSpec("vdb", Path("/run/images/other.raw"))]
        shutil.copy(disk, Path(folder, "other.raw"))
        with (
            Vm.boot(host, "db1", drives, policy=wanted, ready=False),
            Agent(tmp_path, libvirt=f'uri = "{host.uri}"') as agent,
        ):
            for target in ("vda", "vdb"):
                eventually(lambda: agent.drive("db1", target)["storage"] == "/dev/shm")  # noqa: B023
                assert agent.drive("db1", target)["limit_iops"] == 500


@pytest.fixture
def device(host: Host) -> Iterator[Path]:
    """Return a block device that is mounted at Nova's folder, in the container alone."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:  # no device is below it
        os.truncate(file.name, (SIZE_MIB + 32) << 20)
        subprocess.run(["mkfs.ext4", "-q", file.name], check=True)
        attach = ["losetup", "--find", "--show", file.name]
        found = subprocess.check_output(attach, text=True).strip()
        try:
            host.run(["mkdir", "-p", INSTANCES])
            host.run(["mount", found, INSTANCES])
            host.run(["mkdir", INSTANCES / "x"])
            yield Path(found)
            host.run(["umount", INSTANCES])
        finally:
            subprocess.run(["losetup", "--detach", found], check=True)


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a cgroup for one that libvirt would make, which the lab's doesn't."""
    hierarchy = io_hierarchy()
    if hierarchy is None or hierarchy.version != 1:
        pytest.skip("this machine's kernel has no blkio mounted (it has v2, which a guest tries)")
    folder = hierarchy.folder / f"iokeel-test-{os.getpid()}/qemu-1-db2.libvirt-qemu"
    folder.mkdir(parents=True)
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text(), what="the guest has ended")
    folder.rmdir()
    folder.parent.rmdir()


def sectors_read(device: Path) -> int:
    """Return how much the kernel has read from a device, in sectors of 512 bytes."""
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[2] == device.name:
            return int(fields[5])
    raise AssertionError(f"no {device.name} in /proc/diskstats")


def qemu_of(uuid: str) -> int:
    """Return the pid of a guest's QEMU, as this machine numbers it."""
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        words = found.read_bytes().split(b"\0")
        if b"-uuid" in words and uuid.encode() in words:
            return int(found.parent.name)
    raise AssertionError(f"no QEMU with the UUID {uuid}")


def test_a_guest_in_a_container_is_held_and_its_device_and_its_cgroup_are_found(
    host: Host, device: Path, group: Path, tmp_path: Path
) -> None:
    """Outside, neither its disk nor libvirt's pid file is there, and its pid is another."""
    disk = make_disk(tmp_path / "disk", SIZE_MIB)
    copy = INSTANCES / "x/disk"
    with disk.open("rb") as data:
        subprocess.run(host.namespace.argv(["tee", copy]), stdin=data, stdout=subprocess.DEVNULL,
                       check=True)  # fmt: skip
    assert not copy.exists()
    assert not Path("/run/libvirt/qemu/db2.pid").exists()
    wanted = policy('target="vda" limit="500"')
    with Vm.boot(host, "db2", [DiskSpec("vda", copy)], policy=wanted) as vm:
        pid = qemu_of(host.virsh("domuuid", "db2").strip())
        assert host.run(["cat", "/run/libvirt/qemu/db2.pid"]).stdout.strip() != str(pid)
        (group / "cgroup.procs").write_text(str(pid))
        with Agent(tmp_path, libvirt=f'uri = "{host.uri}"') as agent:
            eventually(lambda: agent.drive("db2")["storage"] == device.name)
            eventually(lambda: 0 < highest_rate(blkdeviotune(host, "db2")) <= 1.2 * 500)
            number = Path("/sys/class/block", device.name, "dev").read_text().strip()
            bound = f"blkio.throttle.read_iops_device {number}"
            eventually(lambda: bound in agent.ask("/v1/vms")[0]["cgroup"])
            assert f"{number} " in (group / "blkio.throttle.read_iops_device").read_text()

            before = sectors_read(device)
            vm.exec("dd if=/dev/vda of=/dev/null bs=64k count=64 iflag=direct", timeout=240)
            assert sectors_read(device) - before >= 64 * 128
            (storage,) = agent.ask("/v1/storages")
            assert storage["storage"] == device.name
            assert storage["busy_ratio"] is not None, "by the device's own counters"
            vm.destroy()
