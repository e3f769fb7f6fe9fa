"""A lab host is a real hypervisor: limits hold, guests outlive libvirtd, and nothing stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.needs import missing
from testing.waiting import eventually

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

FIO = (
    "fio --name=job --filename=/dev/{disk} --rw=randread --bs=4k --iodepth=8 --ioengine=libaio "
    "--direct=1 --time_based --runtime={seconds} --output-format=json"
)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with getattr(Host, request.param)() as host:
        host.start_libvirtd()
        yield host


@pytest.fixture(scope="module")
def vm(host: Host) -> Iterator[Vm]:
    disk = make_disk(host.dir / "vda.img", 64)
    with Vm.boot(host, "g1", [DiskSpec("vda", disk, serial="first")]) as vm:
        yield vm


def _iops(vm: Vm, disk: str = "vda", seconds: int = 3) -> float:
    finished = vm.exec(FIO.format(disk=disk, seconds=seconds))
    return float(json.loads(finished.stdout)["jobs"][0]["read"]["iops"])


@pytest.mark.alone
def test_guest_is_held_to_the_limit_that_virsh_sets(host: Host, vm: Vm) -> None:
    host.virsh("blkdeviotune", "g1", "vda", "--total-iops-sec", "100")
    # QEMU lets a tenth of a second through at once: 3 % of three seconds.
    assert _iops(vm) == pytest.approx(103, rel=0.1)
    host.virsh("blkdeviotune", "g1", "vda", "--total-iops-sec", "0")
    assert _iops(vm, seconds=1) > 500


def test_guest_outlives_libvirtd(host: Host, vm: Vm) -> None:
    before = float(vm.read("/proc/uptime").split()[0])
    host.kill_libvirtd()
    assert vm.exec(["uname", "-s"]).stdout == b"Linux\n"
    host.start_libvirtd()
    assert vm.running()
    host.restart_libvirtd()
    assert vm.running()
    assert float(vm.read("/proc/uptime").split()[0]) > before


def test_libvirt_answers_outside_and_inside_at_the_same_address(host: Host, vm: Vm) -> None:
    ask = ["virsh", "--connect", host.uri, "domstate", "g1"]
    outside = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert outside.stdout.strip() == host.run(ask).stdout.strip() == "running"


@pytest.mark.alone
def test_disk_can_be_plugged_and_unplugged(host: Host, vm: Vm) -> None:
    disk = make_disk(host.dir / "vdb.img", 16)
    vm.attach(DiskSpec("vdb", disk, iotune={"total_iops_sec": 50}))
    assert _iops(vm, "vdb", seconds=2) == pytest.approx(52, rel=0.15)
    vm.detach("vdb")
    vm.exec("while [ -b /dev/vdb ]; do usleep 10000; done")


def test_image_has_both_kinds_of_disk(host: Host) -> None:
    disks = [DiskSpec(name, make_disk(host.dir / f"g3-{name}.img", 1)) for name in ("vda", "sda")]
    with Vm.boot(host, "g3", disks) as vm:
        assert vm.exec("ls /dev/sda /dev/vda").stdout == b"/dev/sda\n/dev/vda\n"


def test_files_of_several_megabytes_pass_both_ways(vm: Vm) -> None:
    content = os.urandom(3_000_000)
    vm.write("/tmp/there", content)
    vm.exec("cp /tmp/there /tmp/back")
    assert vm.read("/tmp/back") == content


def test_program_that_fails_says_why(vm: Vm) -> None:
    finished = vm.exec("echo out; echo err >&2; exit 3", check=False)
    assert (finished.status, finished.stdout, finished.stderr) == (3, b"out\n", b"err\n")
    with pytest.raises(RuntimeError, match="err"):
        vm.exec("echo err >&2; exit 3")


@pytest.mark.alone
def test_clock_offset_puts_guest_times_on_the_hosts_line(vm: Vm) -> None:
    offset = vm.clock_offset()
    assert offset.error_s < 0.05
    earliest = time.time()
    guest = float(vm.exec("adjtimex | awk '/tv_sec/{s=$2} /tv_usec/{u=$2} END{printf \"%d.%06d\", "
                          "s, u}'").stdout)  # fmt: skip
    assert earliest - 0.05 <= guest - offset.seconds <= time.time() + 0.05


def test_power_button_ends_the_guest_and_it_starts_again(vm: Vm) -> None:
    vm.shutdown()
    vm.start()
    assert vm.exec(["cat", "/sys/block/vda/serial"]).stdout == b"first"


@pytest.fixture
def group(host: Host) -> Iterator[Vm]:
    """A guest whose two disks are in one throttle group."""
    disks = [
        DiskSpec(target, make_disk(host.dir / f"g2-{target}.img", 16), throttle_groups=["tenant"])
        for target in ("vda", "vdb")
    ]
    groups = {"tenant": {"total_iops_sec": 100}}
    with Vm.boot(host, "g2", disks, throttle_groups=groups) as vm:
        yield vm


@pytest.mark.alone
@pytest.mark.parametrize("host", ["trixie"], indirect=True)  # libvirt 11.2 brought the groups
def test_throttle_group_is_shared_by_its_disks(group: Vm) -> None:
    other = group.start_program(FIO.format(disk="vdb", seconds=5))
    assert _iops(group) == pytest.approx(50, rel=0.25)
    group.wait(other)


def _left_of(folder: str) -> list[str]:
    """Return the processes and mounts that still name a host's folder."""
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if folder in words:
            left.append(words.replace("\0", " ")[:200])
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return left + [line for line in mounts if folder in line]


def test_nothing_is_left_after_close() -> None:
    with Host.bookworm() as host:
        host.start_libvirtd()
        make_disk(host.dir / "vda.img", 1)
        Vm.boot(host, "g1", [DiskSpec("vda", host.dir / "vda.img")], ready=False)
        stray = host.popen(["sleep", "1000"])
        assert _left_of(str(host.dir))
    assert not _left_of(str(host.dir))
    assert not host.dir.exists()
    assert stray.returncode == -signal.SIGKILL


OWNER = """
import signal
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.host import Host
from testing.lab.guests.vm import Vm
host = Host.bookworm()
host.start_libvirtd()
disk = DiskSpec("vda", make_disk(host.dir / "vda.img", 1))
vm = Vm.boot(host, "g1", [disk], ready=False)
print(host.dir, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_ended_by(number: signal.Signals) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environ, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert owner.stdout
        folder = owner.stdout.readline().strip()
        assert any("qemu-system" in words for words in _left_of(folder))
        owner.send_signal(number)
        owner.wait()
    finally:
        owner.kill()
        owner.wait()

    def gone() -> bool:
        assert not _left_of(folder)
        return not Path(folder).exists()

    eventually(gone, 60)
