"""An event loop whose time passes only when all that runs in it waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")
_BEGIN_S = 1000.0


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting."""

    now_s = _BEGIN_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def time_ns(self) -> int:
        return round(self._virtual.now_s * 1e9)


def run(main: Coroutine[object, None, T], loop: VirtualLoop) -> T:
    """Run until it is done, and end all that it has begun."""
    try:
        return loop.run_until_complete(main)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
