"""Calls of libvirt, by its driver for tests."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt import calls
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer, Turns
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


async def test_a_call_that_found_no_thread_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_THREADS", 1)
    libvirt, go_on, made = Calls(URI), threading.Event(), []
    with pytest.raises(NoAnswer):
        await libvirt.call(lambda _: go_on.wait(), 0.1)
    with pytest.raises(NoAnswer):
        await libvirt.call(lambda _: made.append("late"), 0.1)
    go_on.set()
    await libvirt.call(lambda _: made.append("in time"), 30)
    assert made == ["in time"]


async def test_an_order_that_timed_out_is_not_the_last_to_take_effect() -> None:
    libvirt, turns = Calls(URI), Turns()
    go_on, made = threading.Event(), []

    def slow(_: object) -> None:
        go_on.wait()
        made.append("first")

    with pytest.raises(NoAnswer):
        await libvirt.call(turns.last(slow, "db1/vda", 30), 0.1)
    second = turns.last(lambda _: made.append("second"), "db1/vda", 30)
    with pytest.raises(NoAnswer):
        await libvirt.call(second, 0.1)
    third = turns.last(lambda _: made.append("third"), "db1/vda", 30)
    with pytest.raises(NoAnswer):
        await libvirt.call(third, 0.1)
    assert made == []
    go_on.set()
    await until(lambda: "third" in made)
    assert made == ["first", "third"]


def test_an_order_waits_no_longer_than_it_may_for_one_that_hangs() -> None:
    turns, go_on = Turns(), threading.Event()
    hung = threading.Thread(target=turns.last(lambda _: go_on.wait(), "db1/vda", 30), args=(None,))
    hung.start()
    with pytest.raises(LimitsRejected, match="an earlier order is still under way"):
        turns.last(lambda _: None, "db1/vda", 0.1)(None)
    go_on.set()
    hung.join()
