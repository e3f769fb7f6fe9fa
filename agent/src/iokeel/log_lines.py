"""The agent's log: lines that nobody else can forge, whatever a guest, QEMU or libvirt says."""

from __future__ import annotations

import logging
from types import TracebackType

from iokeel.words.quoting import escaped

# Begins the lines of a traceback, so that none of them looks like a record of its own.
_OF_A_TRACEBACK = "| "


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
