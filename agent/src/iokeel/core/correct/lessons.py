"""Learns how far it helps a drive with a latency target that the others are cut.

What the others do is counted in *levels*, a third of a halving apart, and each remembers the
drive's latency at that time. The latency with the others cut as far as possible is the lowest that
cuts can make it. If that misses the target by a quarter, cuts below a level were in vain unless
they lowered the latency by a fifth.

The load may change. If the latency falls a fifth below the lowest, or after FORGET_S, all is
forgotten, and cuts are tried again.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor, log2

from iokeel.core.values.state import Lessons

GAIN = 0.8
# What was learnt is forgotten after so long, and a capacity that nobody knows is learnt in that.
FORGET_S = 300.0
# What differs by less than this is taken for the same.
SLACK = 1.05
# Levels to a halving.
_HALVING = 3
# A quarter: two halvings of a learnt capacity.
_DEEP = 2 * _HALVING
# How much a new reading counts: a guest's mean of a second is noisy.
_NEW_RATIO = 0.2


def lessons_after(
    before: Lessons,
    used: float | None,
    latency_s: float | None,
    elapsed_s: float,
    *,
    exhausted: bool,
) -> Lessons:
    """Return a drive's lessons after an interval.

    used: the rate of the others in normalized I/O operations a second; None if unknown. latency_s:
    of the drive; None if it was idle. exhausted: the others were cut as far as possible.
    """
    age_s = before.age_s + elapsed_s if before.latencies else 0.0
    if age_s > FORGET_S:
        before, age_s = Lessons(), 0.0
    if used is None or latency_s is None:
        return replace(before, age_s=age_s)
    level = _level(used)
    learned = _mean(before.latencies.get(level), latency_s)
    lowest_s = before.lowest_s
    if exhausted:
        lowest_s = _mean(lowest_s, latency_s)
    elif lowest_s is not None and learned < GAIN * lowest_s:
        return Lessons({level: latency_s})
    return Lessons({**before.latencies, level: learned}, lowest_s, age_s)


def is_deep(lessons: Lessons, used: float | None) -> bool:
    """Return whether the others do at most a quarter of the most that is remembered of them."""
    if used is None or not lessons.latencies:
        return False
    return _level(used) <= max(lessons.latencies) - _DEEP


def least_useful(lessons: Lessons, target_s: float) -> float:
    """Return the others' rate below which cuts are in vain; 0 if that isn't known.

    In normalized I/O operations a second. If no higher rate was seen since, it is the next one up,
    to see whether cuts below that are in vain, too. target_s: the drive's latency target.
    """
    lowest_s = lessons.lowest_s
    if lowest_s is None or GAIN * lowest_s <= target_s:
        return 0.0
    vain = [lv for lv, latency_s in lessons.latencies.items() if lowest_s > GAIN * latency_s]
    if not vain:
        return 0.0
    highest = max(vain)
    if highest == max(lessons.latencies):
        return (
            float(2 ** ((highest + 1) / _HALVING)) * SLACK
        )  # a drive at its limit does a little less
    return float(2 ** (highest / _HALVING))


def _level(rate: float) -> int:
    return floor(log2(max(1.0, rate)) * _HALVING)


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + _NEW_RATIO * (new - before)
