"""QMP sockets, good and bad: a server in this process, and QEMU itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iokeel.config.settings import VmConfig
from iokeel.core.counters import Counters, DriveId
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.policy import DomainPolicy, DrivePolicy
from iokeel.errors import ConnectionLost, DriveGone, LimitsRejected
from iokeel.hypervisors.qmp.connection import (
    ANYTHING,
    MOST_REPLY_BYTES,
    QmpConnection,
    connect,
    decoder,
)
from iokeel.hypervisors.qmp.drives import Block, BlockStats, drives_of
from iokeel.hypervisors.qmp.faults import MonitorLost
from iokeel.hypervisors.qmp.source import QmpSource
from testing.agents import QEMU
from testing.monitored import Monitored
from testing.qmp_server import GREETING, QmpServer, answer, error, qdev
from testing.waiting import until

GOLD = DrivePolicy(limit=1000)
VDA = DriveId("db1", "vda")
# QAPI's BlockIOThrottle (qapi/block-core.json), but for `device` and `group`.
BLOCK_IO_THROTTLE = """
    id bps bps_rd bps_wr iops iops_rd iops_wr
    bps_max bps_rd_max bps_wr_max iops_max iops_rd_max iops_wr_max
    bps_max_length bps_rd_max_length bps_wr_max_length
    iops_max_length iops_rd_max_length iops_wr_max_length iops_size
"""
# QAPI's ThrottleLimits.
THROTTLE_LIMITS = """
    iops-total iops-total-max iops-total-max-length iops-read iops-read-max iops-read-max-length
    iops-write iops-write-max iops-write-max-length bps-total bps-total-max bps-total-max-length
    bps-read bps-read-max bps-read-max-length bps-write bps-write-max bps-write-max-length
    iops-size
"""


@contextlib.asynccontextmanager
async def running(*vms: VmConfig) -> AsyncIterator[QmpSource]:
    """Run a source of these VMs."""
    source = QmpSource(vms)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def vm(path: Path, name: str = "db1", policy: DomainPolicy | None = None) -> VmConfig:
    return VmConfig(name, path, policy or DomainPolicy({}, GOLD))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a short path, for sockets."""
    assert len(str(tmp_path)) < 90
    return tmp_path


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[QmpServer]:
    made = await QmpServer(folder / "db1.qmp").start()
    yield made
    await made.stop()


@pytest.fixture
async def source(server: QmpServer) -> AsyncIterator[QmpSource]:
    """A source that is connected to the server."""
    async with running(vm(server.path)) as made:
        await until(made.vms)
        yield made


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= level]


# Counters


async def test_counters_come_from_every_drive_by_its_target(
    source: QmpSource, server: QmpServer
) -> None:
    server.counters["vda"] = {
        "rd_operations": 1, "rd_bytes": 2, "wr_operations": 3, "wr_bytes": 4,
        "rd_total_time_ns": 5, "wr_total_time_ns": 6, "flush_operations": 7,
    }  # fmt: skip
    before = time.monotonic_ns()
    (drive, counters), = (await source.sample(None, 1.0)).items()  # fmt: skip
    assert drive == VDA
    assert before <= counters.at_ns <= time.monotonic_ns()
    assert counters == Counters(counters.at_ns, 1, 2, 3, 4, 5, 6)


async def test_only_the_domains_asked_for_are_sampled(folder: Path) -> None:
    servers = [await QmpServer(folder / f"{n}.qmp").start() for n in range(3)]
    async with running(*(vm(s.path, s.path.stem) for s in servers)) as source:
        await until(lambda: len(source.vms()) == 3)
        assert set(await source.sample(["1", "gone"], 1.0)) == {DriveId("1", "vda")}
        assert "query-blockstats" not in servers[0].commands()


async def test_many_vms_are_sampled_at_once(folder: Path) -> None:
    servers = [await QmpServer(folder / f"{n}.qmp", ("vda", "vdb")).start() for n in range(150)]
    async with running(*(vm(s.path, s.path.stem) for s in servers)) as source:
        await until(lambda: len(source.vms()) == 150)
        assert len(await source.sample(None, 5.0)) == 300


@pytest.mark.alone
async def test_a_hung_vm_is_left_out_and_delays_nobody_beyond_the_deadline(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hung, good = [await QmpServer(folder / f"{n}.qmp").start() for n in ("hung", "good")]
    async with running(vm(hung.path, "hung"), vm(good.path, "good")) as source:
        await until(lambda: len(source.vms()) == 2)
        caplog.clear()
        hung.answers["query-blockstats"] = lambda _: None
        started = time.monotonic()
        found = await source.sample(None, 0.3)
        assert 0.3 <= time.monotonic() - started < 0.6
        assert set(found) == {DriveId("good", "vda")}
        for _ in range(3):
            assert set(await source.sample(None, 0.3)) == {DriveId("good", "vda")}
        assert time.monotonic() - started < 0.8, "a hung VM is waited for once"
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
    assert (await source.sample(None, 1.0))[VDA].read_requests == 8


async def test_an_error_reply_to_a_query_leaves_the_vm_out(
    source: QmpSource, server: QmpServer
) -> None:
    server.answers["query-blockstats"] = lambda r: error(r, "GenericError", "not now")
    assert await source.sample(None, 1.0) == {}
    assert source.errors["refused"] == 1
    del server.answers["query-blockstats"]
    assert VDA in await source.sample(None, 1.0)


async def test_a_drive_that_is_plugged_in_is_found_without_an_event(
    source: QmpSource, server: QmpServer
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    server.plug("vdb")
    assert set(await source.sample(None, 1.0)) == {VDA}
    await until(lambda: changed)
    assert set(await source.sample(None, 1.0)) == {VDA, DriveId("db1", "vdb")}


@pytest.mark.parametrize("plugged", [(), ("vdz",)], ids=["out", "swapped"])
async def test_a_drive_that_went_is_noticed_without_an_event(
    source: QmpSource, server: QmpServer, plugged: tuple[str, ...]
) -> None:
    del server.drives["vda"]
    for target in plugged:
        server.plug(target)
    assert await source.sample(None, 1.0) == {}
    await until(lambda: set(source.vms()["db1"].drives) == set(plugged))


async def test_what_changed_while_a_vm_hung_is_found_when_it_answers_again(
    source: QmpSource, server: QmpServer
) -> None:
    held: list[dict[str, Any]] = []
    server.answers["query-blockstats"] = lambda request: held.append(request)
    await source.sample(None, 0.1)
    server.drives["vda"]["inserted"] |= {"iops": 12}
    server.send(server.reply(held[0]))
    limits = ThrottleLimits(iops_total=12)
    await until(lambda: source.vms()["db1"].drives["vda"].in_force == limits)


@pytest.mark.alone
async def test_an_empty_cdrom_is_no_drive_and_not_asked_about_again(
    source: QmpSource, server: QmpServer
) -> None:
    server.plug("cd0")
    del server.drives["cd0"]["inserted"]
    for _ in range(5):
        assert set(await source.sample(None, 1.0)) == {VDA}
        await asyncio.sleep(0.3)
    assert server.commands().count("query-block") <= 3
    assert set(source.vms()["db1"].drives) == {"vda"}


# Connections


@pytest.mark.alone
@pytest.mark.parametrize(
    "last_words", [b"", b'{"return": [{"device": "", "stats"'], ids=["between", "mid-reply"]
)
async def test_a_connection_that_breaks_is_made_again_and_the_vm_stays_known(
    source: QmpSource, server: QmpServer, last_words: bytes
) -> None:
    gone: list[str] = []
    source.on_change = gone.append
    server.answers["query-blockstats"] = lambda _: server.drop(last_words)
    started = time.monotonic()
    assert await source.sample(None, 5.0) == {}
    assert time.monotonic() - started < 1.0, "a broken connection is not waited for"
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"closed": 1}
    assert VDA in await source.sample(None, 1.0)
    assert gone == [], "its drives are as they were"


async def test_a_vm_is_gone_where_nobody_listens_any_more(
    source: QmpSource, server: QmpServer
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    await server.stop()
    await until(lambda: not source.vms())
    assert changed == ["db1"]
    with pytest.raises(DriveGone):
        await source.set_limits(VDA, UNLIMITED, 1.0)
    assert await source.sample(None, 1.0) == {}


async def test_a_guest_that_shuts_down_is_no_error(
    source: QmpSource, server: QmpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.event("SHUTDOWN")
    await asyncio.sleep(0.05)
    server.drop()
    await until(lambda: "VM db1: has shut down" in lines(caplog, logging.INFO))
    assert source.errors.total() == 0


def _nothing(path: Path) -> None:
    pass


def _stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (_nothing, "missing", "no such socket; start the VM with -qmp unix:"),
        (_stale, "stale", "nobody listens any more; start the VM"),
        (lambda path: path.write_text(""), "stale", "not a socket; correct the path"),
        (lambda path: path.parent.rename(path.parent.parent / "moved"), "missing", "no such"),
    ],
)
async def test_a_socket_that_cannot_be_used_is_told_once_with_its_mend(
    folder: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object], kind: str,
    text: str,
) -> None:  # fmt: skip
    path = folder / "sockets" / "db1.qmp"
    path.parent.mkdir()
    make(path)
    async with running(vm(path)) as source:
        await until(lambda: source.errors[kind] >= 2)
        assert source.errors.total() == source.errors[kind]
    assert len(lines(caplog)) == 1
    assert f"VM db1: {path}: {text}" in lines(caplog)[0]
    assert "\n" not in lines(caplog)[0]


async def test_a_change_of_what_is_wrong_is_told_too(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "db1.qmp"
    async with running(vm(path)) as source:
        await until(lambda: source.errors["missing"])
        _stale(path)
        await until(lambda: source.errors["stale"])
        path.unlink()
        server = await QmpServer(path).start()
        await until(source.vms)
        assert await source.sample(None, 1.0)
        await server.stop()
    assert ["no such" in lines(caplog)[0], "nobody" in lines(caplog)[1]] == [True, True]


async def test_a_vm_that_is_announced_is_connected_to_at_once(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp")
    async with running(vm(server.path)) as source:
        await until(lambda: source.errors["missing"] == 4)  # the next try is 2 s away or more
        await server.start()
        source.announce("db1")
        source.announce("nobody")
        await until(source.vms, 1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["socket", "folder"])
def test_a_socket_of_another_user_says_whose_it_is_and_what_to_do(
    tmp_path: Path, closed: str
) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)
    path = tmp_path / "db1.qmp"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        path.chmod(0o600 if closed == "socket" else 0o666)
        tmp_path.chmod(0o755 if closed == "socket" else 0o700)
        said = subprocess.run(
            [sys.executable, "-c", _CONNECT_AS_NOBODY, str(path)],
            capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}, check=True,
        ).stdout  # fmt: skip
    kind, _, text = said.partition(" ")
    assert kind == "permission"
    if closed == "socket":
        assert "permission denied: it belongs to root, mode 0600; run the agent as root" in text
        assert "setfacl -m u:nobody:rw" in text
    else:
        assert "a folder on its path is closed to the agent" in text


_CONNECT_AS_NOBODY = """
import asyncio, os, sys
from pathlib import Path
from iokeel.hypervisors.qmp.connection import connect
from iokeel.hypervisors.qmp.faults import MonitorLost
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    asyncio.run(connect(Path(sys.argv[1]), print))
except MonitorLost as error:
    print(error.kind, error)
"""


@pytest.mark.parametrize(
    "greeting",
    [
        b"QEMU 7.2.22 monitor - type 'help' for more information\r\n(qemu) ",
        b'{\r\n    "QMP": {\r\n',
        b'{"hello": 1}\r\n',
        b"[]\r\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"QMP": ' + b'{"a":' * 100_000 + b"\n",
    ],
    ids=["hmp", "pretty", "other", "list", "binary", "deep list", "deep object"],
)
async def test_what_is_no_qmp_monitor_is_told_in_one_short_line(
    folder: Path, greeting: bytes
) -> None:
    server = QmpServer(folder / "db1.qmp")
    server.greeting = greeting
    await server.start()
    with pytest.raises(MonitorLost, match="without pretty=on") as failed:
        await connect(server.path, lambda _: None)
    assert failed.value.kind == "protocol"
    assert len(str(failed.value).splitlines()) == 1
    assert len(str(failed.value)) < 500 + len(str(server.path))


async def test_an_answer_that_is_awaited_stays_what_it_was(folder: Path) -> None:
    servers = [QmpServer(folder / f"db{number}.qmp") for number in (1, 2)]
    for server, letter in zip(servers, "ab", strict=True):
        server.answers["query-name"] = partial(answer, value=letter * 50)
        await server.start()
    first, second = [await connect(server.path, lambda _: None) for server in servers]
    kept = await first.execute("query-name", {}, decoder(msgspec.Raw), 5.0)
    assert await second.execute("query-name", {}, ANYTHING, 5.0) == "b" * 50
    assert bytes(kept) == b'"%b"' % (b"a" * 50)
    first.close()
    second.close()


async def test_a_line_without_end_is_given_up(source: QmpSource, server: QmpServer) -> None:
    server.answers["query-blockstats"] = lambda _: b'{"return": "' + b"x" * (MOST_REPLY_BYTES + 1)
    assert await source.sample(None, 5.0) == {}
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"protocol": 1}
    assert VDA in await source.sample(None, 1.0)


@pytest.mark.parametrize(
    "reply",
    [
        b'{"return": [], "id": 999}\r\n',
        b'{"return": []}\r\n',
        b'{"error": {"class": "GenericError", "desc": "JSON parse error"}}\r\n',
        b'{"return": {"not": "a list"}, "id": %d}\r\n',
        b'{"return": [{"qdev": "x", "stats": {"rd_bytes": "many"}}], "id": %d}\r\n',
        b'{"id": %d}\r\n',
    ],
)
async def test_a_wrong_reply_ends_the_connection_and_a_new_one_works(
    source: QmpSource, server: QmpServer, reply: bytes
) -> None:
    server.answers["query-blockstats"] = lambda request: reply.replace(
        b"%d", str(request["id"]).encode()
    )
    assert await source.sample(None, 5.0) == {}
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"protocol": 1}
    assert VDA in await source.sample(None, 1.0)


async def test_a_monitor_without_block_commands_is_told_as_such(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = QmpServer(folder / "db1.qmp")
    server.answers["query-block"] = lambda r: error(r, "CommandNotFound", "no such command")
    await server.start()
    async with running(vm(server.path)) as source:
        await until(lambda: source.errors["refused"] >= 2)
    assert lines(caplog) == [f"VM db1: {server.path}: query-block: no such command"]


# Limits


async def test_all_fields_are_sent_zeros_included(source: QmpSource, server: QmpServer) -> None:
    limits = ThrottleLimits(bps_total=10, iops_total=5, iops_total_max=9, iops_total_max_length=3,
                            iops_size=4096)  # fmt: skip
    await source.set_limits(VDA, limits, 1.0)
    arguments = server.asked[-1]["arguments"]
    assert set(arguments) == set(BLOCK_IO_THROTTLE.split())
    assert {name: value for name, value in arguments.items() if value not in (0, 1)} == {
        "id": "/machine/peripheral/vda/virtio-backend",
        "bps": 10, "iops": 5, "iops_max": 9, "iops_max_length": 3, "iops_size": 4096,
    }  # fmt: skip
    assert source.vms()["db1"].drives["vda"].in_force == limits


async def test_limits_below_a_throttle_filter_go_to_its_group_object(
    folder: Path,
) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    chain = {"driver": "raw", "file": {"driver": "throttle", "throttle-group": "t/g \u00e9",
             "file": {"driver": "file", "filename": "/images/b.raw"}}}  # fmt: skip
    server.plug("vda", "json:" + json.dumps(chain))
    server.objects["t/g \u00e9"] = {"iops-total": 70, "iops-total-max-length": 1}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        info = source.vms()["db1"].drives["vda"]
        assert (info.path, info.in_force) == ("/images/b.raw", ThrottleLimits(iops_total=70))
        await source.set_limits(VDA, ThrottleLimits(bps_read=3), 1.0)
        asked = server.asked[-1]
        assert asked["execute"] == "qom-set"
        assert asked["arguments"]["path"] == "/objects/t/g \u00e9"
        assert set(asked["arguments"]["value"]) == set(THROTTLE_LIMITS.split())
        assert server.objects["t/g \u00e9"]["bps-read"] == 3
        assert server.objects["t/g \u00e9"]["iops-total"] == 0


async def test_a_group_that_is_no_object_is_limited_above_it(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    chain = {"driver": "throttle", "throttle-group": "gone", "file": {"driver": "null-co"}}
    server.plug("vda", "json:" + json.dumps(chain), iops=5)
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=5)
        await source.set_limits(VDA, ThrottleLimits(bps_read=3), 1.0)
        assert server.asked[-1]["execute"] == "block_set_io_throttle"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DeviceNotFound", DriveGone),
        ("GenericError", LimitsRejected),
        ("CommandNotFound", LimitsRejected),
    ],
)
async def test_a_refusal_is_told_by_its_kind_and_changes_nothing_known(
    source: QmpSource, server: QmpServer, kind: str, expected: type[Exception]
) -> None:
    await source.set_limits(VDA, ThrottleLimits(iops_total=5), 1.0)
    server.answers["block_set_io_throttle"] = lambda r: error(r, kind, "the reason\nis this")
    with pytest.raises(expected, match="the reason is this"):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), 1.0)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=5)


async def test_limits_for_a_drive_or_vm_that_is_not_there_are_not_sent(
    source: QmpSource, server: QmpServer
) -> None:
    for drive in (DriveId("db1", "vdz"), DriveId("db2", "vda")):
        with pytest.raises(DriveGone):
            await source.set_limits(drive, UNLIMITED, 1.0)
    assert "block_set_io_throttle" not in server.commands()


async def test_after_a_timeout_limits_are_unknown_until_they_are_read_again(
    source: QmpSource, server: QmpServer
) -> None:
    late: list[dict[str, Any]] = []
    server.answers["block_set_io_throttle"] = lambda request: late.append(request)
    with pytest.raises(ConnectionLost, match=r"no answer to block_set_io_throttle in 0.1 s"):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), 0.1)
    assert source.vms()["db1"].drives["vda"].in_force is None
    server.send(server.reply(late[0]))
    await until(lambda: source.vms()["db1"].drives["vda"].in_force is not None)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=6)


async def test_what_waits_for_a_hung_qemu_is_withdrawn_and_never_sent(
    source: QmpSource, server: QmpServer
) -> None:
    held: list[dict[str, Any]] = []
    server.answers["query-blockstats"] = lambda request: held.append(request)
    await source.sample(None, 0.05)
    with pytest.raises(ConnectionLost):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), 0.05)
    server.send(server.reply(held[0]))
    del server.answers["query-blockstats"]
    await until(lambda: source.vms()["db1"].drives["vda"].in_force == UNLIMITED)
    assert "block_set_io_throttle" not in server.commands()


async def test_limits_set_while_drives_are_read_are_not_overwritten_by_the_older_reading(
    source: QmpSource, server: QmpServer
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    held: list[bytes] = []
    server.answers["query-block"] = lambda request: held.append(server.reply(request))
    server.event("BLOCK_JOB_COMPLETED")
    await until(lambda: held)
    setting = asyncio.create_task(source.set_limits(VDA, ThrottleLimits(iops_total=6), 2.0))
    await asyncio.sleep(0.05)
    del server.answers["query-block"]
    server.send(held[0])
    await setting
    await until(lambda: server.commands()[-1] == "query-block")
    await asyncio.sleep(0.1)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=6)
    assert changed == []


@pytest.mark.parametrize("event", ["DEVICE_DELETED", "BLOCK_JOB_COMPLETED", "DEVICE_TRAY_MOVED"])
async def test_an_event_makes_drives_and_limits_be_read_again(
    source: QmpSource, server: QmpServer, event: str
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    server.drives["vda"]["inserted"] |= {"iops": 33}
    server.plug("vdb", "/images/b.qcow2")
    server.event(event)
    await until(lambda: changed)
    drives = source.vms()["db1"].drives
    assert drives["vda"].in_force == ThrottleLimits(iops_total=33)
    assert drives["vdb"].path == "/images/b.qcow2"


@pytest.mark.alone
async def test_a_storm_of_events_costs_a_query_a_second(
    source: QmpSource, server: QmpServer
) -> None:
    before = len(server.asked)
    for _ in range(100):
        server.event("BLOCK_JOB_COMPLETED")
        await asyncio.sleep(0.01)
    assert 1 <= len(server.asked) - before <= 3


async def test_a_failing_disk_costs_no_query(source: QmpSource, server: QmpServer) -> None:
    before = len(server.asked)
    for _ in range(10):
        server.event("BLOCK_IO_ERROR")
    await asyncio.sleep(0.2)
    assert len(server.asked) == before


@pytest.mark.parametrize("filters", [False, True])
async def test_drives_that_share_a_group_are_an_error_of_the_vm_and_are_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, filters: bool
) -> None:
    server = QmpServer(folder / "db1.qmp")
    chain = {"driver": "throttle", "throttle-group": "both", "file": {"driver": "null-co"}}
    for target in ("vdb", "vdc"):
        if filters:
            server.plug(target, "json:" + json.dumps(chain))
        else:
            server.plug(target, group="both", iops=7)
    server.objects["both"] = {}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        error = source.vms()["db1"].policy_error
        assert "VM db1, drive vdb: its throttle group holds vdc too" in str(error)
        assert lines(caplog) == [str(error)]
        server.asked.clear()
        with pytest.raises(LimitsRejected, match="give each drive a group of its own"):
            await source.set_limits(DriveId("db1", "vdc"), UNLIMITED, 1.0)
        assert server.asked == []
        await source.set_limits(VDA, UNLIMITED, 1.0)


async def test_of_two_filters_the_one_that_is_the_drives_own_is_set(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    for target in ("vda", "vdb"):
        below = {"driver": "throttle", "throttle-group": target, "file": {"driver": "null-co"}}
        chain = {"driver": "throttle", "throttle-group": "both", "file": below}
        server.plug(target, "json:" + json.dumps(chain))
    server.objects |= {"both": {"iops-total": 1}, "vda": {"iops-total": 2}, "vdb": {}}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert source.vms()["db1"].policy_error is None
        assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=2)
        await source.set_limits(VDA, ThrottleLimits(iops_total=9), 1.0)
        assert server.objects["vda"]["iops-total"] == 9
        assert server.objects["both"] == {"iops-total": 1}


async def test_a_policy_for_a_drive_that_is_missing_is_told_and_the_others_are_served(
    server: QmpServer, caplog: pytest.LogCaptureFixture
) -> None:
    policy = DomainPolicy({"vda": GOLD, "vdx": GOLD})
    async with running(vm(server.path, policy=policy)) as source:
        await until(source.vms)
        info = source.vms()["db1"]
        assert info.policy == policy
        assert "the policy names vdx, but there is no such drive; correct" in str(info.policy_error)
        assert len(lines(caplog)) == 1


# QEMU's names of a drive


@pytest.mark.parametrize(
    ("block", "target"),
    [
        (Block("", "/machine/peripheral/vda/virtio-backend"), "vda"),
        (Block("drive0", "/machine/peripheral/vda/virtio-backend"), "vda"),
        (Block("", "scsi0-0-0"), "scsi0-0-0"),
        (Block("drive0", "/machine/peripheral-anon/device[0]/virtio-backend"), "drive0"),
        (Block("", "/machine/peripheral-anon/device[1]/virtio-backend"), "device[1]"),
        (Block("ide0-cd1", "/machine/unattached/device[23]"), "ide0-cd1"),
        (Block("", "/machine/unattached/device[23]"), "device[23]"),
        (Block("drive0", ""), "drive0"),
    ],
)
def test_a_target_is_the_devices_id_or_the_drives_name_or_the_last_of_its_path(
    block: Block, target: str
) -> None:
    block.inserted = {}
    assert list(drives_of([block])) == [target]


def test_two_drives_never_have_one_target() -> None:
    blocks = [Block("", "vda", {}), Block("vda", "/machine/peripheral-anon/device[0]", {})]
    assert list(drives_of(blocks)) == ["vda", "/machine/peripheral-anon/device[0]"]


def test_a_file_name_that_qemu_cut_is_no_path_and_no_throttle_group() -> None:
    cut = 'json:{"driver": "throttle", "throttle-group": "tg", "file": {"driver": "fi...'
    (drive,) = drives_of([Block("", "vda", {"file": cut, "iops": 4})]).values()
    assert (drive.path, drive.throttle_group) == (None, None)
    assert drive.in_force == ThrottleLimits(iops_total=4)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        # As QEMU 7.2 answers query-block.
        ("/images/top.qcow2", "/images/top.qcow2"),
        ("nbd+unix:///exp?socket=/run/n.sock", "nbd+unix:///exp?socket=/run/n.sock"),
        (
            'json:{"throttle-group": "tg", "driver": "throttle", "file": {"server.path": '
            '"/run/n.sock", "driver": "nbd", "export": "exp", "server.type": "unix"}}',
            "nbd+unix:///exp?socket=/run/n.sock",
        ),
        (
            'json:{"backing": {"driver": "raw", "file": {"driver": "file", "filename": '
            '"/images/base.raw"}}, "driver": "qcow2", "file": {"driver": "file", "filename": '
            '"/images/top.qcow2"}}',
            "/images/top.qcow2",
        ),
        # As qapi/block-core.json has the options.
        (
            'json:{"driver": "nbd", "server": {"type": "inet", "host": "fd00::1", '
            '"port": "10809"}}',
            "nbd://[fd00::1]:10809/",
        ),
        (
            'json:{"driver": "raw", "file": {"driver": "rbd", "pool": "vms", "image": "a", '
            '"server": [{"host": "mon1", "port": "6789"}, {"host": "mon2", "port": "6789"}]}}',
            "rbd://mon1:6789/vms/a",
        ),
        (
            'json:{"driver": "iscsi", "portal": "filer:3260", "target": "iqn.x", "lun": 1, '
            '"transport": "tcp"}',
            "iscsi://filer:3260/iqn.x/1",
        ),
        (
            'json:{"driver": "gluster", "volume": "vol", "path": "a.img", "server": '
            '[{"type": "inet", "host": "filer", "port": "24007"}]}',
            "gluster://filer:24007/vol/a.img",
        ),
        (
            'json:{"driver": "nfs", "server": {"type": "inet", "host": "filer"}, "path": "/x/a"}',
            "nfs://filer/x/a",
        ),
        (
            'json:{"driver": "nvme", "device": "0000:44:01.3", "namespace": 1}',
            "nvme://0000:44:01.3/1",
        ),
        (
            'json:{"driver": "virtio-blk-vhost-user", "path": "/run/spdk.sock"}',
            "vhost-user+unix:///?socket=/run/spdk.sock",
        ),
        ('json:{"driver": "host_device", "filename": "/dev/sdb"}', "/dev/sdb"),
        ('json:{"driver": "null-co"}', None),
        ("", None),
    ],
)
def test_a_drive_tells_what_its_topmost_image_is_in(file: str, path: str | None) -> None:
    (drive,) = drives_of([Block("", "vda", {"file": file})]).values()
    assert drive.path == path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.lists(
        st.builds(
            Block,
            st.sampled_from(["", "d0", "d1"]),
            st.sampled_from(["", "vda", "/machine/peripheral/vda/virtio-backend", "/"]),
            st.none()
            | st.dictionaries(st.sampled_from(["file", "group", "iops", "bps_max"]), json_values)
            | json_values.map(lambda value: {"file": "json:" + json.dumps({"file": value})}),
        ),
        max_size=4,
    )
)
def test_whatever_a_drive_is_said_to_be_is_taken_without_a_failure(blocks: list[Block]) -> None:
    for target, drive in drives_of(blocks).items():
        assert drive.target == target
        assert drive.path is None or isinstance(drive.path, str)
        assert drive.in_force is not None
        assert all(value is None or isinstance(value, int) for _, value in drive.in_force.items())


# The protocol, a byte at a time


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


def feed(connection: QmpConnection, data: bytes) -> None:
    """Hand over bytes as asyncio does."""
    while data and not connection.lost.done():
        buffer = connection.get_buffer(-1)
        part, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(part)] = part
        connection.buffer_updated(len(part))


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


STATS = dict.fromkeys(
    ("rd_operations", "rd_bytes", "wr_operations", "wr_bytes", "rd_total_time_ns",
     "wr_total_time_ns"), 4,
)  # fmt: skip


@given(
    st.lists(st.sampled_from(["answer", "error", "event"]), max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
)
@example(["answer", "answer"], list(range(1, 400)), b"\r\n")
def test_replies_in_any_pieces_are_the_same_replies(
    kinds: list[str], cuts: list[int], end: bytes
) -> None:
    async def run() -> None:
        events: list[str] = []
        took: list[Any] = []
        connection, transport = QmpConnection(Path("x"), events.append), _Transport()
        connection.connection_made(transport)
        data, asked, counters = GREETING, 0, decoder(list[BlockStats])
        for kind in kinds:
            if kind == "event":
                data += b'{"event": "E", "data": {"return": []}}' + end
                continue
            asked += 1
            connection.ask(b'"execute":"x"', counters, took.append)
            value: dict[str, Any] = {"return": [{"device": "", "qdev": "q", "stats": STATS}]}
            if kind == "error":
                value = {"error": {"class": "GenericError", "desc": "no"}}
            data += json.dumps({**value, "id": asked}).encode() + end
        for piece in pieces(data, cuts):
            feed(connection, piece)
        assert len(events) == kinds.count("event")
        replies = ["error" if reply.error else "answer" for reply in took]
        assert replies == [kind for kind in kinds if kind != "event"]
        assert all(r.answer[0].stats.wr_bytes == 4 for r in took if not r.error)
        assert [json.loads(line)["id"] for line in transport.sent] == [*range(1, asked + 1)]
        assert not connection.lost.done()

    asyncio.run(run())


@given(st.lists(st.binary(max_size=80) | json_values.map(lambda v: json.dumps(v).encode())))
@example([b'{"return": [{"stats": {"rd_operations": 1e400}}], "id": 1}'])
@example([b'{"event": 5}'])
@example([b'{"return": [], "id": ' + b"9" * 6000 + b"}"])
@example([b'{"return": [], "error": {"class": "\xff", "desc": ""}, "id": 1}'])
@example([b'{"return": [], "id": 1}', b'{"return": [], "id": 1}'])
def test_whatever_comes_every_question_gets_one_end(sent: list[bytes]) -> None:
    async def run() -> None:
        took: list[Any] = []
        connection = QmpConnection(Path("x"), lambda _: None)
        connection.connection_made(_Transport())
        for _ in range(3):
            connection.ask(b'"execute":"x"', decoder(list[BlockStats]), took.append)
        feed(connection, b"\n".join(sent) + b"\n")
        connection.connection_lost(None)
        assert len(took) == 3
        assert "\n" not in str(connection.lost.result())

    asyncio.run(run())


async def test_what_is_asked_after_the_end_gets_the_end() -> None:
    connection = QmpConnection(Path("x"), lambda _: None)
    connection.connection_made(_Transport())
    connection.close()
    with pytest.raises(MonitorLost):
        await connection.execute("query-block", {}, ANYTHING, 1.0)


# QEMU itself

qemu_is_here = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"needs {QEMU}")


class Qemu(Monitored):
    """A QEMU without a guest. A second monitor tells its own view."""

    def __init__(self, folder: Path) -> None:
        for name in ("a", "b", "c"):
            with (folder / f"{name}.raw").open("wb") as file:
                file.truncate(1 << 20)
        arguments = [
            *("-object", "throttle-group,id=tg0,x-iops-total=1000,x-iops-total-max=1500"),
            *("-blockdev", f"file,node-name=fa,filename={folder}/a.raw"),
            *("-device", "virtio-blk-pci,drive=fa,id=vda"),
            *("-blockdev", f"file,node-name=fb,filename={folder}/b.raw"),
            *("-blockdev", "throttle,node-name=tb,file=fb,throttle-group=tg0"),
            *("-blockdev", "raw,node-name=rb,file=tb"),
            *("-device", "virtio-blk-pci,drive=rb,id=vdb"),
            *("-drive", f"file={folder}/c.raw,format=raw,if=none,id=dc,throttling.bps-read=77777"),
            *("-device", "virtio-scsi-pci,id=scsi", "-device", "scsi-hd,drive=dc,id=sda"),
            *("-device", "ide-cd,id=cd0"),
        ]
        command = f"{QEMU} -M q35 -accel tcg -nodefaults -display none -S -m 32"
        super().__init__(folder, [*command.split(), *arguments], "agent")

    def block(self, device: str) -> dict[str, Any]:
        """Return the answer to query-block for a device's medium, without zeros."""
        (found,) = [b["inserted"] for b in self.ask("query-block") if b["qdev"] == device]
        return {name: value for name, value in found.items() if value}

    def do(self, device: str, *commands: str) -> None:
        """Have QEMU do I/O on a device; it counts as the guest's."""
        for command in commands:
            line = f'qemu-io -d {device} "{command}"'
            self.ask("human-monitor-command", **{"command-line": line})

    def stop(self) -> None:
        """Stop it by SIGSTOP, and wait until it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def end(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGCONT)
        super().end()


@pytest.fixture
def qemu(folder: Path) -> Iterator[Qemu]:
    made = Qemu(folder)
    yield made
    made.end()


@pytest.fixture
async def on_qemu(qemu: Qemu) -> AsyncIterator[QmpSource]:
    async with running(vm(qemu.agent_socket)) as source:
        await until(source.vms)
        yield source


LIMITS = [
    UNLIMITED,
    ThrottleLimits(iops_total=500, iops_size=5856),
    ThrottleLimits(bps_read=1 << 20, bps_write=1 << 21, iops_read=100, iops_write=50),
    ThrottleLimits(
        bps_total=10**7, bps_total_max=10**8, bps_total_max_length=4, iops_total=900,
        iops_total_max=1000, iops_total_max_length=60, iops_size=8192,
    ),
]  # fmt: skip


@qemu_is_here
class TestRealQemu:
    async def test_drives_paths_and_limits_are_those_of_the_command_line(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        drives = on_qemu.vms()["db1"].drives
        folder = qemu.agent_socket.parent
        assert {d.target: (d.path, d.in_force) for d in drives.values()} == {
            "vda": (f"{folder}/a.raw", UNLIMITED),
            "vdb": (f"{folder}/b.raw", ThrottleLimits(iops_total=1000, iops_total_max=1500)),
            "sda": (f"{folder}/c.raw", ThrottleLimits(bps_read=77777)),
        }

    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_set_on_a_device_are_those_that_qemu_reports(
        self, on_qemu: QmpSource, qemu: Qemu, limits: ThrottleLimits
    ) -> None:
        await on_qemu.set_limits(VDA, ThrottleLimits(bps_total=1, iops_read=1, iops_size=9), 2.0)
        await on_qemu.set_limits(VDA, limits, 2.0)
        names = {
            "bps_total": "bps", "bps_read": "bps_rd", "bps_write": "bps_wr", "iops_total": "iops",
            "iops_read": "iops_rd", "iops_write": "iops_wr", "bps_total_max": "bps_max",
            "bps_total_max_length": "bps_max_length", "iops_total_max": "iops_max",
            "iops_total_max_length": "iops_max_length", "iops_size": "iops_size",
        }  # fmt: skip
        expected = {names[name]: value for name, value in limits.items() if value}
        found = qemu.block(qdev("vda"))
        assert {n: v for n, v in found.items() if n.startswith(("bps", "iops"))} == expected

    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_set_on_a_throttle_filter_are_those_of_its_object(
        self, on_qemu: QmpSource, qemu: Qemu, limits: ThrottleLimits
    ) -> None:
        await on_qemu.set_limits(DriveId("db1", "vdb"), limits, 2.0)
        found = qemu.ask("qom-get", path="/objects/tg0", property="limits")
        lengths = {name: 1 for name in found if name.endswith("length")}
        given = {name.replace("_", "-"): value for name, value in limits.items() if value}
        assert found == dict.fromkeys(found, 0) | lengths | given
        assert "iops" not in qemu.block(qdev("vdb")), "nothing is limited twice"

    @pytest.mark.parametrize("target", ["vda", "vdb", "sda"])
    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_in_force_are_found_again_by_the_next_agent(
        self, qemu: Qemu, target: str, limits: ThrottleLimits
    ) -> None:
        async with running(vm(qemu.agent_socket)) as first:
            await until(first.vms)
            await first.set_limits(DriveId("db1", target), limits, 2.0)
        async with running(vm(qemu.agent_socket)) as second:
            await until(second.vms)
            assert second.vms()["db1"].drives[target].in_force == limits

    @pytest.mark.parametrize("target", ["vda", "vdb"])
    async def test_a_size_without_an_iops_limit_is_left_out(
        self, on_qemu: QmpSource, qemu: Qemu, target: str
    ) -> None:
        limits = ThrottleLimits(bps_total=5000, iops_size=4096)
        await on_qemu.set_limits(DriveId("db1", target), limits, 2.0)
        in_force = on_qemu.vms()["db1"].drives[target].in_force
        assert in_force == ThrottleLimits(bps_total=5000)

    async def test_limits_that_qemu_refuses_leave_those_that_held(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        await on_qemu.set_limits(VDA, ThrottleLimits(iops_total=100), 2.0)
        with pytest.raises(LimitsRejected, match="cannot be used at the same time"):
            await on_qemu.set_limits(VDA, ThrottleLimits(iops_total=100, iops_read=50), 2.0)
        with pytest.raises(LimitsRejected, match="must be within"):
            await on_qemu.set_limits(DriveId("db1", "vdb"), ThrottleLimits(bps_read=10**18), 2.0)
        assert qemu.block(qdev("vda"))["iops"] == 100
        assert qemu.ask("qom-get", path="/objects/tg0", property="limits")["iops-total"] == 1000

    async def test_counters_count_what_was_done(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.do(qdev("vda"), *["aio_read 0 4k"] * 3, *["aio_write 0 64k"] * 2, "aio_flush")
        qemu.do("sda", "aio_read 0 512", "aio_flush")
        found = await on_qemu.sample(None, 2.0)
        vda, sda = found[VDA], found[DriveId("db1", "sda")]
        assert (vda.read_requests, vda.read_bytes) == (3, 3 * 4096)
        assert (vda.write_requests, vda.write_bytes) == (2, 2 * 65536)
        assert (sda.read_requests, sda.read_bytes, sda.write_requests) == (1, 512, 0)
        assert vda.read_time_ns
        assert vda.write_time_ns
        assert set(found) == {DriveId("db1", target) for target in ("vda", "vdb", "sda")}

    async def test_drives_that_are_plugged_in_and_out_are_followed(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        qemu.ask("blockdev-add", driver="null-co", **{"node-name": "n0"}, size=1 << 20)
        qemu.ask("device_add", driver="scsi-hd", drive="n0", id="sdb", bus="scsi.0", lun=5)
        await on_qemu.sample(None, 2.0)
        await until(lambda: "sdb" in on_qemu.vms()["db1"].drives)
        await on_qemu.set_limits(DriveId("db1", "sdb"), ThrottleLimits(iops_total=5), 2.0)
        qemu.ask("device_del", id="sdb")
        await until(lambda: "sdb" not in on_qemu.vms()["db1"].drives)

    async def test_a_drive_that_just_went_is_gone(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.ask("device_del", id="sda")
        with pytest.raises(DriveGone):
            await on_qemu.set_limits(DriveId("db1", "sda"), UNLIMITED, 2.0)

    async def test_drives_that_share_a_group_are_refused(self, qemu: Qemu) -> None:
        zeros = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
        for device in (qdev("vda"), "sda"):
            qemu.ask("block_set_io_throttle", id=device, iops=9, group="both", **zeros)
        async with running(vm(qemu.agent_socket)) as source:
            await until(source.vms)
            assert "holds" in str(source.vms()["db1"].policy_error)
            with pytest.raises(LimitsRejected):
                await source.set_limits(VDA, UNLIMITED, 2.0)
        assert qemu.block("sda")["iops"] == 9

    async def test_a_stopped_qemu_is_waited_for_and_recovers(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        qemu.stop()
        assert await on_qemu.sample(None, 0.2) == {}
        assert await on_qemu.sample(None, 0.2) == {}
        qemu.process.send_signal(signal.SIGCONT)
        await until(lambda: on_qemu.errors["timeout"] == 2)
        await asyncio.sleep(0.3)
        assert len(await on_qemu.sample(None, 2.0)) == 3
        assert (on_qemu.reconnects, on_qemu.errors.total()) == (0, 2)

    async def test_a_busy_monitor_is_told_from_a_stopped_qemu(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        with pytest.raises(MonitorLost, match="another client uses this monitor; QEMU") as busy:
            await connect(qemu.agent_socket, lambda _: None)
        assert busy.value.kind == "busy"

    async def test_a_stopped_qemu_is_told_from_a_busy_monitor(self, qemu: Qemu) -> None:
        qemu.stop()
        pid = qemu.process.pid
        with pytest.raises(MonitorLost, match=f"from process {pid}; it is stopped") as stopped:
            await connect(qemu.agent_socket, lambda _: None)
        assert stopped.value.kind == "timeout"

    async def test_where_many_wait_for_a_monitor_it_is_busy(self, qemu: Qemu) -> None:
        qemu.stop()
        waiting = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(qemu.agent_socket))
        assert len(waiting) < 10
        with pytest.raises(MonitorLost, match="other clients wait") as busy:
            await connect(qemu.agent_socket, lambda _: None)
        assert busy.value.kind == "busy"
        for sock in waiting:
            sock.close()

    async def test_a_killed_qemu_is_gone(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.process.kill()
        qemu.process.wait()
        await until(lambda: not on_qemu.vms())
        assert await on_qemu.sample(None, 1.0) == {}
