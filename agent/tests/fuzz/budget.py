"""What an input may cost, and what may come of it."""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections.abc import Callable, Iterator

from iokeel.core.values.limits import ThrottleLimits
from iokeel.errors import IokeelError

#: The most that one input may cost.
MOST_CPU_S = 0.05
MOST_BYTES = 50 << 20
# An error names a path of 4096 bytes at most.
_MOST_TEXT = 16384
# A slow run may be the machine's fault: only the fastest of several counts.
_AGAIN = 4


class Broken(AssertionError):
    """An input breaks a promise."""


def within_budget(run: Callable[[bytes], None], data: bytes) -> None:
    """Run a target on an input. Raises Broken if that costs too much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took_s = _cpu_s(run, data)
    grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grew > MOST_BYTES:
        raise Broken(f"{len(data)} bytes take {grew >> 20} MiB of memory")
    if took_s > MOST_CPU_S:
        took_s = min(took_s, *(_cpu_s(run, data) for _ in range(_AGAIN)))
    if took_s > MOST_CPU_S:
        raise Broken(f"{len(data)} bytes take {1000 * took_s:.0f} ms of CPU")


def _cpu_s(run: Callable[[bytes], None], data: bytes) -> float:
    start_s = time.process_time()
    run(data)
    return time.process_time() - start_s


@contextlib.contextmanager
def only(*documented: type[IokeelError]) -> Iterator[None]:
    """Let a block raise the errors that it is documented to raise, each with one short line."""
    try:
        yield
    except documented as error:
        one_line(str(error))


def one_line(text: str) -> None:
    """Raise Broken if a message to an operator isn't one line of bearable length."""
    if not text.isprintable() or len(text) > _MOST_TEXT:
        raise Broken(f"not one line of text: {text[:2000]!r} ({len(text)} characters)")


def limits_make_sense(limits: ThrottleLimits | None) -> None:
    """Raise Broken if limits aren't unknown (None), but one is below 1."""
    if limits is None:
        return
    if any(value is not None and value <= 0 for _, value in limits.items()):
        raise Broken(f"{limits}")
    if limits.idle_credit_ms < 0:
        raise Broken(f"{limits}")


class Log(logging.Handler):
    """Takes the agent's log, each record of which has to be one line too."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: Broken | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Check a record."""
        try:
            one_line(record.getMessage())
        except Broken as error:
            self.broken = error

    def check(self) -> None:
        """Raise Broken if a record since the last check was."""
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken
