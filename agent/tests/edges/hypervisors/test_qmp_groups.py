"""QMP sockets of QEMUs whose throttle groups have cost curves and statistics."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from iokeel.config.settings import VmConfig
from iokeel.core.values.counters import Counters, DriveId, ThrottleCount, ThrottleCounters, Took
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.policy import UNKNOWN, DomainPolicy, DrivePolicy
from iokeel.errors import ConnectionLost, LimitsRejected
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors import abilities
from testing.hypervisors.abilities import PATCHED
from testing.hypervisors.dialects import FORMER, TODAYS, plain
from testing.hypervisors.qmp_server import DEFAULTS, QmpServer, error, qdev
from testing.waiting import until
from tests.edges.hypervisors.sources import PATIENCE_S, running

GOLD = DomainPolicy({}, DrivePolicy(limit=1000))
VDA = DriveId("db1", "vda")
ALICE = DriveId("db1", "alice")
LINE = CostCurve(((4096, 1.0), (1048576, 100.0)))
EXACT = ThrottleLimits(
    iops_total=1000,
    cost_read=DEFAULT_CURVE,
    cost_write=LINE,
    split_size=16384,
    idle_credit_ms=10,
)
MEMBER = {"qdev": qdev("vda"), "node-name": "vda-node"}
POINTS = [{"size": size, "cost": cost} for size, cost in DEFAULT_CURVE.points]
LINE_POINTS = [{"size": 4096, "cost": 1.0}, {"size": 1048576, "cost": 100.0}]


def vm(server: QmpServer) -> VmConfig:
    return VmConfig("db1", server.path, GOLD)


@pytest.fixture(params=[FORMER, TODAYS], ids=["former", "todays"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[QmpServer]:
    """A QEMU with curves and one drive, which nothing limits yet."""
    made = await QmpServer(tmp_path / "db1.qmp").start()
    made.dialect = request.param
    made.groups = {}
    yield made
    await made.stop()


@pytest.fixture
async def source(server: QmpServer) -> AsyncIterator[QmpSource]:
    async with running(vm(server)) as made:
        await until(made.vms)
        yield made


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[QmpServer]:
    """A storage daemon with curves and two throttle groups."""
    made = await QmpServer(tmp_path / "db1.qmp", ()).start()
    made.daemon = True
    for name in ("alice", "bob"):
        made.objects[name] = {"iops-total": 0, "cost-read": [], "cost-write": [], **DEFAULTS}
        made.throttle(name, {"node-name": f"{name}-throttle"})
    yield made
    await made.stop()


def able(server: QmpServer) -> Abilities:
    """Return the abilities of a patched QEMU."""
    return PATCHED if server.dialect == FORMER else abilities.TODAYS


def asked(server: QmpServer) -> dict[str, Any]:
    """Return the limits of the last order in plain words."""
    return plain(server.asked[-1]["arguments"])


def in_force(source: QmpSource, target: str = "vda") -> ThrottleLimits | None:
    return source.vms()["db1"].drives[target].in_force


# What a QEMU can do


async def test_a_qemu_is_exact_by_its_schema_which_is_asked_for_once(
    source: QmpSource, server: QmpServer
) -> None:
    assert source.vms()["db1"].drives["vda"].abilities == able(server)
    for _ in range(3):
        await source.sample(None, PATIENCE_S)
    source.announce("db1")
    await until(lambda: server.commands().count("query-block") == 2)
    assert server.commands().count("query-qmp-schema") == 1
    server.drop()
    await until(lambda: source.reconnects == 1)
    assert server.commands().count("query-qmp-schema") == 2, "it may be another QEMU now"


async def test_a_stock_qemu_is_not_and_is_not_asked_for_groups(tmp_path: Path) -> None:
    server = await QmpServer(tmp_path / "db1.qmp").start()
    async with running(vm(server)) as source:
        await until(source.vms)
        assert source.vms()["db1"].drives["vda"].abilities == STOCK
        assert (await source.sample(None, PATIENCE_S))[VDA].throttle is None
        await source.set_limits(VDA, ThrottleLimits(iops_total=5), PATIENCE_S)
    assert "query-throttle-groups" not in server.commands()
    assert not {"cost-read", "cost-write", *DEFAULTS} & server.asked[-1]["arguments"].keys()


def without(server: QmpServer, word: str) -> Callable[[dict[str, Any]], bytes]:
    """A schema in which a word of the patches is another one."""
    return lambda request: server.reply(request).replace(f'"{word}"'.encode(), b'"other"')


@pytest.mark.parametrize(
    ("server", "word", "lost"),
    [
        (FORMER, "split-size", ["splits"]),
        (FORMER, "query-throttle-groups", ["counts"]),
        (FORMER, "idle-credit-ms", ["cost_curve"]),
        (FORMER, "cost-write", ["cost_curve", "keeps_levels"]),
        (FORMER, "nothing", []),
        (TODAYS, "split-size", ["splits"]),
        (TODAYS, "__iokeel_query-throttle-groups", ["counts", "measures_latency"]),
        (TODAYS, "idle-credit-ms", ["cost_curve"]),
        (TODAYS, "cost-write", ["cost_curve"]),
        (TODAYS, "__iokeel_keeps-levels", ["keeps_levels"]),
        (TODAYS, "max-in-flight", ["bounds_in_flight"]),
        (TODAYS, "latency", ["measures_latency"]),
        (
            TODAYS,
            "__iokeel_extra",
            ["cost_curve", "splits", "measures_latency", "bounds_in_flight"],
        ),
        (TODAYS, "nothing", []),
    ],
    indirect=["server"],
)
async def test_each_ability_is_told_by_its_own_word(
    server: QmpServer, word: str, lost: list[str]
) -> None:
    server.answers["query-qmp-schema"] = without(server, word)
    async with running(vm(server)) as source:
        await until(source.vms)
        found = source.vms()["db1"].drives["vda"].abilities
        without_it: dict[str, Any] = dict.fromkeys(lost, False)
        assert found == able(server)._replace(**without_it)


async def test_a_qemu_that_splits_nothing_is_sent_no_split_size(server: QmpServer) -> None:
    server.answers["query-qmp-schema"] = without(server, "split-size")
    async with running(vm(server)) as source:
        await until(source.vms)
        await source.set_limits(VDA, EXACT._replace(split_size=None), PATIENCE_S)
    arguments = asked(server)
    assert "split-size" not in arguments
    assert (arguments["cost-read"], arguments["idle-credit-ms"]) == (POINTS, 10)


async def test_a_qemu_with_curves_that_counts_nothing_gets_its_curve(server: QmpServer) -> None:
    server.answers["query-qmp-schema"] = without(server, server.dialect.query_groups)
    async with running(vm(server)) as source:
        await until(source.vms)
        assert in_force(source) == UNLIMITED
        await source.set_limits(VDA, EXACT, PATIENCE_S)
        assert asked(server)["cost-read"] == POINTS
        assert (await source.sample(None, PATIENCE_S))[VDA].throttle is None
        source.announce("db1")  # query-block tells no curve: it is taken to be as it was set
        await until(lambda: server.commands().count("query-block") == 2)
        await source.sample(None, PATIENCE_S)
        assert in_force(source) == EXACT
        server.drives["vda"]["inserted"]["iops"] = 5
        source.announce("db1")
        await until(lambda: in_force(source) == EXACT._replace(iops_total=5))
    assert server.dialect.query_groups not in server.commands()


@pytest.mark.parametrize("counts", [True, False])
async def test_a_curve_is_not_taken_for_one_of_the_next_qemu_at_the_socket(
    server: QmpServer, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """A guest may restart so fast that its socket is never seen without a listener."""
    processes = iter([Process(7, 70), Process(7, 70), Process(8, 80)])
    found = "iokeel.hypervisors.qmp.connection.qemu"
    monkeypatch.setattr(found, lambda _: next(processes, Process(8, 80)))
    if not counts:
        server.answers["query-qmp-schema"] = without(server, server.dialect.query_groups)
    async with running(vm(server)) as source:
        await until(source.vms)
        await source.set_limits(VDA, EXACT, PATIENCE_S)
        server.drop()
        await until(lambda: server.connections == 2 and source.reconnects == 1)
        assert in_force(source) == EXACT, "the same QEMU"
        if counts:
            server.groups = None  # a stock QEMU
        server.plug("vda")
        server.drop()
        await until(lambda: source.reconnects == 2)
        assert in_force(source) == UNLIMITED


async def test_another_qemu_at_the_socket_is_spoken_to_in_its_own_words(server: QmpServer) -> None:
    """As after a live migration, which keeps the guest and not its QEMU."""
    async with running(vm(server)) as source:
        await until(source.vms)
        for number, dialect in enumerate((TODAYS, FORMER, TODAYS), 1):
            server.dialect, server.groups = dialect, {}
            server.plug("vda")
            server.drop()
            await until(partial(lambda times: source.reconnects == times, number))
            assert source.vms()["db1"].drives["vda"].abilities == able(server)
            await source.set_limits(VDA, EXACT, PATIENCE_S)
            assert (TODAYS.extra in server.asked[-1]["arguments"]) == (dialect == TODAYS)
            assert asked(server)["cost-read"] == POINTS
            await source.sample(None, PATIENCE_S)
            assert dialect.query_groups in server.commands()
            assert in_force(source) == EXACT


async def test_a_bound_in_flight_and_times_are_asked_of_a_qemu_that_can(server: QmpServer) -> None:
    limits = EXACT._replace(max_in_flight=2.441, latency=True)
    can = server.dialect == TODAYS
    async with running(vm(server)) as source:
        await until(source.vms)
        await source.set_limits(VDA, limits, PATIENCE_S)
        assert asked(server).get("max-in-flight") == (2.441 if can else None)
        await source.sample(None, PATIENCE_S)
        assert in_force(source) == (limits if can else EXACT)
        await source.set_limits(VDA, EXACT, PATIENCE_S)
        assert asked(server).get("max-in-flight") == (0 if can else None)
        await source.sample(None, PATIENCE_S)
        assert in_force(source) == EXACT


async def test_a_qemu_without_a_schema_is_a_stock_one(tmp_path: Path) -> None:
    server = QmpServer(tmp_path / "db1.qmp")
    server.answers["query-qmp-schema"] = lambda r: error(r, "CommandNotFound", "no such command")
    await server.start()
    async with running(vm(server)) as source:
        await until(source.vms)
        assert source.vms()["db1"].drives["vda"].abilities == STOCK
        assert VDA in await source.sample(None, PATIENCE_S)


async def test_a_qemu_that_refuses_its_schema_for_now_gets_limits_that_hold_with_any_qemu(
    server: QmpServer,
) -> None:
    server.answers["query-qmp-schema"] = lambda r: error(r, "GenericError", "out of memory")
    async with running(vm(server)) as source:
        await until(source.vms)
        assert source.vms()["db1"].drives["vda"].abilities is None
        assert VDA in await source.sample(None, PATIENCE_S)
        with pytest.raises(ConnectionLost, match="isn't known whether its QEMU has cost curves"):
            await source.set_limits(VDA, EXACT, PATIENCE_S)
        await source.set_limits(VDA, ThrottleLimits(iops_total=700, iops_size=5856), PATIENCE_S)
        arguments = asked(server)
        assert (arguments["iops"], arguments["iops_size"]) == (700, 5856)
        assert "cost-read" not in arguments
        del server.answers["query-qmp-schema"]
        source.announce("db1")
        await until(lambda: source.vms()["db1"].drives["vda"].abilities == able(server))
        assert (await source.sample(None, PATIENCE_S))[VDA].throttle is not None
        await source.set_limits(VDA, EXACT, PATIENCE_S)
        assert asked(server)["cost-read"] == POINTS


async def test_a_qemu_that_knows_no_curve_is_not_sent_the_limits_of_one(tmp_path: Path) -> None:
    """They would let a large request pass as one operation."""
    server = await QmpServer(tmp_path / "db1.qmp").start()
    async with running(vm(server)) as source:
        await until(source.vms)
        with pytest.raises(LimitsRejected, match="has no cost curves"):
            await source.set_limits(VDA, EXACT, PATIENCE_S)
    assert "block_set_io_throttle" not in server.commands()


@pytest.mark.parametrize(
    "schema", [b'{"return": {}, "id": %d}\n', b'{"return": [{"name": 5}], "id": %d}\n', None]
)
async def test_a_wrong_or_no_schema_is_an_error_and_asked_for_again(
    server: QmpServer, schema: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.qmp.discovery.ANSWER_TIMEOUT_S", 0.2)
    server.answers["query-qmp-schema"] = lambda request: (
        None if schema is None else schema.replace(b"%d", str(request["id"]).encode())
    )
    async with running(vm(server)) as source:
        await until(lambda: source.errors["protocol" if schema else "timeout"])
        assert source.vms() == {}
        del server.answers["query-qmp-schema"]
        await until(source.vms)


# Limits and curves


async def test_limits_and_curves_are_set_in_one_command(
    source: QmpSource, server: QmpServer
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    arguments = asked(server)
    assert (arguments["iops"], arguments["bps"], arguments["iops_size"]) == (1000, 0, 0)
    assert (arguments["cost-read"], arguments["cost-write"]) == (POINTS, LINE_POINTS)
    assert (arguments["split-size"], arguments["idle-credit-ms"]) == (16384, 10)
    assert in_force(source) == EXACT
    await source.sample(None, PATIENCE_S)
    assert in_force(source) == EXACT, "as QEMU says itself"


async def test_limits_without_a_curve_and_split_size_remove_them(
    source: QmpSource, server: QmpServer
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    await source.set_limits(VDA, ThrottleLimits(iops_total=7, iops_size=4096), PATIENCE_S)
    arguments = asked(server)
    assert (arguments["cost-read"], arguments["cost-write"]) == ([], [])
    assert (arguments["split-size"], arguments["idle-credit-ms"]) == (0, 100)
    await source.sample(None, PATIENCE_S)
    assert in_force(source) == ThrottleLimits(iops_total=7, iops_size=4096)


async def test_limits_and_curves_are_found_by_the_next_agent(
    source: QmpSource, server: QmpServer
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    async with running(vm(server)) as second:
        await until(second.vms)
        assert in_force(second) == EXACT


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("cost-read", [], EXACT._replace(cost_read=None)),
        ("cost-write", POINTS, EXACT._replace(cost_write=DEFAULT_CURVE)),
        ("split-size", 0, EXACT._replace(split_size=None)),
        ("split-size", 4096, EXACT._replace(split_size=4096)),
        ("idle-credit-ms", 0, EXACT._replace(idle_credit_ms=0)),
        ("idle-credit-ms", 100, EXACT._replace(idle_credit_ms=100)),
        ("iops-total", 5, EXACT._replace(iops_total=5)),
    ],
)
async def test_a_change_by_somebody_else_is_seen_at_the_next_sample(
    source: QmpSource, server: QmpServer, name: str, value: Any, found: ThrottleLimits
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    await source.sample(None, PATIENCE_S)
    server.objects[qdev("vda")][name] = value
    await source.sample(None, PATIENCE_S)
    assert in_force(source) == found
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    assert in_force(source) == EXACT
    server.objects[qdev("vda")][name] = value  # the same again, right after it was put back
    await source.sample(None, PATIENCE_S)
    assert in_force(source) == found


async def test_a_drive_that_leaves_its_group_is_seen_to_be_unlimited(
    source: QmpSource, server: QmpServer
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    await source.sample(None, PATIENCE_S)
    assert server.groups is not None
    server.groups.clear()
    server.drives["vda"]["inserted"]["iops"] = 0
    await source.sample(None, PATIENCE_S)
    assert in_force(source) == UNLIMITED


# Statistics


async def test_statistics_come_with_the_counters(source: QmpSource, server: QmpServer) -> None:
    server.objects[qdev("vda")] = {"iops-total": 9}
    least, times, took = "size", {}, None
    if server.dialect == TODAYS:
        least, took = "least", Took(2, 700, ((0, 1), (512, 1)))
        bins = [{"least": 0, "requests": 1}, {"least": 512, "requests": 1}]
        times = {"in_flight": 1, "ended": 2, "latency_total_ns": 700, "latencies": bins}
    server.throttle(
        qdev("vda"), MEMBER, requests=3, bytes=20480, cost=4.2, waited=1, wait_total_ns=600,
        wait_max_ns=600, waiting=2,
        sizes=[{least: 4096, "requests": 1}, {least: 8192, "requests": 2}], **times,
    )  # fmt: skip
    before = time.monotonic_ns()
    counters = (await source.sample(None, PATIENCE_S))[VDA]
    group = counters.throttle
    assert group is not None
    assert before <= group.at_ns <= counters.at_ns
    assert group.read == ThrottleCount(3, 20480, 4.2, 1, 600, 2, ((4096, 1), (8192, 2)), took)
    assert group.write == ThrottleCount(0, 0, 0, 0, 0, 0)
    assert in_force(source) == ThrottleLimits(iops_total=9)


async def test_of_a_drives_own_group_and_its_objects_the_latter_counts(tmp_path: Path) -> None:
    server = QmpServer(tmp_path / "db1.qmp", ())
    chain = {"driver": "throttle", "throttle-group": "tg0", "file": {"driver": "null-co"}}
    server.plug("vda", "json:" + json.dumps(chain), iops=50, group=qdev("vda"))
    server.objects["tg0"] = {"iops-total": 9}
    server.throttle("tg0", {"node-name": "filter"}, requests=3)
    server.join(qdev("vda"), {"iops-total": 50})
    await server.start()
    async with running(vm(server)) as source:
        await until(source.vms)
        for _ in range(2):
            throttle = (await source.sample(None, PATIENCE_S))[VDA].throttle
            assert throttle is not None
            assert throttle.read.requests == 3
            assert in_force(source) == ThrottleLimits(iops_total=9)
        await source.set_limits(VDA, ThrottleLimits(iops_total=7), PATIENCE_S)
        assert server.commands()[-2:] == ["qom-set", "block_set_io_throttle"]
        assert server.asked[-1]["arguments"]["iops"] == 0
        await source.sample(None, PATIENCE_S)
        assert in_force(source) == ThrottleLimits(iops_total=7)
    await server.stop()


async def test_statistics_of_a_group_with_other_members_are_not_the_drives(
    source: QmpSource, server: QmpServer
) -> None:
    server.objects["both"] = {"iops-total": 9}
    server.throttle("both", MEMBER, {"node-name": "export"}, requests=3)
    assert (await source.sample(None, PATIENCE_S))[VDA].throttle is None


@pytest.mark.parametrize(
    "reply",
    [
        b'{"return": {}, "id": %d}\r\n',
        b'{"return": [{"name": "x"}], "id": %d}\r\n',
        b'{"return": [], "id": 999999}\r\n',
        b'{"return": [{"name": "x", "limits": {}, "members": [], "read": 1, "write": 2}],'
        b' "id": %d}\r\n',
    ],
)
async def test_wrong_groups_end_the_connection_and_a_new_one_works(
    source: QmpSource, server: QmpServer, reply: bytes
) -> None:
    server.answers[server.dialect.query_groups] = lambda request: reply.replace(
        b"%d", str(request["id"]).encode()
    )
    assert await source.sample(None, PATIENCE_S) == {}
    del server.answers[server.dialect.query_groups]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"protocol": 1}
    assert VDA in await source.sample(None, PATIENCE_S)


@pytest.mark.parametrize(
    "limits", ["x", [], {"iops-total": "1"}, {"cost-read": [{"size": 1}]}, {"split-size": "1"}]
)
async def test_limits_that_make_no_sense_are_not_known(
    source: QmpSource, server: QmpServer, limits: object
) -> None:
    await source.set_limits(VDA, EXACT, PATIENCE_S)
    assert in_force(source) == EXACT
    server.objects[qdev("vda")] = limits  # type: ignore[assignment]
    assert VDA in await source.sample(None, PATIENCE_S)
    assert in_force(source) is None
    source.announce("db1")  # its drives are found anew
    await until(lambda: server.commands().count("query-block") == 2)
    assert VDA in await source.sample(None, PATIENCE_S)
    assert in_force(source) is None
    assert (source.errors.total(), source.reconnects) == (0, 0)


async def test_groups_that_are_refused_leave_the_counters(
    source: QmpSource, server: QmpServer
) -> None:
    server.answers[server.dialect.query_groups] = lambda r: error(r, "GenericError", "not now")
    counters = (await source.sample(None, PATIENCE_S))[VDA]
    assert counters == Counters(counters.at_ns, 0, 0, 0, 0, 0, 0)
    assert source.errors == {"refused": 1}


async def test_groups_that_never_come_leave_the_vm_out_and_no_query_is_piled_up(
    source: QmpSource, server: QmpServer
) -> None:
    held: list[dict[str, Any]] = []
    server.answers[server.dialect.query_groups] = held.append
    for _ in range(3):
        assert await source.sample(None, 0.1) == {}
    await until(lambda: held)
    assert (len(held), source.errors["timeout"]) == (1, 3)
    del server.answers[server.dialect.query_groups]
    server.send(server.reply(held[0]))
    await until(lambda: "query-blockstats" in server.commands())
    assert VDA in await source.sample(None, PATIENCE_S)


# Storage daemons


async def test_a_storage_daemons_drives_are_its_groups(daemon: QmpServer) -> None:
    chain = '{"driver": "throttle", "throttle-group": "alice", "file": {"driver": "file",'
    chain += ' "filename": "/images/a.raw"}}'
    daemon.nodes = [
        {"node-name": "alice-throttle", "drv": "throttle", "file": f"json:{chain}"},
        {"node-name": "a", "drv": "file", "file": "/images/a.raw"},
    ]
    async with running(vm(daemon)) as source:
        await until(source.vms)
        drives = source.vms()["db1"].drives
        assert {
            d.target: (d.path, d.abilities == PATCHED, d.in_force) for d in drives.values()
        } == {
            "alice": ("/images/a.raw", True, UNLIMITED),
            "bob": (None, True, UNLIMITED),
        }
        assert source.vms()["db1"].policy_error is None
        await source.set_limits(ALICE, EXACT, PATIENCE_S)
        assert daemon.asked[-1]["execute"] == "qom-set"
        assert daemon.objects["alice"]["cost-read"] == POINTS
        assert daemon.objects["alice"]["split-size"] == 16384
        await source.sample(None, PATIENCE_S)
        assert in_force(source, "alice") == EXACT


async def test_a_storage_daemons_counters_are_its_groups_statistics(daemon: QmpServer) -> None:
    daemon.throttle("alice", {"node-name": "a"}, {"node-name": "b"}, requests=3, bytes=9, cost=4.5)
    async with running(vm(daemon)) as source:
        await until(source.vms)
        found = await source.sample(None, PATIENCE_S)
        assert set(found) == {ALICE, DriveId("db1", "bob")}
        group = found[ALICE].throttle
        assert isinstance(group, ThrottleCounters)
        assert found[ALICE] == Counters(group.at_ns, 3, 9, 0, 0, None, None, group)
        assert group.read.cost == 4.5
    assert "query-blockstats" not in daemon.commands()


async def test_groups_that_come_and_go_are_followed(daemon: QmpServer) -> None:
    assert daemon.groups is not None
    async with running(vm(daemon)) as source:
        await until(source.vms)
        await source.sample(None, PATIENCE_S)
        daemon.objects["carol"] = {"iops-total": 3}
        daemon.throttle("carol", {"node-name": "c"})
        del daemon.objects["bob"], daemon.groups["bob"]
        await source.sample(None, PATIENCE_S)
        await until(lambda: set(source.vms()["db1"].drives) == {"alice", "carol"})


async def test_a_misspelt_drive_of_a_stock_storage_daemon_lifts_no_limit(
    daemon: QmpServer,
) -> None:
    daemon.groups = None
    policy = DomainPolicy({"alcie": DrivePolicy(limit=5000)})
    async with running(VmConfig("db1", daemon.path, policy)) as source:
        await until(source.vms)
        info = source.vms()["db1"]
        assert "the policy names alcie" in str(info.policy_error)
        assert info.policy is not None
        assert info.policy.for_drive("alice") is UNKNOWN


async def test_a_stock_storage_daemon_says_that_it_counts_nothing(daemon: QmpServer) -> None:
    daemon.groups = None
    async with running(vm(daemon)) as source:
        await until(source.vms)
        info = source.vms()["db1"]
        assert "this storage daemon counts nothing" in str(info.policy_error)
        assert set(info.drives) == {"alice", "bob"}
        assert await source.sample(None, PATIENCE_S) == {}
        assert source.errors == {"policy": 1}, "that there are no counters is no timeout"
        limits = ThrottleLimits(iops_total=5, iops_size=5856)
        await source.set_limits(ALICE, limits, PATIENCE_S)
        assert in_force(source, "alice") == limits
