"""Work that is done beside the ticks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from iokeel.report.metrics.prometheus import Metrics

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """Tasks that nobody waits for. An error of one is logged and counted, and ends nothing."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Begin work."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, timeout_s: float) -> None:
        """Wait until those that run now have ended, or the time is over."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.errors["internal"] += 1
            log.error("internal error, please report it", exc_info=error)
