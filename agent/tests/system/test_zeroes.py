"""A guest that writes zeroes and flushes, on stock QEMU: `blkdiscard -z` in the guest itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy

pytestmark = pytest.mark.timeout(600)
BLKDISCARD = Path("/usr/sbin/blkdiscard")
GIB = 1 << 30
FIO = (
    "fio --name=x --filename=/dev/vda --ioengine=libaio --direct=1 --size=60m --time_based"
    " --runtime=600 --rw=randread --bs=4k --iodepth=16"
)


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    """A guest that reads all it can from a disk of 8 GiB, most of which is a hole."""
    disk = make_disk(host.dir / "z.raw", 64)
    subprocess.run(["truncate", "--size", "8G", disk], check=True)
    text = domain_xml("db1", [DiskSpec("vda", disk)], image=image((BLKDISCARD,)), folder=host.dir,
                      policy=policy('target="vda" limit="1000"'))  # fmt: skip
    with Vm(host, "db1") as vm:
        vm.define(text)
        vm.start()
        vm.start_program(FIO)
        yield vm


def zero(guest: Vm, offset: int, length: int) -> int:
    """Begin to write zeroes, and return the program's id."""
    return guest.start_program(f"exec /usr/bin/blkdiscard -z -o {offset} -l {length} /dev/vda")


def reads(agent: HostAgent) -> bool:
    return (agent.drive("db1")["raw_read_iops"] or 0) > 200


def test_a_guest_goes_on_reading_after_it_has_zeroed_a_gib(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: "total_bytes_sec" in blkdeviotune(agent.host, "db1"), 120)
    held = blkdeviotune(agent.host, "db1")
    assert GIB / held["total_bytes_sec"] > 120, (
        "the limits take zeroes for data, and would hold it for minutes"
    )
    before = agent.drive("db1")["write_bytes"]
    program = zero(guest, GIB, GIB)
    eventually(lambda: "wrote at least" in agent.why("db1"), 60)
    eventually(lambda: reads(agent), 60)
    assert guest.wait(program, 60).status == 0
    assert agent.drive("db1")["write_bytes"] >= before + GIB
    eventually(lambda: "the drive writes no more zeroes" in agent.why("db1"), 60)
    eventually(lambda: blkdeviotune(agent.host, "db1") == held, 60)
    eventually(lambda: reads(agent), 60)


def test_it_reads_while_it_zeroes_more(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: reads(agent), 120)
    program = zero(guest, GIB, 7 * GIB)
    eventually(lambda: "reads and writes have half of its rate" in agent.why("db1"), 60)
    done = agent.drive("db1")["write_bytes"]
    eventually(lambda: agent.drive("db1")["write_bytes"] > done and reads(agent), 60)
    assert guest.wait(program, 120).status == 0


def test_flushes_are_counted_and_discards_only_over_qmp(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: agent.drive("db1")["flush_requests"] is not None, 60)
    before = agent.drive("db1")["flush_requests"]
    guest.exec("dd if=/dev/zero of=/dev/vda bs=4096 seek=16384 count=8 conv=fsync")
    eventually(lambda: agent.drive("db1")["flush_requests"] > before, 60)
    assert agent.drive("db1")["discard_requests"] is None
