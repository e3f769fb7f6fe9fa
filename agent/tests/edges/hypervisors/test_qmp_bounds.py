"""A QEMU that tells or sends what none does: its VM is named, and pays alone."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.errors import PolicyError
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES, MOST_OBJECTS, Budget
from iokeel.hypervisors.qemu.limits import QemuAbilities
from iokeel.hypervisors.qmp.connection import connect
from iokeel.hypervisors.qmp.discovery import query_abilities, query_devices, query_groups
from iokeel.hypervisors.qmp.faults import MonitorLost
from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors.qmp_server import QmpServer, answer
from testing.waiting import until
from tests.edges.hypervisors.sources import PATIENCE_S, VDA, lines, running, vm

LIMITS = ThrottleLimits(iops_total=400)


@pytest.mark.parametrize("told", [-1, 2**63, 10**308, 10**400, 1e300])
@pytest.mark.parametrize("counter", ["rd_operations", "wr_bytes", "unmap_total_time_ns"])
async def test_counters_that_no_qemu_has_end_the_connection(
    source: QmpSource, server: QmpServer, caplog: pytest.LogCaptureFixture,
    told: float, counter: str,
) -> None:  # fmt: skip
    server.counters["vda"][counter] = told
    assert await source.sample(None, PATIENCE_S) == {}
    await until(lambda: source.errors["protocol"])
    assert "VM db1" in lines(caplog)[0]
    assert counter in lines(caplog)[0]
    assert VDA.target in source.vms()["db1"].drives, "its drives keep what they have"


@pytest.mark.parametrize(
    "told",
    [
        {"cost": 1e155},
        {"requests": 2**63},
        {"sizes": [{"size": 512, "requests": 1}] * 65},
        {"sizes": [{"least": -1, "requests": 1}]},
        {"ended": -1},
        {"ended": 1, "latency_total_ns": 2**63},
        {"ended": 1, "latencies": [{"least": -1, "requests": 1}]},
        {"ended": 1, "latencies": [{"least": 1, "requests": 0.5}]},
        {"ended": 1, "latencies": [{"least": 1}]},
        {"ended": 1, "latencies": [{"least": 1, "requests": 1}] * 65},
    ],
)
async def test_a_throttle_groups_counts_have_bounds(folder: Path, told: dict[str, Any]) -> None:
    server = QmpServer(folder / "db1.qmp")
    server.objects["a"] = {}
    server.throttle("a", **told)
    await server.start()
    connection = await connect(server.path, lambda _: None)
    with pytest.raises(MonitorLost, match="not a QMP message"):
        await query_groups(connection, QemuAbilities())
    await server.stop()


async def test_a_wrong_answer_again_and_again_is_told_once(
    source: QmpSource, server: QmpServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.counters["vda"]["rd_bytes"] = -1
    for number in range(1, 4):
        await until(partial(lambda n: source.reconnects == n - 1, number))
        await source.sample(None, PATIENCE_S)
        await until(partial(lambda n: source.errors["protocol"] == n, number))
    assert len(lines(caplog)) == 1


async def test_a_reply_of_countless_objects_is_not_decoded(folder: Path) -> None:
    """2 MiB of empty objects took 191 MiB, and a second of all VMs' time."""
    server = await QmpServer(folder / "db1.qmp").start()
    server.answers["query-qmp-schema"] = lambda request: answer(request, [{}] * MOST_OBJECTS)
    server.answers["qom-list"] = lambda request: answer(request, [[]] * MOST_OBJECTS)
    for ask in (query_abilities, query_devices):
        connection = await connect(server.path, lambda _: None)
        with pytest.raises(MonitorLost, match=f"it has {MOST_OBJECTS + 2} objects and lists"):
            await ask(connection)
    await server.stop()


# Names


@pytest.mark.parametrize("name", ["x" * 129, "v\u009bda", "v\nda", "d\u00e4"])
async def test_a_drive_whose_name_cant_be_shown_goes_by_another(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    server = QmpServer(folder / "db1.qmp", ["vda"])
    server.plug(name)
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        targets = [*source.vms()["db1"].drives]
        assert targets[0] == "vda"
        assert targets[1].startswith("unnamed-")
        assert len(targets[1]) == 24
        assert DriveId("db1", targets[1]) in await source.sample(None, PATIENCE_S)
        await source.set_limits(DriveId("db1", targets[1]), LIMITS, PATIENCE_S)
        assert server.drives[name]["inserted"]["iops"] == 400
        for _ in range(2):
            server.event("BLOCK_JOB_COMPLETED")
            asked = server.commands().count("query-block")
            await until(partial(lambda n: server.commands().count("query-block") > n, asked))
    (line,) = lines(caplog)
    assert line.startswith("VM db1: a drive's name is too long or not ASCII")
    await server.stop()


async def test_the_first_drives_of_too_many_are_held(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [f"disk{number}" for number in range(MOST_DRIVES + 10)]
    server = await QmpServer(folder / "db1.qmp", targets).start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert [*source.vms()["db1"].drives] == targets[:MOST_DRIVES]
        assert len(await source.sample(None, PATIENCE_S)) == MOST_DRIVES
        source.announce("db1")
        await until(lambda: server.commands().count("query-block") == 2)
        assert isinstance(source.vms()["db1"].policy_error, PolicyError)
        assert source.errors == {"policy": 1}
    assert lines(caplog) == [
        "VM db1: disk256 can't be limited (the agent takes only the first 256 drives of a QEMU);"
        " give it fewer; those after it have no limits either"
    ]
    await server.stop()


async def test_a_file_name_longer_than_a_path_ends_the_connection(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp")
    server.drives["vda"]["inserted"]["file"] = "json:" + json.dumps({"driver": "x" * 4096})
    await server.start()
    async with running(vm(server.path)) as source:
        await until(lambda: source.errors["protocol"])
        assert source.unread() == {"db1"}
    await server.stop()


async def test_drives_with_other_names_at_each_look_end_the_connection(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each name is kept for ten minutes of history. So is what the drives had before."""
    server = QmpServer(folder / "db1.qmp", [])
    looks = 0

    def renamed(request: dict[str, object]) -> bytes:
        nonlocal looks
        looks += 1
        server.drives.clear()
        for number in range(MOST_DRIVES):
            server.plug(f"{looks}-{number}")
        return server.reply(request)

    server.answers["query-block"] = renamed
    await server.start()
    async with running(vm(server.path)) as source:
        while not source.errors["flood"]:
            server.event("BLOCK_JOB_COMPLETED")
            await asyncio.sleep(0.01)
        assert len(source.vms()["db1"].drives) == MOST_DRIVES
        assert looks == Budget.MOST_NAMES // MOST_DRIVES + 1
        assert source.reconnects == 0
    assert "it sends more than 1024 new drives or files" in lines(caplog)[0]
    await server.stop()


# Floods


@pytest.mark.parametrize("flood", [b'{"event":"A"}\n' * 100_000, b"\n" * (4 << 20)])
async def test_a_flood_ends_the_connection_and_the_vm_is_left_alone(
    source: QmpSource,
    server: QmpServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    flood: bytes,
) -> None:
    monkeypatch.setattr(Budget, "MOST_BYTES", 2 << 20)
    monkeypatch.setattr(Budget, "BYTES_A_S", 0)  # a busy machine may read no faster than 8 MiB/s
    server.send(flood)
    await until(lambda: source.errors["flood"])
    assert lines(caplog)[0].startswith(f"VM db1: {server.path}: it sends more than ")
    assert VDA.target in source.vms()["db1"].drives
    await asyncio.sleep(1)
    assert (server.connections, source.errors.total()) == (1, 1)


def test_a_budget_is_paid_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = Budget()
    for _ in range(100):  # as much as 150 drives with 13 backing files have, and more
        now += 1
        assert budget.spend(nbytes=7 << 20, events=900) is None
    assert budget.spend(nbytes=2 * Budget.MOST_BYTES) == "more than 8 MiB a second"
    now += 60
    assert budget.spend(nbytes=1) is None
    assert budget.spend(events=2 * Budget.MOST_EVENTS) == "more than 1000 events a second"
