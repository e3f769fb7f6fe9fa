"""Which promises a run broke, from measurements that are none of the agent's.

- **Limits**: what each look at QEMU found. At no time may a drive's limits let requests of some
  size do more than `limits_ratio` times the highest limit that its policies may still give it, nor
  all sizes less than LEAST_RATIO times the lowest. A new limit may take effect late (journal.py),
  so the one before it counts until then.
- **fio's log** of each drive: no window of a second above `window_ratio` times that same limit.
  Requests that the machine held up come late and don't count (demo/conformance.py).
- **QEMU's count** of what it let through, if it has the patches: no second above `passed_ratio`
  times that same limit. A guest that is held up sees completions in bunches, and so does fio's
  log; this count doesn't.
- **Guests**: each runs, unless it was stopped.
- **The agent's log**: no fault of its own.

When a guest is stopped, gets a snapshot or a disk, QEMU drains its disks: it lets through at once
what waits in the throttle, which is accounted for later. The end of a block commit drains a disk
five times within 40 ms, and so does its begin: 9.4 times what waits has passed in a second with a
short one. Seconds may have `drains` times that for each such moment that they touch.

What a hand changed is excused until the agent has had its time, and so is a disk that was just
plugged in. Such samples are counted apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from benchmarks.chaos.host import DEPTH, SIZES
from benchmarks.chaos.journal import Drive, Journal, Span, touch
from benchmarks.chaos.monitor import Look
from benchmarks.demo import conformance
from benchmarks.demo.fio_log import Completions, window_starts
from benchmarks.demo.limits_in_force import Sample, ceiling
from iokeel.core.values.curve import DEFAULT_MODEL

LEAST_RATIO = 0.9
_AWAY_S = 0.2  # an answer of QEMU's may be on its way while a guest stops
_APART_S = 1.0  # breaches that are closer are one
_QUEUE_COST = DEPTH * DEFAULT_MODEL.read.cost(max(SIZES))

Seen = Literal["limits", "fio", "qemu", "guest", "end", "log"]


@dataclass(frozen=True)
class Bounds:
    """How much more than its policy's limit a drive may be allowed, and may do in a second.

    window_ratio: by fio's log. passed_ratio: by QEMU's count. drains: how often what waits may pass
    besides, for each drain that a second touches.
    """

    limits_ratio: float
    window_ratio: float
    passed_ratio: float
    drains: int


# Stock QEMU doesn't count.
BOUNDS = {"stock": Bounds(1.1, 1.25, math.inf, 1), "exact": Bounds(1.01, 1.06, 1.06, 5)}


@dataclass(frozen=True)
class Breach:
    """A promise that was broken.

    seen: by what. drive: or the guest. at_s, until_s: since the first fault could come. what: in
    words, of the first sample or window.
    """

    seen: Seen
    drive: str
    at_s: float
    until_s: float
    what: str

    @classmethod
    def at(cls, seen: Seen, drive: str, at_s: float, what: str) -> Self:
        """Return one that was seen once."""
        return cls(seen, drive, at_s, at_s, what)


@dataclass
class Judged:
    """What the measurements of a drive show.

    samples: that count. unlimited: those of them without a limit. too_high, too_low: those with one
    that is so. excused: others that were so while they could be. excused_s: from when to when.
    highest_ratio: what limits allowed, at most. worst_ratio: of a window of a second, without what
    came late. did_worst_ratio: with it. passed_ratio: the most that QEMU let through in a second,
    by its own count. seconds: how long fio's log is.
    """

    samples: int = 0
    excused: int = 0
    excused_s: list[Span] = field(default_factory=list)
    unlimited: int = 0
    too_high: int = 0
    too_low: int = 0
    highest_ratio: float = 0.0
    worst_ratio: float = 0.0
    did_worst_ratio: float = 0.0
    passed_ratio: float = 0.0
    seconds: float = 0.0
    breaches: list[Breach] = field(default_factory=list)


def judge_limits(
    looks: Sequence[Look], drive: Drive, journal: Journal, bounds: Bounds, zero_s: float
) -> Judged:
    """Return what the samples of a drive's limits show."""
    judged = Judged()
    name, target = drive
    allowed = journal.of(drive)
    was_excused = False
    for look in looks:
        limits = look.limits.get(target)
        if limits is None:
            continue
        most, least = allowed.most(look.at_s, look.at_s), allowed.least(look.at_s)
        if most is None or _away(journal, name, look.at_s):
            continue
        rate = ceiling(limits)
        ratio = rate / most
        is_wrong = ratio > bounds.limits_ratio or rate < LEAST_RATIO * least
        if is_wrong and allowed.excuses(look.at_s):
            judged.excused += 1
            _extend(judged.excused_s, look.at_s - zero_s)
            was_excused = True
            continue
        if was_excused:  # they were put right at some time between the two looks
            begin_s, _ = judged.excused_s.pop()
            judged.excused_s.append((begin_s, look.at_s - zero_s))
            was_excused = False
        judged.samples += 1
        if ratio == math.inf:
            judged.unlimited += 1
            what = f"no limit: {limits}"
        else:
            judged.highest_ratio = max(judged.highest_ratio, ratio)
            if not is_wrong:
                continue
            if ratio > bounds.limits_ratio:
                judged.too_high += 1
                what = f"limits allow {ratio:.3f} of {most}: {limits}"
            else:
                judged.too_low += 1
                what = f"limits allow only {rate / least:.3f} of {least}: {limits}"
        judged.breaches.append(Breach.at("limits", f"{name} {target}", look.at_s - zero_s, what))
    judged.breaches = joined(judged.breaches)
    return judged


def judge_requests(
    judged: Judged,
    done: Completions,
    looks: Sequence[Look],
    drive: Drive,
    journal: Journal,
    bounds: Bounds,
    zero_s: float,
) -> None:
    """Add what fio's log of a drive shows."""
    name, target = drive
    begin_s = float(done.at_s[0])
    samples = [
        Sample(look.at_s - begin_s, look.limits[target]) for look in looks if target in look.limits
    ]
    allowed = journal.of(drive)
    lowest = min(limit for _, _, limit in allowed.limits)
    since = done.after(begin_s)
    in_time = conformance.Drive(since, samples, conformance.LATE_S + _QUEUE_COST / lowest)
    judged.seconds = float(since.at_s[-1])
    most_in = _bounded(judged, looks, drive, journal, bounds, zero_s)
    for start_s in window_starts(0, judged.seconds):
        at_s = begin_s + start_s
        if (bound := most_in(at_s, at_s + 1)) is None:
            continue
        most, let_through = bound
        ratio = (in_time.did_in_time(start_s) - let_through) / most
        judged.worst_ratio = max(judged.worst_ratio, ratio)
        did = (since.rate(start_s, start_s + 1) - let_through) / most
        judged.did_worst_ratio = max(judged.did_worst_ratio, did)
        if ratio > bounds.window_ratio:
            what = f"did {ratio:.3f} of {most} in a second"
            judged.breaches.append(Breach.at("fio", f"{name} {target}", at_s - zero_s, what))
    judged.breaches = joined(judged.breaches)


def judge_passed(
    judged: Judged,
    looks: Sequence[Look],
    drive: Drive,
    journal: Journal,
    bounds: Bounds,
    zero_s: float,
) -> None:
    """Add what QEMU counted of a drive, from one look to the first a second later or more.

    A count begins again at 0 with each new QEMU and each new group.
    """
    name, target = drive
    most_in = _bounded(judged, looks, drive, journal, bounds, zero_s)
    counts = [look for look in looks if target in look.passed]
    after = 0
    for before in counts:
        while after < len(counts) and counts[after].at_s - counts[after].took_s < before.at_s + 1:
            after += 1
        if after == len(counts):
            break
        then = counts[after]
        cost = then.passed[target] - before.passed[target]
        began_s = before.at_s - before.took_s
        if cost < 0 or (bound := most_in(began_s, then.at_s)) is None:
            continue
        most, let_through = bound
        ratio = (cost - let_through) / (then.at_s - began_s) / most
        judged.passed_ratio = max(judged.passed_ratio, ratio)
        if ratio > bounds.passed_ratio:
            what = f"QEMU let {ratio:.3f} of {most} through in a second"
            judged.breaches.append(Breach.at("qemu", f"{name} {target}", began_s - zero_s, what))
    judged.breaches = joined(judged.breaches)


def _bounded(
    judged: Judged,
    looks: Sequence[Look],
    drive: Drive,
    journal: Journal,
    bounds: Bounds,
    zero_s: float,
) -> Callable[[float, float], tuple[int, float] | None]:
    """Return a function of when a window begins and ends.

    It returns the drive's limit, and the cost that QEMU may let through beside it at once; None if
    the window doesn't count.
    """
    allowed = journal.of(drive)
    unsettled = [(begin, _next_look_s(looks, end)) for begin, end in journal.unsettled[drive]]
    seen = [(zero_s + begin, zero_s + end) for begin, end in judged.excused_s]
    excused = [(begin - _AWAY_S, end + _AWAY_S) for begin, end in (*unsettled, *seen)]
    drained = journal.drained[drive[0]]

    def bound(begin_s: float, end_s: float) -> tuple[int, float] | None:
        most = allowed.most(begin_s, end_s)
        if most is None or touch(excused, begin_s, end_s):
            return None
        drains = bounds.drains * sum(touch([span], begin_s, end_s) for span in drained)
        return most, drains * _QUEUE_COST

    return bound


def judge_guest(looks: Sequence[Look], name: str, journal: Journal, zero_s: float) -> list[Breach]:
    """Return when a guest didn't run though nothing had stopped it."""
    return [
        Breach.at("guest", name, look.at_s - zero_s, f"its QEMU says {look.status or 'nothing'}")
        for look in looks
        if look.status != "running" and not _away(journal, name, look.at_s)
    ]


def joined(breaches: Sequence[Breach]) -> list[Breach]:
    """Return breaches by time, those that follow each other as one."""
    last: dict[tuple[str, str], int] = {}
    found: list[Breach] = []
    for breach in sorted(breaches, key=lambda breach: breach.at_s):
        before = last.get((breach.seen, breach.drive))
        if before is not None and breach.at_s - found[before].until_s < _APART_S:
            found[before] = replace(found[before], until_s=breach.until_s)
        else:
            last[breach.seen, breach.drive] = len(found)
            found.append(breach)
    return found


def _extend(spans: list[Span], at_s: float) -> None:
    """Add a time to the last of the spans, or as a new one."""
    begin_s, end_s = spans.pop() if spans and at_s - spans[-1][1] < _APART_S else (at_s, at_s)
    spans.append((begin_s, max(end_s, at_s)))


def _next_look_s(looks: Sequence[Look], at_s: float) -> float:
    """Return when limits were looked at next: a hand's may have been there until then, unseen."""
    place = bisect_right(looks, at_s, key=lambda look: look.at_s)
    return looks[place].at_s if place < len(looks) else at_s


def _away(journal: Journal, name: str, at_s: float) -> bool:
    return touch(journal.away[name], at_s - _AWAY_S, at_s)
