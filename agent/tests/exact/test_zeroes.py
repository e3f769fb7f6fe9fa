"""A guest that writes zeroes on the patched QEMU, which lets other requests pass in between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.lab.qemu import patched
from testing.waiting import eventually
from testing.workers import Alone
from tests.exact.guests import groups
from tests.system.rig import policy
from tests.system.test_below_qemu import NAME, bounded, guest, loop

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
BLKDISCARD = Path("/usr/sbin/blkdiscard")
LIMIT = 100
MIB = 1 << 20
STOPPED_S = 6.0  # of a read that comes alone: it waits for a piece of 1 MiB, which takes 1.5 s
ZEROES_MIB = 24  # half a minute of the limit beside reads that take the other half


@pytest.fixture(params=["vda", "sda"])
def drive(request: pytest.FixtureRequest, host: Host) -> Iterator[tuple[Vm, str]]:
    """A guest that reads all it can, on virtio-blk or virtio-scsi, and its drive."""
    target: str = request.param
    disk = DiskSpec(target, make_disk(host.dir / f"{target}.raw", 128), discard=True)
    wanted = policy(f'target="{target}" limit="{LIMIT}"')
    vm = Vm(host, "db1")
    vm.define(domain_xml("db1", [disk], image=image((BLKDISCARD,)), folder=host.dir, policy=wanted,
                         emulator=patched(host)))  # fmt: skip
    vm.start()
    with vm:
        vm.start_program(
            f"fio --name=x --filename=/dev/{target} --ioengine=libaio --direct=1 --size=60m"
            " --time_based --runtime=600 --rw=randread --bs=4k --iodepth=16"
        )
        yield vm, target
    host.virsh("undefine", "db1")  # the next one has its name


def counted(host: Host, vm: str = "db1") -> tuple[float, int]:
    """Return the cost of the drive's writes, and its reads, by QEMU's own count."""
    (group,) = groups(host, vm)
    return float(group["write"]["cost"]), int(group["read"]["requests"])


def test_zeroes_are_counted_and_charged_and_reads_go_on(
    drive: tuple[Vm, str], host: Host, agent: HostAgent
) -> None:
    vm, target = drive

    def now(name: str) -> float:
        return agent.drive("db1", target)[name] or 0.0

    eventually(lambda: now("raw_read_iops") > 0.8 * LIMIT, 120)
    assert agent.drive("db1", target)["mode"] == "exact"
    (cost, _), written = counted(host), now("write_bytes")
    words = f"-o {64 * MIB} -l {ZEROES_MIB * MIB} /dev/{target}"
    zeroing = vm.start_program(f"exec /usr/bin/blkdiscard -z {words}")
    price = DEFAULT_MODEL.write.cost(ZEROES_MIB * MIB)
    seen = [counted(host)]
    while seen[-1][0] < cost + 0.9 * price:
        vm.exec("sleep 4")
        seen.append(counted(host))
    print(seen)
    assert len(seen) > 4
    assert all(then[1] > before[1] for before, then in pairwise(seen)), "reads go on"
    assert vm.wait(zeroing, 120).status == 0
    assert counted(host)[0] - cost == pytest.approx(price, 0.01)
    eventually(lambda: now("write_bytes") >= written + ZEROES_MIB * MIB, 30)

    cost = counted(host)[0]
    vm.exec(f"exec /usr/bin/blkdiscard {words}")
    assert counted(host)[0] == cost, "discards pass no throttle of a drive"


@pytest.mark.alone
@pytest.mark.parametrize("target", ["vda", "sda"])
def test_on_a_block_device_no_zeroes_stop_the_guest_for_more_than_seconds(
    host: Host, folder: Path, alone: Alone, target: str
) -> None:
    """Linux charges zeroes on a block device to the VM's cgroup, as data."""
    with ExitStack() as stack:
        disk = stack.enter_context(loop(make_disk(folder / "disk.raw", 128)))
        spec = DiskSpec(target, disk, discard=True)
        vm, group = stack.enter_context(guest(host, spec, LIMIT, patched(host)))
        agent = stack.enter_context(HostAgent(host))
        eventually(lambda: bounded(group), what=f"bounds\n{agent.log()}")
        assert agent.drive(NAME, target)["mode"] == "exact"
        stack.enter_context(alone())
        reading = vm.start_program(
            f"exec fio --name=x --filename=/dev/{target} --ioengine=libaio --direct=1 --size=60m"
            " --time_based --runtime=600 --rw=randread --bs=4k --output-format=json"
            " --output=/tmp/reads.json"
        )
        eventually(lambda: (agent.drive(NAME, target)["raw_read_iops"] or 0) > 0.5 * LIMIT, 120)
        (cost, reads), began_s = counted(host, NAME), time.monotonic()
        words = f"-o {64 * MIB} -l {ZEROES_MIB * MIB} /dev/{target}"
        zeroing = vm.start_program(f"exec /usr/bin/blkdiscard -z {words}")
        assert vm.wait(zeroing, 300).status == 0
        took_s = time.monotonic() - began_s
        spent, done = counted(host, NAME)
        vm.exec(f"kill -INT {reading}")  # it tells what it did
        vm.wait(reading, 60)
        told = vm.read("/tmp/reads.json").decode()
        (job,) = json.loads(told[told.index("{") :])["jobs"]  # after the word of the signal
        longest_s = job["read"]["clat_ns"]["max"] / 1e9
        print(longest_s, took_s, spent - cost, done - reads)
        assert bounded(group)
    assert spent - cost >= 0.99 * DEFAULT_MODEL.write.cost(ZEROES_MIB * MIB)
    # One piece is let through as a whole, and paid afterwards.
    assert spent - cost + done - reads <= LIMIT * took_s + 2 * DEFAULT_MODEL.write.cost(MIB)
    assert longest_s < STOPPED_S
