"""VMs at rest aren't asked for their counters, and are the moment that they wake."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.core.values.counters import Counters, DriveId
from iokeel.host.process import Process, process
from iokeel.hypervisors.rests import Rests
from iokeel.hypervisors.source import DriveInfo, VmInfo
from testing.agents import QEMU, start_qemu
from testing.hypervisors.qmp_client import QmpClient
from tests.edges.hypervisors.sources import PATIENCE_S, VDA, running, vm

NAME = VDA.domain


class Program:
    """A process that sleeps, and answers each line."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.process: Process | None = process(popen.pid)

    def wake(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(b"\n")
        self.popen.stdin.flush()
        self.popen.stdout.readline()


@pytest.fixture
def program() -> Iterator[Program]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        found = Program(popen)
        found.wake()
        yield found
        popen.kill()


def info(program: Program, *targets: str) -> dict[str, VmInfo]:
    drives = {target: DriveInfo(target) for target in targets or ("vda",)}
    return {NAME: VmInfo(NAME, drives, process=program.process)}


def reading(reads: int) -> dict[DriveId, Counters]:
    return {VDA: Counters(time.monotonic_ns(), reads, 4096 * reads, 0, 0, 0, 0)}


async def at_rest(program: Program) -> Rests:
    """Return a VM's source once it rests."""
    rests = Rests()
    rests.came(info(program), reading(7))
    rests.came(info(program), reading(7))
    await asyncio.sleep(0.1)
    return rests


def taken(rests: Rests, vms: dict[str, VmInfo]) -> dict[DriveId, Counters] | None:
    """Return the counters of a VM at rest; None if it has to be read."""
    found: dict[DriveId, Counters] = {}
    return found if rests.take(vms[NAME], time.monotonic_ns(), found) else None


async def test_a_vm_at_rest_has_the_counters_that_it_had(program: Program) -> None:
    rests = await at_rest(program)
    before_ns = time.monotonic_ns()
    found = taken(rests, info(program))
    assert found is not None
    assert found[VDA].at_ns >= before_ns
    assert found[VDA]._replace(at_ns=0) == reading(7)[VDA]._replace(at_ns=0)


async def test_a_vm_that_wakes_is_read(program: Program) -> None:
    rests = await at_rest(program)
    assert taken(rests, info(program))
    program.wake()
    assert taken(rests, info(program)) is None


async def test_a_vm_whose_counters_move_does_not_rest(program: Program) -> None:
    rests = Rests()
    for reads in range(5):
        rests.came(info(program), reading(reads))
        await asyncio.sleep(0.05)
        assert taken(rests, info(program)) is None


async def test_a_vm_rests_only_if_all_its_drives_were_read(program: Program) -> None:
    rests = Rests()
    for _ in range(3):
        rests.came(info(program, "vda", "vdb"), reading(7))
        await asyncio.sleep(0.05)
    assert taken(rests, info(program, "vda", "vdb")) is None


async def test_a_vm_that_has_ended_is_read(program: Program) -> None:
    rests = await at_rest(program)
    program.popen.kill()
    program.popen.wait()
    assert taken(rests, info(program)) is None


async def test_a_vm_that_is_looked_at_otherwise_rests_no_longer(program: Program) -> None:
    rests = await at_rest(program)
    rests.forget([NAME])
    assert taken(rests, info(program)) is None


async def test_a_reading_in_between_is_not_forgotten(program: Program) -> None:
    """The VM may have moved before its threads are looked at."""
    rests = Rests()
    rests.came(info(program), reading(7))
    rests.came(info(program), reading(7))
    rests.forget([NAME])
    await asyncio.sleep(0.1)
    assert taken(rests, info(program)) is None


async def test_a_vm_that_rests_too_shortly_is_left_alone_for_a_while(program: Program) -> None:
    rests = await at_rest(program)
    program.wake()
    assert taken(rests, info(program)) is None
    for _ in range(2):
        rests.came(info(program), reading(7))
    await asyncio.sleep(0.1)
    assert taken(rests, info(program)) is None
    await asyncio.sleep(1.0)
    rests.came(info(program), reading(7))
    await asyncio.sleep(0.1)
    assert taken(rests, info(program))


@pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"needs {QEMU}")
async def test_an_idle_qemu_is_not_asked_until_it_does_anything(tmp_path: Path) -> None:
    qemu, path = start_qemu(tmp_path)
    runs = Path(f"/proc/{qemu.pid}/task/{qemu.pid}/schedstat")
    try:
        watch = QmpClient(tmp_path / "watch.sock")
        async with running(vm(path)) as source:
            while not await source.sample(None, PATIENCE_S):
                await asyncio.sleep(0.1)
            was_asked = True
            for _ in range(100):
                before = runs.read_text()
                found = await source.sample(None, PATIENCE_S)
                assert {*found} == {VDA, DriveId(NAME, "vdb")}
                was_asked = runs.read_text() != before
                if not was_asked:
                    break
                await asyncio.sleep(0.1)
            assert not was_asked
            await asyncio.to_thread(watch.ask, "query-status")
            before = runs.read_text()
            await source.sample(None, PATIENCE_S)
            assert runs.read_text() != before
    finally:
        qemu.kill()
        qemu.wait()
