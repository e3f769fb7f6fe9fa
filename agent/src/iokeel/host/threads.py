"""Threads for what may hang, such as a look at a file system that doesn't answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def beside(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call a function that raises nothing in a thread, and return the future of its result.

    The thread is no executor's, because the process couldn't end before one that hangs.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(found: T) -> None:
        if not result.done():
            result.set_result(found)

    def run() -> None:
        found = function()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
