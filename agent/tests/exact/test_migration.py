"""A guest that migrates under load between QEMUs with and without the patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.demo.fio_log import Completions
from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.migration import Watch, destroy, migrate
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.lab.qemu import patched, stock
from testing.waiting import eventually
from tests.exact.guests import exact
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(1800)  # the first run builds two QEMUs
LIMIT, RUN_S = 1000, 30
Emulator = Callable[[Host], Path]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    hooks = PROJECT / "libvirt-hooks"
    with Host.bookworm(hooks=hooks) as a, Host.bookworm(hooks=hooks) as b:
        for host in (a, b):
            host.start_libvirtd()
        yield [a, b]
        destroy("db1", [a, b])


@pytest.mark.parametrize(
    ("before", "after"), [(patched, stock), (stock, patched), (patched, patched)]
)
def test_a_guest_is_limited_by_whichever_qemu_it_comes_to(
    hosts: list[Host], before: Emulator, after: Emulator
) -> None:
    """Its reads of 64 KiB cost 10: ten times the limit would pass if the curve were just lost."""
    source, target = hosts
    first, second = before(source), after(target)  # built before the guest's time counts
    monitor = source.dir / "db1.watch"
    drives = [DiskSpec("vda", make_disk(source.dir / "disk.raw", 64))]
    wanted = policy(f'target="vda" limit="{LIMIT}"')
    with HostAgent(source) as here, HostAgent(target) as there:
        guest = Vm.boot(source, "db1", drives, policy=wanted, emulator=first, monitor=monitor)
        eventually(lambda: here.drive("db1")["mode"] == _mode(before))
        running = guest.start_program(
            "fio --name=a --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8"
            f" --rw=randread --bs=64k --norandommap --time_based --runtime={RUN_S}"
            " --output=/dev/null --write_iops_log=/tmp/a --log_unix_epoch=1"
        )
        eventually(lambda: here.drive("db1")["raw_read_iops"])
        guest.agent.close()
        with Watch(target.dir / "db1.watch") as watch:
            migrate("db1", source, target, second)
            eventually(lambda: there.drive("db1")["mode"] == _mode(after))
            assert after is stock or eventually(lambda: exact(target, LIMIT))
            moved = Vm(target, "db1")
            assert moved.wait(running, 120).status == 0, "no request was lost"
        rates = Completions.parse(moved.read("/tmp/a_iops.1.log")).seconds(0, RUN_S)
        moved.agent.close()

    print([round(rate) for rate in rates])
    assert max(rates) <= 1.25 * LIMIT
    assert sum(rates) >= 0.5 * LIMIT * RUN_S, "however slow the machine that emulates"
    assert len(watch.limits) > 100
    assert all(limits["total_iops_sec"] or limits["total_bytes_sec"] for limits in watch.limits)
    if after is stock:
        assert max(map(highest_rate, watch.limits)) <= TOLERANCE * LIMIT, "never without a size"


def _mode(emulator: Emulator) -> str:
    return "exact" if emulator is patched else "retune"
