"""Which lines of a log are worth writing, if what they tell comes from outside."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

# Subjects that are remembered; beyond, those are forgotten whose time is over.
_MANY = 1000


class Sparing:
    """At most so many lines about a subject in a time, from the first of them on."""

    def __init__(self, most: int, span_s: float) -> None:
        self._most, self._span_s = most, span_s
        self._told: dict[Hashable, tuple[float, int]] = {}

    def may(self, subject: Hashable) -> bool:
        """Return whether to write a line about a subject, and count it."""
        return self._count(subject) <= self._most

    def info(self, log: logging.Logger, vm: str, text: str, *words: object) -> None:
        """Write a line about a VM, or once that others are left out."""
        count = self._count(vm)
        if count <= self._most:
            log.info(text, *words)
        elif count == self._most + 1:
            log.info("VM %s: further lines like this are left out for a while", vm)

    def _count(self, subject: Hashable) -> int:
        now = time.monotonic()
        since, count = self._told.get(subject, (now, 0))
        if now - since >= self._span_s:
            since, count = now, 0
        if subject not in self._told and len(self._told) >= _MANY:
            self._told = {s: of for s, of in self._told.items() if now - of[0] < self._span_s}
        self._told[subject] = since, count + 1
        return count + 1
