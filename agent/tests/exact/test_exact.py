"""The agent with a QEMU that charges by the cost curve itself (make test-exact)."""

import json
from collections.abc import Iterator

import pytest

from benchmarks.demo.fio_log import Completions
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.qemu import patched
from testing.waiting import eventually
from tests.exact.guests import POINTS, exact, groups, monitor
from tests.system.rig import blkdeviotune, policy, set_metadata

MB = 10**6
pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    drives = [DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))]
    wanted = policy('target="vda" limit="2000"')
    with Vm.boot(host, "db1", drives, policy=wanted, emulator=patched(host)) as vm:
        yield vm


def test_curve_and_limit_are_in_force_and_virsh_shows_the_limit(
    guest: Vm, agent: HostAgent
) -> None:
    eventually(lambda: exact(agent.host, 2000))
    assert blkdeviotune(agent.host, "db1") == {"total_iops_sec": 2000}
    assert eventually(lambda: agent.drive("db1"))["mode"] == "exact"
    assert "by the cost curve itself" in agent.why("db1")


def test_only_a_domain_with_a_limit_is_tainted(host: Host, guest: Vm, agent: HostAgent) -> None:
    drives = [DiskSpec("vda", make_disk(host.dir / "other.raw", 64))]
    with Vm.boot(host, "db2", drives, emulator=patched(host)):
        eventually(lambda: agent.drive("db2")["raw_read_iops"] is not None)
        eventually(lambda: exact(host, 2000))
        assert "custom monitor" in host.virsh("dominfo", "db1")
        assert "custom monitor" not in host.virsh("dominfo", "db2")


def test_a_new_limit_keeps_the_curve(guest: Vm, agent: HostAgent) -> None:
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: exact(agent.host, 900))
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: exact(agent.host, 2000))


def test_a_curve_lost_to_a_change_by_hand_is_put_back(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(host, 2000))
    words = ["--total-iops-sec", "5000", "--size-iops-sec", "4096"]
    host.virsh("blkdeviotune", "db1", "vda", *words, "--live")
    eventually(lambda: agent.drive("db1")["overwritten"] == 1, 5)
    eventually(lambda: exact(host, 2000))


def test_a_curve_lost_behind_libvirts_back_is_put_back(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(host, 2000))
    (name,) = [group["name"] for group in groups(host)]
    limits = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 2000, "iops_rd": 0, "iops_wr": 0}
    extra: dict[str, list[object]] = {"cost-read": [], "cost-write": []}
    monitor(host, "block_set_io_throttle", id=name, __iokeel_extra=extra, **limits)
    assert [group["limits"].get("cost-read") for group in groups(host)] == [None]
    assert blkdeviotune(host, "db1") == {"total_iops_sec": 2000}
    eventually(lambda: exact(host, 2000), 3)
    eventually(lambda: agent.drive("db1")["overwritten"] == 1, 3)


def test_statistics_are_those_of_the_load(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(agent.host, 2000))
    before = eventually(lambda: agent.drive("db1")["read"])
    jobs = "--filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randread"
    apart = "--bs=16k --blockalign=32k --norandommap"  # or the guest may join two to one
    guest.exec(f"fio {jobs} {apart} --name=a --number_ios=3000 --output=/dev/null", timeout=90)

    def reads() -> bool:
        sizes = agent.drive("db1")["read"]["sizes"]
        return bool(sizes["16384"] - before["sizes"].get("16384", 0) == 3000)

    eventually(reads)
    after = agent.drive("db1")["read"]
    assert after["cost"] - before["cost"] == pytest.approx(3000 * 2.7)
    assert after["waited"] > before["waited"], "8100 at 2000 a second"


def test_a_drive_whose_policy_goes_gets_back_what_it_had_without_a_curve(
    guest: Vm, agent: HostAgent
) -> None:
    host = agent.host
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(host, 2000))
    set_metadata(host, "db1", "<policy/>")
    eventually(lambda: groups(host) == [])
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: exact(host, 2000))


def test_bytes_and_a_limit_of_writes_hold_beside_the_curve(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    bounded = '<drive target="vda" limit="2000" limit-write="300" max-bytes="3M"/>'
    set_metadata(host, "db1", f"<policy>{bounded}</policy>")
    wanted = {"iops-read": 2000, "iops-write": 300, "bps-read": 3 * MB, "bps-write": 3 * MB}

    def holds() -> bool:
        (limits,) = (group["limits"] for group in groups(host))
        return wanted.items() <= {**limits}.items() and bool(limits.get("cost-read") == POINTS)

    eventually(holds)
    assert "<read_bytes_sec>3000000</read_bytes_sec>" in host.virsh("dumpxml", "db1"), "fallback"
    options = "--filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=4 --time_based"
    for way, size, most in (("read", "64k", 3 * MB), ("write", "4k", 300 * 4096)):
        done = guest.exec(
            f"fio --name=x {options} --rw=rand{way} --bs={size} --runtime=8 --output-format=json",
            timeout=120,
        )
        (job,) = json.loads(done.stdout)["jobs"]
        assert job[way]["bw_bytes"] <= 1.05 * most
    load = guest.start_program(f"exec fio --name=x {options} --rw=randread --bs=64k --runtime=600")
    eventually(lambda: agent.drive("db1")["binding"] == ["max-bytes"], 60)
    assert "Its max-bytes of 3 MB/s holds it." in agent.why("db1")
    guest.exec(f"kill {load}")
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: exact(host, 2000))


def test_a_shift_needs_no_retune_and_every_second_is_at_the_limit(
    guest: Vm, agent: HostAgent
) -> None:
    eventually(lambda: exact(agent.host, 2000))
    common = "--filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw"
    logs = "--write_iops_log=/tmp/a --per_job_logs=0 --log_unix_epoch=1 --output=/dev/null"
    jobs = "--name=a --bs=8k --runtime=5 --name=b --bs=64k --startdelay=5 --runtime=5"
    options = f"{common} --norandommap --time_based --thread {logs}"
    jobs = jobs.replace("--name=b", f"--name=b {options}")
    guest.exec(f"rm -f /tmp/a*; fio {options} {jobs}", timeout=90)
    done = Completions.parse(guest.read("/tmp/a_iops.log"))
    rates = done.seconds(0, 10)
    # The first second has the tenth that a fresh bucket holds; the sixth the change of jobs.
    for second in (1, 2, 3, 7, 8):
        assert rates[second] <= 1.02 * 2000
        assert rates[second] >= 0.5 * 2000  # however slow the machine that emulates
    assert agent.drive("db1")["retunes"] == 0


def test_a_stopped_agent_leaves_limit_and_curve(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(agent.host, 2000))
    assert agent.stop() == 0
    assert exact(agent.host, 2000)
