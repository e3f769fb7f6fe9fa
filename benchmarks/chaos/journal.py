"""What was done to the host and when: what a drive may be held to at any time follows from it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

SETTLE_S = 3.0
"""The agent's time to put limits right, once it and libvirtd are there."""
RECONNECT_S = 5.0
"""The agent's time to find its guests: its longest pause before it connects to libvirtd again
(hypervisors/pace.py). An agent that has just started answers before it has found them."""

Drive = tuple[str, str]
"""A guest's name, and a target of it."""
Span = tuple[float, float]
"""From when to when, in seconds of the epoch."""


@dataclass(frozen=True)
class Allowed:
    """What a drive may be held to: from when to when which limit, and when something else.

    less: when it may be less.
    """

    limits: Sequence[tuple[float, float, int]]
    others: Sequence[Span]
    less: Sequence[Span]

    def excuses(self, at_s: float) -> bool:
        """Return whether the drive's limits may be wrong at a time."""
        return touch(self.others, at_s, at_s)

    def most(self, begin_s: float, end_s: float) -> int | None:
        """Return the highest limit that may have held it at some time; None if unknown."""
        return max(self._at(begin_s, end_s), default=None)

    def least(self, at_s: float) -> int:
        """Return the lowest limit that may hold it at a time; 0 if unknown."""
        return 0 if touch(self.less, at_s, at_s) else min(self._at(at_s, at_s), default=0)

    def _at(self, begin_s: float, end_s: float) -> list[int]:
        return [limit for at_s, over_s, limit in self.limits if at_s <= end_s and over_s >= begin_s]


@dataclass
class Journal:
    """Times are in seconds of the epoch.

    out: when the agent or libvirtd couldn't do their work. unreadable: when a policy was bad, or
    named a class that the agent didn't know: if the agent hasn't read the last good one before, it
    can't follow that either. limits: the limits of each drive's policies, and when each was set.
    unsettled: when something lifted or changed a drive's limits that wasn't the agent. away: when a
    guest was stopped. drained: when QEMU let requests through that waited in the throttle.
    """

    out: list[Span] = field(default_factory=list)
    unreadable: list[Span] = field(default_factory=list)
    limits: dict[Drive, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    unsettled: dict[Drive, list[Span]] = field(default_factory=lambda: defaultdict(list))
    away: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def during(self, spans: list[Span], more_s: float = 0.0) -> Iterator[None]:
        """Note from when to when the block ran. It counts as endless until it has ended.

        more_s: for how long its effect lasts after it.
        """
        begin_s = time.time()
        spans.append((begin_s, float("inf")))
        try:
            yield
        finally:
            spans[spans.index((begin_s, float("inf")))] = (begin_s, time.time() + more_s)

    def followed_s(self, at_s: float) -> float:
        """Return by when the agent must have followed a policy that was set at a time."""
        return _settled_s(at_s, [*self.out, *self.unreadable])

    def settled_s(self, at_s: float) -> float:
        """Return by when the agent must have put limits right that were wrong at a time."""
        return _settled_s(at_s, self.out)

    def of(self, drive: Drive) -> Allowed:
        """Return what a drive may be held to, as far as is known now."""
        limits = self.limits[drive]
        until = [*(self.followed_s(at_s) for at_s, _ in limits[1:]), float("inf")]
        return Allowed(
            [(at_s, over_s, limit) for (at_s, limit), over_s in zip(limits, until, strict=True)],
            [(begin_s, self.settled_s(end_s)) for begin_s, end_s in self.unsettled[drive]],
            # A restored guest has what libvirt was told, which may be half.
            [(begin_s, self.settled_s(end_s)) for begin_s, end_s in self.away[drive[0]]],
        )


def touch(spans: Sequence[Span], begin_s: float, end_s: float) -> bool:
    """Return whether any of the spans has a moment in common with another one."""
    return any(begin <= end_s and end >= begin_s for begin, end in spans)


def _settled_s(at_s: float, outages: Iterable[Span]) -> float:
    """Return when the agent has had its time after `at_s` without any outage."""
    end_s = at_s + SETTLE_S
    for begin_s, over_s in sorted(outages):
        if begin_s < end_s and over_s > at_s:
            end_s = max(end_s, over_s + SETTLE_S)
    return end_s
