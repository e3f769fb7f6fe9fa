"""Counters by QMP: of every drive, and of no VM that hangs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.hypervisors.qmp import monitor
from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors.qmp_server import QmpServer, error
from testing.waiting import until
from tests.edges.hypervisors.sources import PATIENCE_S, VDA, lines, running, vm


async def test_counters_come_from_every_drive_by_its_target(
    source: QmpSource, server: QmpServer
) -> None:
    server.counters["vda"] = {
        "rd_operations": 1, "rd_bytes": 2, "wr_operations": 3, "wr_bytes": 4,
        "rd_total_time_ns": 5, "wr_total_time_ns": 6, "flush_operations": 7,
        "flush_total_time_ns": 8, "unmap_operations": 9, "unmap_bytes": 10,
        "unmap_total_time_ns": 11,
    }  # fmt: skip
    before = time.monotonic_ns()
    (drive, counters), = (await source.sample(None, PATIENCE_S)).items()  # fmt: skip
    assert drive == VDA
    assert before <= counters.at_ns <= time.monotonic_ns()
    others = {"flushes": 7, "flush_time_ns": 8}
    others |= {"discards": 9, "discard_bytes": 10, "discard_time_ns": 11}
    assert counters == Counters(counters.at_ns, 1, 2, 3, 4, 5, 6, None, **others)


async def test_a_qemu_that_counts_no_discards_has_none(
    source: QmpSource, server: QmpServer
) -> None:
    names = ("rd_operations", "rd_bytes", "wr_operations", "wr_bytes")
    server.counters["vda"] = dict.fromkeys((*names, "rd_total_time_ns", "wr_total_time_ns"), 3)
    counters = (await source.sample(None, PATIENCE_S))[VDA]
    assert (counters.read_requests, counters.flushes, counters.discards) == (3, None, None)


async def test_only_the_domains_asked_for_are_sampled(folder: Path) -> None:
    servers = [await QmpServer(folder / f"{n}.qmp").start() for n in range(3)]
    async with running(*(vm(s.path, s.path.stem) for s in servers)) as source:
        await until(lambda: len(source.vms()) == 3)
        assert set(await source.sample(["1", "gone"], PATIENCE_S)) == {DriveId("1", "vda")}
        assert "query-blockstats" not in servers[0].commands()


async def test_many_vms_are_sampled_at_once(folder: Path) -> None:
    servers = [await QmpServer(folder / f"{n}.qmp", ("vda", "vdb")).start() for n in range(150)]
    async with running(*(vm(s.path, s.path.stem) for s in servers)) as source:
        await until(lambda: len(source.vms()) == 150)
        assert len(await source.sample(None, PATIENCE_S)) == 300


async def test_a_hung_vm_is_left_out_and_delays_nobody_beyond_the_deadline(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hung, good = [await QmpServer(folder / f"{n}.qmp").start() for n in ("hung", "good")]
    async with running(vm(hung.path, "hung"), vm(good.path, "good")) as source:
        await until(lambda: len(source.vms()) == 2)
        caplog.clear()
        hung.answers["query-blockstats"] = lambda _: None
        for timeout_s in (5.0, 120.0, 120.0, 120.0):  # a hung VM is waited for once
            found = await asyncio.wait_for(source.sample(None, timeout_s), 60.0)
            assert set(found) == {DriveId("good", "vda")}
        assert hung.commands().count("query-blockstats") == 1, "no query is piled up on it"
        assert source.errors["timeout"] == 4
        assert "hung" in source.vms()
        assert len(lines(caplog)) == 1
        assert "hung.qmp: QEMU doesn't answer; see whether" in lines(caplog)[0]


async def test_a_reply_that_comes_late_is_dropped_and_the_next_query_works(
    source: QmpSource, server: QmpServer
) -> None:
    late: list[dict[str, Any]] = []
    server.answers["query-blockstats"] = lambda request: late.append(request)
    found = await source.sample(None, 0.1)
    await until(lambda: late)
    server.counters["vda"]["rd_operations"] = 7
    server.send(server.reply(late[0]))
    del server.answers["query-blockstats"]
    await asyncio.sleep(0.1)
    assert found == {}
    server.counters["vda"]["rd_operations"] = 8
    assert (await source.sample(None, PATIENCE_S))[VDA].read_requests == 8


async def test_a_qemu_that_refuses_its_counters_is_left_out_and_told_once_until_it_tells_them(
    source: QmpSource, server: QmpServer, caplog: pytest.LogCaptureFixture
) -> None:
    for times in (1, 2):
        server.answers["query-blockstats"] = lambda r: error(r, "GenericError", "not now")
        for _ in range(3):
            assert await source.sample(None, PATIENCE_S) == {}
        assert source.errors["refused"] == 3 * times
        assert len(lines(caplog)) == times
        del server.answers["query-blockstats"]
        assert VDA in await source.sample(None, PATIENCE_S)
    assert lines(caplog)[0] == (
        f"VM db1: {server.path}: query-blockstats: not now; its drives' load isn't known, so they"
        " keep the limits that they have; see QEMU's own log"
    )


async def test_a_drive_that_is_plugged_in_is_found_without_an_event(
    source: QmpSource, server: QmpServer
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    server.plug("vdb")
    assert set(await source.sample(None, PATIENCE_S)) == {VDA}
    await until(lambda: changed)
    assert set(await source.sample(None, PATIENCE_S)) == {VDA, DriveId("db1", "vdb")}


@pytest.mark.parametrize("plugged", [(), ("vdz",)], ids=["out", "swapped"])
async def test_a_drive_that_went_is_noticed_without_an_event(
    source: QmpSource, server: QmpServer, plugged: tuple[str, ...]
) -> None:
    del server.drives["vda"]
    for target in plugged:
        server.plug(target)
    assert await source.sample(None, PATIENCE_S) == {}
    await until(lambda: set(source.vms()["db1"].drives) == set(plugged))


async def test_what_changed_while_a_vm_hung_is_found_when_it_answers_again(
    source: QmpSource, server: QmpServer
) -> None:
    held: list[dict[str, Any]] = []
    server.answers["query-blockstats"] = lambda request: held.append(request)
    await source.sample(None, 0.1)
    await until(lambda: held)
    server.drives["vda"]["inserted"] |= {"iops": 12}
    server.send(server.reply(held[0]))
    limits = ThrottleLimits(iops_total=12)
    await until(lambda: source.vms()["db1"].drives["vda"].in_force == limits)


async def test_another_topmost_node_is_found_though_qemu_sends_no_event(
    source: QmpSource, server: QmpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_REFRESH_PAUSE_S", 0.0)
    asked = server.commands().count("query-block")
    for _ in range(3):
        await source.sample(None, PATIENCE_S)
        await asyncio.sleep(0.05)
    assert server.commands().count("query-block") == asked
    server.drives["vda"]["inserted"] |= {"node-name": "overlay", "iops": 12}
    assert set(await source.sample(None, PATIENCE_S)) == {VDA}
    limits = ThrottleLimits(iops_total=12)
    await until(lambda: source.vms()["db1"].drives["vda"].in_force == limits)


async def test_an_empty_cdrom_is_no_drive_and_not_asked_about_again(
    source: QmpSource, server: QmpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_REFRESH_PAUSE_S", 0.0)
    server.plug("cd0")
    del server.drives["cd0"]["inserted"]
    asked = []
    for _ in range(5):
        assert set(await source.sample(None, PATIENCE_S)) == {VDA}
        await asyncio.sleep(0.1)
        asked.append(server.commands().count("query-block"))
    assert asked[1:] == asked[:1] * 4, "once, when it was new"
    assert set(source.vms()["db1"].drives) == {"vda"}
