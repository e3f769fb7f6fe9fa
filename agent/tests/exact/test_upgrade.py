"""Guests whose QEMU is replaced on disk while they run, and that move between the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.demo.fio_log import Completions
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.qemu import patched
from testing.waiting import eventually
from tests.exact.guests import exact, groups
from tests.system.rig import blkdeviotune, policy

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
LIMIT = 2000
STOCK = Path("/usr/bin/qemu-system-x86_64")


class Emulator:
    """The emulator of a host's domains: a file that a package upgrade replaces."""

    def __init__(self, host: Host) -> None:
        self.path = host.dir / "emulator"
        self._started = host.dir / "started"
        self._programs = {"stock": STOCK, "patched": patched(host)}

    def install(self, which: str) -> None:
        """Put a QEMU in place of the one before. A running guest keeps the old one."""
        new = self.path.with_suffix(".new")
        program = self._programs[which]
        new.write_text(f'#!/bin/sh\necho "$*" >> {self._started}\nexec {program} "$@"\n')
        new.chmod(0o755)
        new.rename(self.path)

    def starts(self) -> int:
        """Return how often it has been started."""
        return len(self._started.read_text().splitlines())


@pytest.fixture(scope="module")
def emulator(host: Host) -> Emulator:
    return Emulator(host)


@pytest.fixture
def guest(host: Host, emulator: Emulator, request: pytest.FixtureRequest) -> Iterator[Vm]:
    """A guest that was started with one QEMU."""
    emulator.install(request.param)
    drives = [DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))]
    wanted = policy(f'target="vda" limit="{LIMIT}"')
    with Vm.boot(host, "db1", drives, policy=wanted, emulator=emulator.path) as vm:
        yield vm
    host.virsh("undefine", "db1")


def has_stock_limits(host: Host) -> bool:
    """Return True if the limits need no curve: large requests count by their size."""
    found = blkdeviotune(host, "db1")
    return bool(found.get("size_iops_sec")) and 0 < found.get("total_iops_sec", 0) <= LIMIT


def in_force(host: Host, mode: str) -> bool:
    return exact(host, LIMIT) if mode == "exact" else has_stock_limits(host)


def rates(guest: Vm, seconds: int = 5) -> list[int]:
    """Return the normalized rate in each second of reads of 64 KiB, which cost 10."""
    fio = "fio --name=a --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randread"
    logs = "--write_iops_log=/tmp/a --log_unix_epoch=1 --output=/dev/null"
    guest.exec(f"{fio} --bs=64k --norandommap --time_based --runtime={seconds} {logs}", timeout=90)
    done = Completions.parse(guest.read("/tmp/a_iops.1.log"))
    return [round(rate) for rate in done.seconds(0, seconds)]


@pytest.mark.parametrize(
    ("guest", "other", "mode"),
    [("stock", "patched", "retune"), ("patched", "stock", "exact")],
    indirect=["guest"],
)
def test_a_guest_is_limited_as_the_qemu_that_runs_is_able_to(
    guest: Vm, emulator: Emulator, other: str, mode: str
) -> None:
    host = guest.host
    emulator.install(other)
    before = emulator.starts()

    with HostAgent(host) as agent:
        eventually(lambda: agent.drive("db1")["mode"] == mode)
        eventually(lambda: in_force(host, mode))
        assert max(rates(guest)[1:]) <= 1.25 * LIMIT
        assert agent.drive("db1")["error"] is None
        assert agent.stop() == 0
    assert in_force(host, mode)
    assert max(rates(guest)[1:]) <= 1.25 * LIMIT
    assert emulator.starts() == before, "a domain's emulator is a program of its owner's"


@pytest.mark.parametrize(
    ("guest", "other", "mode"), [("stock", "patched", "exact")], indirect=["guest"]
)
def test_a_guest_that_moves_to_another_qemu_is_limited_as_that_is_able_to(
    guest: Vm, emulator: Emulator, other: str, mode: str
) -> None:
    """Saved and restored: a migration through a file, with requests on their way."""
    host = guest.host
    with HostAgent(host) as agent:
        eventually(lambda: has_stock_limits(host))
        running = guest.start_program(
            "fio --name=a --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8"
            " --rw=randread --bs=64k --norandommap --time_based --runtime=12 --output=/dev/null"
            " --write_iops_log=/tmp/b --log_unix_epoch=1"
        )
        eventually(lambda: agent.drive("db1")["raw_read_iops"])
        emulator.install(other)
        with guest.saved():
            pass
        eventually(lambda: exact(host, LIMIT))
        assert guest.wait(running, 90).status == 0, "no request was lost"
        assert agent.drive("db1")["mode"] == mode
        assert max(rates(guest)[1:]) <= 1.1 * LIMIT


@pytest.mark.parametrize("guest", ["patched"], indirect=True)
def test_a_drive_that_can_have_no_curve_has_stock_limits_at_once(guest: Vm) -> None:
    host = guest.host
    guest.attach(DiskSpec("vdb", make_disk(host.dir / "second.raw", 8)))
    for target in ("vda", "vdb"):
        words = ["--total-iops-sec", "50000", "--group-name", "both", "--live"]
        host.virsh("blkdeviotune", "db1", target, *words)
    with HostAgent(host) as agent:
        eventually(lambda: has_stock_limits(host))
        told = eventually(lambda: agent.drive("db1")["error"])
        assert "no throttle group of its own" in told["what"]
        assert agent.drive("db1")["mode"] == "retune"
        assert not any(group["limits"].get("cost-read") for group in groups(host))
        before = agent.drive("db1")["overwritten"]
        assert max(rates(guest)[1:]) <= 1.25 * LIMIT
        assert agent.drive("db1")["overwritten"] == before, "nobody else has set any"
