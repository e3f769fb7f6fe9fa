"""Wait until something is so, by asking again and again."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
#: A program, whether its output is read as text or as bytes.
Process: TypeAlias = subprocess.Popen[str] | subprocess.Popen[bytes]
_PATIENCE_S = 30.0
_PAUSE_S = 0.05
_ASYNC_PAUSE_S = 0.01


def eventually(
    ask: Callable[[], T],
    timeout_s: float = _PATIENCE_S,
    *,
    what: str = "",
    process: Process | None = None,
) -> T:
    """Return the answer of `ask` once it is true.

    what: words for the error. process: its end ends the wait. After timeout_s, or once the process
    has ended, raises what `ask` raised last, or AssertionError if it returned.
    """
    wait = _Wait(ask, timeout_s, what)
    while not wait.over(process):
        time.sleep(_PAUSE_S)
    return wait.answer


async def until(ask: Callable[[], T], timeout_s: float = _PATIENCE_S) -> T:
    """Return the answer of `ask` once it is true; the event loop runs meanwhile."""
    wait = _Wait(ask, timeout_s, "")
    while not wait.over():
        await asyncio.sleep(_ASYNC_PAUSE_S)
    return wait.answer


class _Wait(Generic[T]):
    def __init__(self, ask: Callable[[], T], timeout_s: float, what: str) -> None:
        self._ask, self._timeout_s, self._what = ask, timeout_s, what
        self._deadline = time.monotonic() + timeout_s

    def over(self, process: Process | None = None) -> bool:
        """Ask once, and return whether there is an `answer`."""
        ended = process is not None and process.poll() is not None
        late = time.monotonic() > self._deadline
        try:
            self.answer = self._ask()
        except Exception:
            if ended or late:
                raise
            return False
        if not self.answer and (ended or late):
            why = "its process has ended" if ended else f"not so within {self._timeout_s} s"
            raise AssertionError(f"{self._what}: {why}" if self._what else why)
        return bool(self.answer)
