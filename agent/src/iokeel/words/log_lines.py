"""The agent's log: lines that nobody can forge, and no more of them than are worth writing."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from types import TracebackType

from iokeel.words.quoting import escaped

# Begins the lines of a traceback, so that none of them looks like a record of its own.
_OF_A_TRACEBACK = "| "
# Subjects that are remembered; beyond, those are forgotten whose time is over.
_MANY = 1000


class LogLines(logging.Formatter):
    """Formats a record as one line, with escapes for what a terminal would act upon.

    A traceback follows in lines of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        return escaped(super().formatMessage(record))

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Return a traceback's lines."""
        return self.formatStack(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """Return a stack's lines."""
        return "\n".join(f"{_OF_A_TRACEBACK}{escaped(line)}" for line in stack_info.split("\n"))


def log_to_stderr(level: str) -> None:
    """Send the log of this process to stderr. level: the name of the lowest that is written."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=level, handlers=[handler])


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
