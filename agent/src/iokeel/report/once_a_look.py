"""Answers of the API that are made once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

# Anybody on the host may ask for metrics without pause. They may take this part of the time.
_METRICS_RATIO = 0.1
_LEAST_S = 1.0


class OnceALook:
    """An answer as JSON, kept until the agent has looked at its drives again.

    Pages in Cockpit ask for the host every two seconds: if five are open, four find it made.
    """

    def __init__(self, looks: Callable[[], int], make: Callable[[], msgspec.Struct]) -> None:
        """looks: returns how often the agent has looked so far. make: makes the answer."""
        self._looks, self._make = looks, make
        self._at = -1
        self._made = b""

    def get(self) -> bytes:
        """Return the answer, made now if there is none since the last look."""
        if (looks := self._looks()) != self._at:
            self._at, self._made = looks, msgspec.json.encode(self._make())
        return self._made


class OnceAWhile:
    """Metrics, kept for a second, or for longer if they take long to make."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        self._make = make
        self._making: asyncio.Task[bytes] | None = None
        self._again_at = 0.0

    async def get(self) -> bytes:
        """Return the metrics, made now if nobody has asked for a while."""
        if self._making is None or (self._making.done() and time.monotonic() >= self._again_at):
            self._making = asyncio.create_task(self._made())
        return await asyncio.shield(self._making)

    async def _made(self) -> bytes:
        began = time.monotonic()
        try:
            return await self._make()
        finally:
            ended = time.monotonic()
            self._again_at = ended + max(_LEAST_S, (ended - began) / _METRICS_RATIO)
