"""QMP connections that break, come back, or never were."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import msgspec
import pytest

from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED
from iokeel.errors import DriveGone
from iokeel.host.process import Process, process
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES_BYTES, MOST_REPLY_BYTES
from iokeel.hypervisors.qmp import monitor
from iokeel.hypervisors.qmp.connection import ANYTHING, connect, decoder
from iokeel.hypervisors.qmp.faults import MonitorLost
from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors.qmp_server import QmpServer, answer, error
from testing.waiting import until
from tests.edges.hypervisors.sources import PATIENCE_S, VDA, lines, running, vm


@pytest.mark.parametrize(
    "last_words", [b"", b'{"return": [{"device": "", "stats"'], ids=["between", "mid-reply"]
)
async def test_a_connection_that_breaks_is_made_again_and_the_vm_stays_known(
    source: QmpSource, server: QmpServer, last_words: bytes
) -> None:
    gone: list[str] = []
    source.on_change = gone.append
    server.answers["query-blockstats"] = lambda _: server.drop(last_words)
    # A broken connection is not waited for.
    assert await asyncio.wait_for(source.sample(None, 120.0), 60.0) == {}
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"closed": 1}
    assert VDA in await source.sample(None, PATIENCE_S)
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
        await source.set_limits(VDA, UNLIMITED, PATIENCE_S)
    assert await source.sample(None, PATIENCE_S) == {}


@pytest.fixture
def qemus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that run; the last one is the QEMU that listens wherever one is connected to."""
    made = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    told = "iokeel.hypervisors.qmp.connection.qemu"
    monkeypatch.setattr(told, lambda _pid: process(made[-1].pid))
    yield made
    for each in made:
        each.kill()
        each.wait()


async def test_a_vm_whose_qemu_unlinks_its_monitor_is_known_until_its_process_ends(
    folder: Path, qemus: list[subprocess.Popen[bytes]]
) -> None:
    server = await QmpServer(folder / "db1.qmp").start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        first, second = qemus
        assert source.vms()["db1"].process == process(second.pid)
        qemus.reverse()  # a child of QEMU's listens in its place, and ends
        server.drop()
        await until(lambda: source.vms()["db1"].process == process(first.pid))
        server.path.unlink()
        server.drop()
        await until(lambda: source.errors["missing"])
        for qemu in (first, second):
            assert "db1" in source.vms()
            qemu.kill()
            qemu.wait()
            source.announce("db1")
        await until(lambda: not source.vms())
        assert not source.unread()
    await server.stop()


async def test_a_monitor_that_is_a_link_to_another_vms_is_refused(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await QmpServer(folder / "db1.qmp").start()
    evil = folder / "evil.qmp"
    evil.symlink_to(server.path)
    async with running(vm(evil, "evil")) as source:
        await until(lambda: source.errors["permission"])
        assert server.connections == 0
        assert source.unread() == {"evil"}
    assert lines(caplog) == [
        f"VM evil: {evil}: evil.qmp is a link of user {os.geteuid()}, so it may lead to another"
        " VM's monitor; give the socket's own path"
    ]
    await server.stop()


async def test_of_two_vms_with_one_qemu_only_the_first_is_served(
    folder: Path, qemus: list[subprocess.Popen[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    first = await QmpServer(folder / "db1.qmp").start()
    second = await QmpServer(folder / "evil.qmp").start()
    config = Config(vms=(vm(first.path), vm(second.path, "evil")))
    async with running(vm(first.path)) as source:
        await until(source.vms)
        source.configure(config)
        await until(lambda: source.errors["busy"])
        assert [*source.vms()] == ["db1"]
        pid = qemus[-1].pid
        assert lines(caplog) == [
            f"VM evil: {second.path}: process {pid} is the QEMU of VM db1;"
            " give each [[vm]] a QEMU of its own"
        ]
        qemus.reverse()
        source.announce("evil")
        await until(lambda: {*source.vms()} == {"db1", "evil"})
    await first.stop()
    await second.stop()


async def test_a_qemu_that_answers_slowly_keeps_no_other_from_being_connected_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.qmp.source._CONNECTING", 1)
    monkeypatch.setattr(monitor, "_DISCOVERY_S", 0.2)
    evil = QmpServer(folder / "evil.qmp")
    evil.plug("vda", "/images/a.raw")
    evil.answers["query-block"] = lambda _: None
    await evil.start()
    server = QmpServer(folder / "db1.qmp")
    async with running(vm(evil.path, "evil"), vm(server.path)) as source:
        await until(lambda: "query-block" in evil.commands())
        await server.start()
        source.announce("db1")
        await until(lambda: "db1" in source.vms())
        await until(lambda: source.errors["timeout"])
        assert source.unread() == {"evil"}
    assert any("it hasn't told all its drives in 0.2 s" in line for line in lines(caplog))
    await evil.stop()
    await server.stop()


async def test_a_vm_whose_qemu_an_earlier_agent_has_found_may_run_until_its_process_ends(
    folder: Path, qemus: list[subprocess.Popen[bytes]]
) -> None:
    found = process(qemus[0].pid)
    assert found is not None
    async with running(vm(folder / "db1.qmp"), ran={"db1": found}) as source:
        await until(lambda: source.errors["missing"])
        assert source.unread() == {"db1"}
        qemus[0].kill()
        qemus[0].wait()
        source.announce("db1")
        await until(lambda: not source.unread())


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
        assert await source.sample(None, PATIENCE_S)
        await server.stop()
    assert ["no such" in lines(caplog)[0], "nobody" in lines(caplog)[1]] == [True, True]


async def test_an_unforeseen_fault_at_one_vm_ends_only_its_connection(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter(["at its start", "at a later change"])

    def changed(name: str) -> None:
        if name == "db1" and (fault := next(faults, None)) is not None:
            raise RuntimeError(fault)

    servers = [await QmpServer(folder / f"db{n}.qmp").start() for n in (1, 2)]
    async with running(vm(servers[0].path), vm(servers[1].path, "db2")) as source:
        source.on_change = changed
        await until(lambda: servers[0].connections == 2)
        await until(lambda: len(source.vms()) == 2)
        servers[0].plug("vdb")
        source.announce("db1")
        await until(lambda: source.errors["internal"] == 2)
        assert {*await source.sample(None, PATIENCE_S)} == {DriveId("db2", "vda")}
        await until(lambda: servers[0].connections == 3)
        drives = {VDA, DriveId("db1", "vdb"), DriveId("db2", "vda")}
        while {*await source.sample(None, PATIENCE_S)} != drives:
            await asyncio.sleep(0.01)
    assert source.errors == {"internal": 2}
    assert lines(caplog) == ["VM db1: internal error, please report it"] * 2


async def test_a_process_that_cannot_be_told_keeps_no_guest_from_its_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc doesn't answer as long as something holds the process's memory map."""
    go_on, qemu = threading.Event(), Process(7, 70)
    monkeypatch.setattr("iokeel.hypervisors.qmp.connection._PROCESS_TIMEOUT_S", 0.1)

    def told(pid: int) -> Process:
        assert pid == os.getpid()
        assert go_on.wait(PATIENCE_S)
        return qemu

    monkeypatch.setattr("iokeel.hypervisors.qmp.connection.qemu", told)
    server = await QmpServer(folder / "db1.qmp").start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert source.vms()["db1"].process is None
        await source.set_limits(VDA, UNLIMITED, PATIENCE_S)
        go_on.set()

        def is_told() -> bool:
            source.announce("db1")
            return source.vms()["db1"].process == qemu

        await until(is_told)
    await server.stop()


async def test_a_vm_may_run_until_nobody_listens(folder: Path) -> None:
    async def babble(_reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    path = folder / "db1.qmp"
    async with running(vm(path)) as source:
        assert source.unread() == {"db1"}
        await until(lambda: not source.unread())
        server = await asyncio.start_unix_server(babble, path)
        source.announce("db1")
        await until(lambda: source.errors["protocol"])
        assert source.unread() == {"db1"}
        assert source.vms() == {}
        server.close()


async def test_a_vm_that_is_announced_is_connected_to_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "delays", lambda: chain([0.01] * 3, repeat(3600.0)))
    server = QmpServer(folder / "db1.qmp")
    async with running(vm(server.path)) as source:
        await until(lambda: source.errors["missing"] == 4)  # the next try is an hour away
        await server.start()
        source.announce("db1")
        source.announce("nobody")
        await until(source.vms)


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
    kept = await first.execute("query-name", {}, decoder(msgspec.Raw), PATIENCE_S)
    assert await second.execute("query-name", {}, ANYTHING, PATIENCE_S) == "b" * 50
    assert bytes(kept) == b'"%b"' % (b"a" * 50)
    first.close()
    second.close()


async def test_a_line_without_end_is_given_up(source: QmpSource, server: QmpServer) -> None:
    server.answers["query-blockstats"] = lambda _: b'{"return": "' + b"x" * (MOST_DRIVES_BYTES + 1)
    assert await source.sample(None, PATIENCE_S) == {}
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"protocol": 1}
    assert VDA in await source.sample(None, PATIENCE_S)


async def test_drives_with_many_backing_files_are_served(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """QEMU tells of each of them: of 150 drives with 13 each, 1.1 MB and 2.7 MB."""
    server = QmpServer(folder / "db1.qmp")
    beneath = {"filename": "/b", "backing-filename": "x" * MOST_REPLY_BYTES}
    server.drives["vda"]["inserted"]["image"] = {"filename": "/a", "backing-image": beneath}
    server.counters["vda"]["backing"] = {"stats": "x" * MOST_REPLY_BYTES}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert VDA in await source.sample(None, PATIENCE_S)
        assert source.errors.total() == 0
        server.drives["vda"]["inserted"]["image"] = "x" * (MOST_DRIVES_BYTES + (1 << 20))
        source.announce("db1")
        await until(lambda: source.errors["protocol"])
    told = "a line of more than 32 MiB; merge its drives' backing files"
    assert told in lines(caplog)[0]
    await server.stop()


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
    assert await source.sample(None, PATIENCE_S) == {}
    del server.answers["query-blockstats"]
    await until(lambda: source.reconnects == 1)
    assert source.errors == {"protocol": 1}
    assert VDA in await source.sample(None, PATIENCE_S)


async def test_a_monitor_without_block_commands_is_told_as_such(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = QmpServer(folder / "db1.qmp")
    server.answers["query-block"] = lambda r: error(r, "CommandNotFound", "no such command")
    await server.start()
    async with running(vm(server.path)) as source:
        await until(lambda: source.errors["refused"] >= 2)
    assert lines(caplog) == [f"VM db1: {server.path}: query-block: no such command"]
