"""A thread that looks at something again and again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self


class Sampler:
    """Runs `_run` in a thread of its own, while it is used as a context manager.

    A subclass's `_run` returns soon after `_stop` is set.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._running = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking, and raise what went wrong with it."""
        self._stop.set()
        self._running.result()

    def ended(self) -> bool:
        """Return whether it looks no more, because of the end or a failure."""
        return self._running.done()

    def check(self) -> None:
        """Raise what went wrong with it so far."""
        if self.ended():
            self._running.result()

    def _run(self) -> None:
        raise NotImplementedError
