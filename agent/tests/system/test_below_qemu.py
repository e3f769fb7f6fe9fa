"""What images and block jobs do below QEMU's throttle, in a cgroup of this machine's (v1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.host.cgroup.place import io_hierarchy
from iokeel.host.process import is_guest
from testing.agents import HostAgent, iokeel
from testing.lab.guests.domain import DiskSpec, domain_xml, folder_in_memory, make_disk
from testing.lab.guests.migration import migrate
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from testing.workers import Alone
from tests.system.rig import policy

# Its QEMU is found by this name among those of all tests.
NAME = f"below-{os.getpid()}"
LIMIT = 1000
RATE = 20_000_000
"""Of block jobs: it takes many times the bytes that a limit of LOW lets pass."""
LOW = 100
SECONDS = 12
BLKDISCARD = Path("/usr/sbin/blkdiscard")
ZEROES_BYTES = 256 << 20
MOST_S = 60
"""For zeroes that the bound would hold for minutes, on a machine that is busy."""
BACKUP = """
<domainbackup>
  <disks>
    <disk name='vda' type='file'><target file='{file}'/><driver type='qcow2'/></disk>
  </disks>
</domainbackup>
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    hierarchy = io_hierarchy()
    if hierarchy is None or hierarchy.version != 1:
        pytest.skip("this machine's kernel has no blkio mounted")
    with folder_in_memory("below") as made:
        yield made


@contextmanager
def loop(file: Path) -> Iterator[Path]:
    disk = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    try:
        yield Path(disk)
    finally:
        subprocess.run(["losetup", "--detach", disk], check=True)


@contextmanager
def guest(
    host: Host, drive: DiskSpec, limit: int = LIMIT, emulator: Path | None = None
) -> Iterator[tuple[Vm, Path]]:
    """Run a guest in a group of its own, which has to be empty before it goes."""
    hierarchy = io_hierarchy()
    assert hierarchy is not None
    group = hierarchy.folder / f"iokeel-below-{os.getpid()}"
    promise = policy(f'target="{drive.target}" limit="{limit}"')
    group.mkdir()
    try:
        try:
            vm = Vm(host, NAME)
            made = image((BLKDISCARD,))
            vm.define(domain_xml(NAME, [drive], image=made, folder=host.dir, policy=promise,
                                 emulator=emulator))  # fmt: skip
            vm.start()
            with vm:
                (group / "cgroup.procs").write_text(str(qemu_of_guest()))
                yield vm, group
        finally:
            host.virsh("undefine", NAME)  # the next test's has its name
        eventually(lambda: not (group / "cgroup.procs").read_text(), what="QEMU to end")
    finally:
        group.rmdir()


def qemu_of_guest() -> int:
    """Return the process of the guest's QEMU. The host's own pid files have another's numbers."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return next(pid for pid in pids if is_guest(pid, NAME))


def fio(vm: Vm, kind: str, seconds: int = SECONDS, kib: int = 4) -> float:
    """Return the requests a second, after some seconds at the start in which limits fit to them."""
    done = vm.exec(
        f"fio --name=x --filename=/dev/vda --ioengine=libaio --direct=1 --rw={kind} --bs={kib}k"
        f" --iodepth=32 --time_based --ramp_time=4 --runtime={seconds} --output-format=json"
    )
    (job,) = json.loads(done.stdout)["jobs"]
    return float(job["write" if "write" in kind else "read"]["iops"])


def bounded(group: Path) -> bool:
    return bool((group / "blkio.throttle.read_bps_device").read_text().strip())


def why(agent: HostAgent) -> str:
    return iokeel("why", NAME, "vda", "--socket", agent.socket).out


@pytest.mark.alone
@pytest.mark.parametrize("cluster", ["64k", "2M"])
def test_copied_clusters_do_not_keep_a_guest_below_its_limit(
    host: Host, folder: Path, alone: Alone, cluster: str
) -> None:
    base, top = make_disk(folder / "base.raw", 256), folder / "top"
    with top.open("wb") as file:
        file.truncate(1 << 30)
    # Large clusters copy 2 MiB a write, so few fit into the memory's speed.
    limit = LIMIT if cluster == "64k" else 20
    with ExitStack() as stack:
        below, above = stack.enter_context(loop(base)), stack.enter_context(loop(top))
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-o", f"cluster_size={cluster}",
             "-F", "raw", "-b", below, above, "256M"], check=True,
        )  # fmt: skip
        drive = DiskSpec("vda", above, format="qcow2")
        vm, group = stack.enter_context(guest(host, drive, limit))
        agent = stack.enter_context(HostAgent(host))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        stack.enter_context(alone())
        # At 20 requests a second, what the first ones wait for is a tenth of ten seconds.
        assert fio(vm, "randwrite", 4 if limit == LIMIT else 30) >= 0.9 * limit, why(agent)


@pytest.mark.alone
def test_a_backup_has_its_rate_and_the_guest_its_limit(
    host: Host, folder: Path, alone: Alone
) -> None:
    image = make_disk(folder / "disk.raw", 700)
    with ExitStack() as stack:
        disk = stack.enter_context(loop(image))
        vm, group = stack.enter_context(guest(host, DiskSpec("vda", disk)))
        agent = stack.enter_context(HostAgent(host, f"[jobs]\nbps = {RATE}\n"))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        backup = folder / "backup.qcow2"
        stack.enter_context(alone())
        host.virsh("backup-begin", NAME, "/dev/stdin", input=BACKUP.format(file=backup))
        see_both_go_on(host, vm, agent, LIMIT)
        assert bounded(group)

        agent.stop(signal.SIGKILL)
        text = agent.config.read_text()
        agent.config.write_text(text.replace(f"bps = {RATE}", f"bps = {2 * RATE}"))
        agent.start()
        # A speed that isn't its own rate is somebody's.
        eventually(lambda: "set by somebody else" in why(agent), what="the job")
        host.virsh("domjobabort", NAME)
        eventually(lambda: "backup job" not in why(agent), what="its end")


def see_both_go_on(host: Host, vm: Vm, agent: HostAgent, limit: float, kib: int = 4) -> None:
    """See that a job has its rate while the guest has its limit, in reads of a size a second."""
    eventually(lambda: f"is held to {RATE // 10**6} MB/s" in why(agent), what="the rate")
    started, before = time.monotonic(), progress(host)
    assert fio(vm, "randread", 8, kib) >= 0.8 * limit, why(agent)
    done = (progress(host) - before) / (time.monotonic() - started)
    assert 0.8 * RATE <= done <= 1.2 * RATE


@pytest.mark.alone
def test_a_commit_has_its_rate_and_the_guest_its_limit(
    host: Host, folder: Path, alone: Alone
) -> None:
    base, top = make_disk(folder / "base.raw", 400), folder / "top"
    with top.open("wb") as file:
        file.truncate(1 << 30)
    with ExitStack() as stack:
        below, above = stack.enter_context(loop(base)), stack.enter_context(loop(top))
        words = ("create", "-q", "-f", "qcow2", "-F", "raw", "-b", below, above, "400M")
        subprocess.run(["qemu-img", *words], check=True)
        subprocess.run(["qemu-io", "-c", "write -q -P 7 0 400M", above], check=True)
        drive = DiskSpec("vda", above, format="qcow2")
        vm, group = stack.enter_context(guest(host, drive, LOW))
        agent = stack.enter_context(HostAgent(host, f"[jobs]\nbps = {RATE}\n"))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        stack.enter_context(alone())
        host.virsh("blockcommit", NAME, "vda", "--active")
        see_both_go_on(host, vm, agent, LOW)
        assert bounded(group)
        host.virsh("blockjob", NAME, "vda", "--abort")


@pytest.mark.alone
def test_a_migration_copies_storage_at_its_rate_and_the_guest_has_its_limit(
    host: Host, folder: Path, alone: Alone
) -> None:
    image, there = make_disk(folder / "disk.raw", 400), folder / "there.raw"
    with there.open("wb") as file:
        file.truncate(image.stat().st_size)
    with ExitStack() as stack:
        target = stack.enter_context(Host.trixie() if host.suite == "trixie" else Host.bookworm())
        target.start_libvirtd()
        disk, copy = stack.enter_context(loop(image)), stack.enter_context(loop(there))
        vm, group = stack.enter_context(guest(host, DiskSpec("vda", disk), LOW))
        agent = stack.enter_context(HostAgent(host, f"[jobs]\nbps = {RATE}\n"))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        stack.enter_context(alone())
        assert fio(vm, "randread", 6) >= 0.9 * LOW, why(agent)
        with ThreadPoolExecutor(1) as threads:
            moving = threads.submit(migrate, NAME, host, target, copies={disk: copy})
            try:
                # Other limits fit these reads, and libvirt changes none while a guest migrates.
                see_both_go_on(host, vm, agent, LOW / DEFAULT_MODEL.read.cost(16 << 10), kib=16)
                assert bounded(group)
            finally:
                host.run(["virsh", "domjobabort", NAME], check=False)
            with pytest.raises(RuntimeError, match=r"cancell?ed|aborted"):
                moving.result()


def progress(host: Host) -> int:
    """Return the bytes that the job has copied, by QEMU's count."""
    asked = json.dumps({"execute": "query-block-jobs"})
    (job,) = json.loads(host.virsh("qemu-monitor-command", NAME, asked))["return"]
    return int(job["offset"])


@pytest.mark.alone
def test_a_job_without_a_rate_runs_free_beside_the_guest_and_bounds_come_back(
    host: Host, folder: Path, alone: Alone
) -> None:
    image = make_disk(folder / "disk.raw", 700)
    with ExitStack() as stack:
        disk = stack.enter_context(loop(image))
        vm, group = stack.enter_context(guest(host, DiskSpec("vda", disk)))
        agent = stack.enter_context(HostAgent(host))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        copy = f"<disk type='file'><driver type='raw'/><source file='{folder}/copy.raw'/></disk>"
        host.virsh("blockcopy", NAME, "vda", "--xml", "/dev/stdin", "--transient-job",
                   "--bandwidth", "100", input=copy)  # fmt: skip
        eventually(lambda: "is held to 105 MB/s, set by somebody else" in why(agent), what="job")
        assert bounded(group)
        host.virsh("blockjob", NAME, "vda", "--bandwidth", "0")
        eventually(lambda: not bounded(group) or "mirror" not in why(agent), what="no bounds")
        stack.enter_context(alone())
        assert fio(vm, "randread", 4) >= 0.9 * LIMIT, why(agent)
        host.virsh("blockjob", NAME, "vda", "--abort")
        eventually(lambda: bounded(group), what="the bounds again")


@pytest.mark.parametrize("target", ["vda", "sda"])
def test_no_bound_holds_zeroes_on_a_block_device_for_minutes(
    host: Host, folder: Path, target: str
) -> None:
    """While the kernel zeroes a device, libvirt can't read its size, nor anything of the domain."""
    file = make_disk(folder / "disk.raw", 64)
    os.truncate(file, 1 << 30)
    with ExitStack() as stack:
        disk = stack.enter_context(loop(file))
        vm, group = stack.enter_context(guest(host, DiskSpec(target, disk), LOW))
        agent = stack.enter_context(HostAgent(host))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        held_s = ZEROES_BYTES / bound(group)
        assert held_s > 4 * MOST_S
        vm.start_program(
            f"fio --name=x --filename=/dev/{target} --ioengine=libaio --direct=1 --size=60m"
            " --time_based --runtime=600 --rw=randread --bs=4k --iodepth=16"
        )
        eventually(lambda: reads(agent, target) > 0.8 * LOW, 60)
        before = agent.drive(NAME, target)["write_bytes"]
        words = f"-z -o {256 << 20} -l {ZEROES_BYTES} /dev/{target}"
        zeroing = vm.start_program(f"exec /usr/bin/blkdiscard {words}")
        assert vm.wait(zeroing, MOST_S).status == 0
        eventually(lambda: reads(agent, target) > 0.8 * LOW, 60)
        assert agent.drive(NAME, target)["write_bytes"] >= before + ZEROES_BYTES


def bound(group: Path) -> int:
    """Return the bytes a second that a group may write."""
    return int((group / "blkio.throttle.write_bps_device").read_text().split()[1])


def reads(agent: HostAgent, target: str) -> float:
    return agent.drive(NAME, target)["raw_read_iops"] or 0.0
