"""Calls of libvirt, by its driver for tests."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from iokeel.hypervisors.libvirt import calls
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer

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
