"""What offers have beside a limit, on a real guest: bytes, a limit of writes, credit at a boot."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from testing.workers import Alone
from tests.system.rig import blkdeviotune, policy
from tests.system.test_rules import NONE, SOLD

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]
MB = 10**6
RUN_S = 8
# A bucket holds a tenth of a second, and so does each change of limits.
MOST = 1.25


@pytest.fixture
def started(host: Host) -> Iterator[Callable[[Mapping[str, int]], Vm]]:
    """Starts a guest as a platform does that sells limits."""
    vm = Vm(host, "server")

    def start(iotune: Mapping[str, int]) -> Vm:
        drives = [DiskSpec("vda", make_disk(host.dir / "sold.raw", 64), iotune)]
        vm.define(domain_xml("server", drives, image=image(), folder=host.dir))
        vm.start()
        return vm

    yield start
    vm.destroy()
    host.virsh("undefine", "server")


def test_a_guest_begins_with_credit_when_it_boots_and_not_when_it_is_restored(
    host: Host,
) -> None:
    drives = [DiskSpec("vda", make_disk(host.dir / "boots.raw", 16))]
    given = policy('target="vda" limit="500" burst="1000" start-credit-seconds="50"')
    text = domain_xml("server", drives, image=image(), folder=host.dir, policy=given)
    with HostAgent(host) as agent, ExitStack() as after:
        agent.stop()
        vm = Vm(host, "server")
        vm.define(text)
        after.callback(host.virsh, "undefine", "server")
        after.callback(vm.destroy)
        vm.launch()
        agent.start()  # it doesn't know for how long the guest has run
        eventually(lambda: agent.says("server/vda: limits set"))
        assert agent.drive("server")["credit_s"] < 30
        before = agent.log().count("server/vda: limits set")
        with vm.saved():
            pass
        eventually(lambda: agent.log().count("server/vda: limits set") > before)
        assert agent.drive("server")["credit_s"] < 30
        vm.destroy()
        host.virsh("start", "server", "--paused")  # as Nova does until the network is there
        host.virsh("resume", "server")
        eventually(lambda: agent.ask("/v1/vms") and agent.drive("server")["credit_s"] > 40)
        assert agent.drive("server")["burst_open"]


def fio(vm: Vm, kind: str, size: str) -> tuple[float, float]:
    """Return the bytes and the requests a second that fio counts in a guest."""
    way = kind.removeprefix("rand")
    out = vm.exec(
        f"fio --name=x --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=4 --rw={kind}"
        f" --bs={size} --time_based --runtime={RUN_S} --output-format=json",
        timeout=120,
    ).stdout
    (job,) = json.loads(out)["jobs"]
    return job[way]["bw_bytes"], job[way]["iops"]


def begin(vm: Vm, kind: str, size: str) -> int:
    """Have a guest do all that it may, and return the program's id."""
    return vm.start_program(
        f"exec fio --name=x --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=4"
        f" --rw={kind} --bs={size} --time_based --runtime=600"
    )


def test_bytes_that_a_platform_sells_hold_beside_its_iops(
    host: Host, started: Callable[[Mapping[str, int]], Vm], alone: Alone
) -> None:
    sold = {"total_bytes_sec": 2 * MB, "total_iops_sec": 900}
    with HostAgent(host, SOLD) as agent:
        guest = started(sold)
        eventually(lambda: agent.drive("server")["limit_iops"] == 900)
        eventually(lambda: "size_iops_sec" in blkdeviotune(host, "server"), 60)
        with alone():
            bps, _ = fio(guest, "randread", "64k")
        assert bps <= MOST * 2 * MB
        program = begin(guest, "randread", "64k")
        eventually(lambda: agent.drive("server")["binding"] == ["max-bytes"], 60)
        assert "Its max-bytes of 2 MB/s holds it." in agent.why("server")
        assert blkdeviotune(host, "server")["total_bytes_sec"] <= 2 * MB

        # It stays whatever becomes of the agent, and follows the platform.
        agent.stop()
        assert blkdeviotune(host, "server")["total_bytes_sec"] <= 2 * MB
        agent.start()
        eventually(lambda: agent.drive("server")["limit_iops"] == 900)
        agent.stop(signal.SIGKILL)
        assert blkdeviotune(host, "server")["total_bytes_sec"] <= 2 * MB
        agent.start()
        host.virsh("blkdeviotune", "server", "vda", "--live", "--total-bytes-sec", str(MB))
        eventually(lambda: blkdeviotune(host, "server").get("total_bytes_sec", 0) <= MB, 60)
        eventually(lambda: "max-bytes of 1 MB/s" in agent.why("server"), 60)
        guest.exec(f"kill {program}")
        agent.config.write_text(agent.config.read_text().replace(SOLD, NONE))
        agent.send(signal.SIGHUP)
        left = {"total_bytes_sec": MB, "total_iops_sec": 900}
        eventually(lambda: blkdeviotune(host, "server") == left, 60)


def test_bytes_alone_are_held_and_given_back(
    host: Host, started: Callable[[Mapping[str, int]], Vm], alone: Alone
) -> None:
    with HostAgent(host, SOLD) as agent:
        guest = started({"total_bytes_sec": 2 * MB})
        eventually(lambda: "max-bytes of 2 MB/s" in agent.why("server"), 60)
        assert blkdeviotune(host, "server") == {"total_bytes_sec": 2 * MB}
        with alone():
            bps, _ = fio(guest, "randread", "64k")
        assert bps <= MOST * 2 * MB
        agent.stop()
        with agent.popen([*agent.command, "agent", "--release", "--config", agent.config]) as last:
            assert last.wait(60) == 0
        assert blkdeviotune(host, "server") == {"total_bytes_sec": 2 * MB}


def test_reads_and_writes_that_are_sold_apart_each_have_their_own(
    host: Host, started: Callable[[Mapping[str, int]], Vm], alone: Alone
) -> None:
    sold = {"read_iops_sec": 600, "write_iops_sec": 150}
    with HostAgent(host, SOLD) as agent:
        guest = started(sold)
        eventually(lambda: "size_iops_sec" in blkdeviotune(host, "server"), 60)
        assert "writes of 150 iops" in agent.why("server")
        for kind, limit in (("randread", 600), ("randwrite", 150)):
            with alone():
                _, iops = fio(guest, kind, "4k")
            assert iops <= MOST * limit, kind
        program = begin(guest, "randwrite", "4k")
        eventually(lambda: agent.drive("server")["binding"] == ["limit-write"], 60)
        assert "Its limit-write of 150 iops holds it." in agent.why("server")
        guest.exec(f"kill {program}")
