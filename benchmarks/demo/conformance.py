"""How well iokeel kept a drive to its limit, told apart from what the machine did.

A busy machine may keep a guest from asking for all that it is allowed. The drive then does less
than its limit, and iokeel has no part in it. Three measurements of the same run tell the two
apart, none of them the agent's: fio's log of every request in the guest, the guest's clock against
the host's, and the limits that QEMU had in force (limits_in_force.py). They give two figures for
each second, as ratios of the policy's limit:

    did      the cost of the requests that ended in the second
    allowed  did / used, when the limits in force charge `used` seconds for these requests: what
             the drive would have done of the same requests if it had never stopped asking

- **Too little.** If the drive did less than it was allowed, no request was waiting in the throttle
  for part of the second. That part is the machine's, so `allowed` counts instead of `did`. A second
  at 91 % is iokeel's under limits that allow 91 %, and the machine's under limits that allow 100 %.
  Limits that allow 110 % count as 110 %, whether or not the drive made use of it.
- **Too much** is iokeel's, with one exception: requests that the machine held up end late, and add
  to what ends then. They don't count, as far as the drive was allowed more just before and didn't
  do it. That is LATE_S at most, which QEMU lets through after a pause, and the requests under way.
- **Hardly asking.** While limits don't matter to a drive, iokeel leaves them as they are. A second
  in which the drive used less than ASKED_RATIO of what it was allowed doesn't count, unless it did
  more than its limit.

A phase begins when the drive's requests shift: when the first request of a new size ends, or the
last one of an old size. iokeel sees a shift by looking twice, for LOOK_S at the least. A look tells
it nothing while the drive hardly asks, or if QEMU doesn't answer. So iokeel's time starts with the
first CLEAR_SECONDS in a row: the drive asked in every LOOK_S of them, and whoever asked libvirtd
for its limits got an answer within UNANSWERED_S. The phase is

    missed     if a second is off by more than `within_ratio` once iokeel had `settled_s`, or the
               mean of these seconds is too little by more than `mean_ratio`, or the drive did too
               much by more than that in them, without what came late, or any window of a second is
               above `window_ratio`
    unclear    if fewer than MIN_SECONDS of them count
    kept       otherwise
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from benchmarks.demo.fio_log import Completions, Floats, window_starts
from benchmarks.demo.limits_in_force import Sample, Throttle, gaps
from benchmarks.demo.scenario import Bounds

ASKED_RATIO = 0.75
"""iokeel's own bound is 0.6. It looks at other moments than these seconds, hence the margin."""
LATE_S = 0.1
"""What a bucket of QEMU's holds, in seconds of the limit: so much passes at once after a pause."""
CLEAR_SECONDS = 3
LOOK_S = 0.4
MIN_SECONDS = 2
_LATE_WITHIN_S = 2.0  # by then, requests that were held up have ended
_STEP_S = 0.05

Verdict = Literal["kept", "missed", "unclear"]


@dataclass(frozen=True)
class Span:
    """A phase of one drive, or the part of it under one limit of the policy.

    Times are in seconds. limit: normalized iops. windows_from_s: where the first window begins.
    """

    phase: str
    start_s: float
    end_s: float
    limit: float
    windows_from_s: float


@dataclass(frozen=True)
class Second:
    """A second of a span, in ratios of its limit.

    in_time: what it did, without what came late. allowed: None if nothing in force limits these
    requests. counts: None if it doesn't count. clear: whether iokeel could see in it what the drive
    wants.
    """

    did_ratio: float
    in_time_ratio: float
    allowed_ratio: float | None
    counts_ratio: float | None
    clear: bool


@dataclass(frozen=True)
class Conformance:
    """How iokeel kept a drive to its limit in a span.

    misses: the bounds that were missed, in words. held_up_s: for how long the machine kept the
    drive from asking. back_s: when the last second that was off ended, in seconds since iokeel's
    time started. mean_ratio: of the seconds that count, once settled; None if none does.
    worst_ratio: of any window of a second, without what came late. did_mean_ratio,
    did_worst_ratio: the same of all that the drive did, whoever's fault it is.
    """

    span: Span
    verdict: Verdict
    misses: tuple[str, ...]
    held_up_s: float
    back_s: int
    mean_ratio: float | None
    worst_ratio: float
    did_mean_ratio: float
    did_worst_ratio: float
    seconds: tuple[Second, ...]


class Drive:
    """A drive's requests, what the limits in force allowed, and what came late."""

    def __init__(self, done: Completions, samples: Sequence[Sample], most_late_s: float) -> None:
        """Take both on one clock, which is 0 when the first request ends.

        most_late_s: how much may come late at once, in seconds of what is allowed.
        """
        self._done = done
        self._throttle = Throttle(done, samples)
        self._unanswered = gaps(samples)
        self._steps_s = np.arange(0, done.at_s[-1] + _STEP_S, _STEP_S)
        self._late = self._late_cost(most_late_s)

    def _late_cost(self, most_late_s: float) -> Floats:
        """Return the cost of all that came late up to each step."""
        late = [0.0]
        left_s: deque[float] = deque(maxlen=round(_LATE_WITHIN_S / _STEP_S))  # by step
        for start_s in self._steps_s[:-1]:
            used_s = _STEP_S * self._throttle.used_ratio(start_s, start_s + _STEP_S)
            late_s = _take(left_s, used_s - _STEP_S)
            left_s.append(max(0.0, min(_STEP_S - used_s, most_late_s - sum(left_s))))
            done = _STEP_S * self._done.rate(start_s, start_s + _STEP_S)
            late.append(done * late_s / used_s if late_s else 0.0)
        return np.cumsum(late)

    def judge(self, span: Span, bounds: Bounds) -> Conformance:
        """Return how iokeel kept the drive to its limit in a span."""
        whole = range(int(span.end_s - span.start_s))
        seconds = tuple(self._second(span, span.start_s + i) for i in whole)
        counts = [second.counts_ratio for second in seconds]
        settled = int(bounds.settled_s)
        begin = _first_run([second.clear for second in seconds], CLEAR_SECONDS)
        off = [_is_off(ratio, bounds) for ratio in counts[begin:]]
        back_s = max((i + 1 for i, is_off in enumerate(off) if is_off), default=0)
        settled_seconds = seconds[begin + settled :]
        later = [
            second.counts_ratio for second in settled_seconds if second.counts_ratio is not None
        ]
        mean = _mean(later)
        in_time = _mean([s.in_time_ratio for s in settled_seconds if s.counts_ratio is not None])
        windows = window_starts(span.windows_from_s, span.end_s)
        worst = max(self._did_in_time(span, start_s) for start_s in windows)
        misses = tuple(_misses(back_s, mean, in_time, worst, bounds))
        decided = len(later) >= MIN_SECONDS
        return Conformance(
            span,
            "missed" if misses else "kept" if decided else "unclear",
            misses,
            sum(_held_up(second) for second in seconds),
            back_s,
            mean,
            worst,
            _mean([second.did_ratio for second in seconds[settled:]]) or 0.0,
            self._done.worst_window(span.windows_from_s, span.end_s) / span.limit,
            seconds,
        )

    def did_in_time(self, start_s: float) -> float:
        """Return the rate of a second, without what came late."""
        before, after = np.interp([start_s, start_s + 1], self._steps_s, self._late)
        return self._done.rate(start_s, start_s + 1) - float(after - before)

    def _second(self, span: Span, start_s: float) -> Second:
        did, allowed = self._did_and_allowed(start_s)
        in_time = self._did_in_time(span, start_s)
        counts: float | None = None
        if did >= ASKED_RATIO * allowed:
            counts = max(in_time, allowed / span.limit)
        elif in_time > 1:
            counts = in_time
        return Second(
            did / span.limit,
            in_time,
            allowed / span.limit if allowed < inf else None,
            counts,
            counts is not None and self._is_clear(span, start_s),
        )

    def _is_clear(self, span: Span, start_s: float) -> bool:
        """Return whether the drive asked and QEMU answered in every part of a second."""
        if any(begin < start_s + 1 and start_s < end for begin, end in self._unanswered):
            return False
        parts = [(at, at + LOOK_S) for at in np.arange(start_s, start_s + 1 - LOOK_S, _STEP_S)]
        return all(
            self._throttle.used_ratio(begin, end) >= ASKED_RATIO
            or self._done.rate(begin, end) > span.limit
            for begin, end in parts
        )

    def _did_in_time(self, span: Span, start_s: float) -> float:
        """Return what the drive did in a second over its limit, without what came late."""
        return self.did_in_time(start_s) / span.limit

    def _did_and_allowed(self, start_s: float) -> tuple[float, float]:
        """Return the cost of a second's requests, and of what was allowed."""
        did = self._done.rate(start_s, start_s + 1)
        used = self._throttle.used_ratio(start_s, start_s + 1)
        return did, did / used if used else inf


def _take(left_s: deque[float], wanted_s: float) -> float:
    """Take as much as is wanted of what is left, and return it."""
    taken_s = 0.0
    for i, some_s in enumerate(left_s):
        some_s = min(some_s, max(0.0, wanted_s - taken_s))
        left_s[i] -= some_s
        taken_s += some_s
    return taken_s


def _misses(
    back_s: int, mean: float | None, in_time: float | None, worst: float, bounds: Bounds
) -> Iterator[str]:
    """Yield the bounds that were missed, in words.

    mean, in_time: of the seconds that count, and of what the drive did in them and on time.
    """
    if back_s > bounds.settled_s:
        yield f"still off after {back_s - 1} s"
    if mean is not None and mean < 1 - bounds.mean_ratio:
        yield f"held to {mean:.0%} on average"
    if in_time is not None and in_time > 1 + bounds.mean_ratio:
        yield f"did {in_time:.1%} on average"
    if worst > bounds.window_ratio:
        yield f"{worst:.0%} in a second"


def _is_off(ratio: float | None, bounds: Bounds) -> bool:
    return ratio is not None and abs(ratio - 1) > bounds.within_ratio


def _mean(ratios: Sequence[float]) -> float | None:
    return sum(ratios) / len(ratios) if ratios else None


def _first_run(clear: Sequence[bool], length: int) -> int:
    """Return where the first `length` clear seconds in a row begin; the end if nowhere."""
    for begin in range(len(clear) - length + 1):
        if all(clear[begin : begin + length]):
            return begin
    return len(clear)


def _held_up(second: Second) -> float:
    """Return the part of a second in which the drive was allowed more and didn't ask for it."""
    if second.allowed_ratio is None:
        return 1.0 if second.did_ratio == 0 else 0.0
    return max(0.0, 1 - second.did_ratio / second.allowed_ratio) if second.allowed_ratio else 0.0
