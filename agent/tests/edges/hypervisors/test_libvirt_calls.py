"""Calls of libvirt, by its driver for tests."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Coroutine

import pytest
from libvirt import VIR_ERR_OPERATION_TIMEOUT

from iokeel.hypervisors.libvirt import calls
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer
from testing.hypervisors.libvirt_error import refusal
from testing.waiting import until

URI = "test:///default"
HANGS = """
import asyncio, contextlib, threading
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer

async def hang():
    with contextlib.suppress(NoAnswer):
        await Calls("test:///default").call(lambda _: threading.Event().wait(), 0.1)

asyncio.run(hang())
"""


async def test_a_call_returns_what_libvirt_says() -> None:
    names = await Calls(URI).call(lambda libvirt: [d.name() for d in libvirt.listAllDomains()], 30)
    assert names == ["test"]


def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=30, check=False).returncode == 0


async def test_nothing_waits_for_a_libvirtd_that_hangs_as_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, closed = threading.Event(), []

    class Connection:
        def close(self) -> None:
            go_on.wait(60)
            closed.append(self)

    monkeypatch.setattr("libvirt.open", lambda _uri: Connection())
    libvirt = Calls(URI)
    both = threading.Barrier(2)  # so that each needs a connection
    await asyncio.gather(*(libvirt.call(lambda _: both.wait(), 30) for _ in range(2)))
    libvirt.close()
    assert not closed
    go_on.set()
    await until(lambda: len(closed) == 2)


async def test_a_call_that_found_no_thread_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_THREADS", 1)
    libvirt, go_on, made = Calls(URI), threading.Event(), []
    with pytest.raises(NoAnswer):
        await libvirt.call_domain("hung", lambda _: go_on.wait(), 0.1)
    with pytest.raises(NoAnswer):
        await libvirt.call_domain("db1", lambda _: made.append("late"), 0.1)
    go_on.set()
    libvirt.heard_of(["db1"])
    await libvirt.call_domain("db1", lambda _: made.append("in time"), 30)
    assert made == ["in time"]


async def test_a_call_that_timed_out_is_carried_out_before_any_later_one_about_its_domain() -> None:
    libvirt, go_on, made = Calls(URI), threading.Event(), []

    def slow(_: object) -> None:
        go_on.wait()
        made.append("first")

    first = asyncio.create_task(libvirt.call_domain("db1", slow, 0.3))
    await asyncio.sleep(0.1)
    # A busy machine may have the first one time out before.
    with pytest.raises(NoAnswer, match=r"no answer in 0\.1 s|hasn't answered an earlier call"):
        await libvirt.call_domain("db1", lambda _: made.append("withdrawn"), 0.1)
    with pytest.raises(NoAnswer):
        await first
    with pytest.raises(NoAnswer, match=r"hasn't answered an earlier call yet; .* migrating"):
        await libvirt.call_domain("db1", lambda _: made.append("too early"), 30)
    assert made == []
    go_on.set()
    await until(lambda: made == ["first"])
    libvirt.heard_of(["db1"])
    await libvirt.call_domain("db1", lambda _: made.append("last"), 30)
    assert made == ["first", "last"]


async def test_a_domain_that_is_heard_of_may_be_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    libvirt, made = Calls(URI), []

    def busy(_: object) -> None:
        raise refusal(VIR_ERR_OPERATION_TIMEOUT)

    def call() -> Coroutine[object, object, None]:
        return libvirt.call_domain("db1", lambda _: made.append("called"), 30)

    with pytest.raises(NoAnswer):
        await libvirt.call_domain("db1", busy, 30)
    with pytest.raises(NoAnswer):
        await call()
    assert libvirt.heard_of(["db1", "db2"]) == ["db1"]
    await call()
    assert libvirt.heard_of(["db1"]) == []
    monkeypatch.setattr(calls, "_SILENT_S", 0.0)
    with pytest.raises(NoAnswer):
        await libvirt.call_domain("db1", busy, 30)
    await call()
    assert made == ["called"] * 2


async def test_a_domain_may_be_called_again_once_the_call_that_timed_out_has_ended() -> None:
    libvirt, go_on = Calls(URI), threading.Event()
    with pytest.raises(NoAnswer):
        await libvirt.call_domain("db1", lambda _: go_on.wait(), 0.1)
    go_on.set()

    async def answers() -> bool:
        with contextlib.suppress(NoAnswer):
            return await libvirt.call_domain("db1", lambda _: True, 30)
        return False

    async with asyncio.timeout(60):
        while not await answers():
            await asyncio.sleep(0.01)
    assert libvirt.heard_of(["db1"]) == ["db1"], "who waits for it is told yet"


HUNG = 40  # domains: more than take turns at once


@pytest.mark.parametrize("made_again", [False, True])
async def test_domains_that_hang_keep_no_other_from_being_served(made_again: bool) -> None:
    libvirt, go_on, threads = Calls(URI), threading.Event(), threading.active_count()

    async def hang(name: str, timeout_s: float) -> None:
        with contextlib.suppress(NoAnswer):
            await libvirt.call_domain(name, lambda _: go_on.wait(), timeout_s)

    first_s = 5 if made_again else 120
    hung = [asyncio.create_task(hang(f"db{i}", first_s)) for i in range(HUNG)]
    if made_again:
        await asyncio.wait(hung)
        async with asyncio.timeout(60):  # they are not made
            await asyncio.gather(*(hang(f"db{i % HUNG}", 120) for i in range(9 * HUNG)))
    for _ in range(20):
        await libvirt.call(lambda libvirt: libvirt.listAllDomains(), 30)
    await libvirt.call_domain("web1", lambda _: None, 30)
    assert threading.active_count() <= threads + HUNG + 2
    assert not go_on.is_set()  # no call that hangs was waited for
    go_on.set()
    await asyncio.wait(hung)
    libvirt.heard_of(["db0"])
    await libvirt.call_domain("db0", lambda _: None, 30)


async def test_readings_that_hang_keep_no_order_from_being_sent() -> None:
    libvirt, go_on = Calls(URI), threading.Event()

    async def read(name: str) -> None:
        with contextlib.suppress(NoAnswer):
            await libvirt.call_domain(name, lambda _: go_on.wait(), 120, reading=True)

    # More than there are threads for, so that some wait.
    readings = [asyncio.create_task(read(f"db{i}")) for i in range(100)]
    await until(lambda: libvirt._readings.threads.locked(), 120)
    await libvirt.call_domain("web1", lambda _: None, 30)
    assert not go_on.is_set()
    go_on.set()
    await asyncio.wait(readings)
