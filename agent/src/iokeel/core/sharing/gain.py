"""Ends a cut that lowers throughput by more than latency.

Part of a latency isn't due to load: the device's own time for a write, or a sync. With a target
below it, a feedback (capacity.py) would cut to its floor and gain nothing. So the gain is measured.
Let x be the part of the storage that is used, at most the one that may be, and s the strain:

    E = d ln s / d ln x      between two levels of x, from the means of some intervals

A cut pays if E >= LEAST_GAIN: it lowers latency by as much as throughput. With E = 1, throughput
over latency is at its maximum (Kleinrock's power: "Power and deterministic rules of thumb", ICC
1979). It also pays while half of x would reach the target at this E.

After a cut that doesn't pay, the part goes back to the level before. From there it is *raised* by
a level at a time, until that costs more latency than it brings throughput. The last level that
didn't is *held*. Then another cut is tried: after each one that doesn't pay the hold lasts twice as
long. A latency that becomes WORSE ends a hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

LEAST_GAIN = 1.0
# A level: from SAME of its first part on. The next level is at LESS of that or below.
SAME, LESS = 0.85, 0.7
SAMPLES = 3
FIRST_HOLD_S, LONGEST_HOLD_S = 60.0, 960.0
WORSE = 1.5
# A raised part that isn't used is taken for this much more, in ln x.
_LEAST_RISE = 0.1
_LEAST = 1e-3  # of a part, and of a strain


class Level(NamedTuple):
    """Intervals in which about the same part was used.

    first: the part in the first one. samples: how many there are. ln_part, ln_strain: the means of
    the last SAMPLES or so.
    """

    first: float = 0.0
    samples: int = 0
    ln_part: float = 0.0
    ln_strain: float = 0.0

    def plus(self, part: float, strain: float) -> Level:
        """Return it with one interval more."""
        n = min(self.samples + 1, SAMPLES)
        return Level(
            self.first or part,
            n,
            self.ln_part + (log(max(part, _LEAST)) - self.ln_part) / n,
            self.ln_strain + (log(max(strain, _LEAST)) - self.ln_strain) / n,
        )


NO_LEVEL = Level()


@dataclass(frozen=True, slots=True)
class Gain:
    """What is known of the gain of a cut.

    before, after: two levels. least: the part below which nothing is cut; 0 if it may be. hold_s:
    how long it is held; 0 with a least part: it is raised. pause_s: how long the next hold lasts.
    """

    before: Level = NO_LEVEL
    after: Level = NO_LEVEL
    least: float = 0.0
    hold_s: float = 0.0
    pause_s: float = FIRST_HOLD_S

    def bound(self, part: float, was: Gain) -> float:
        """Return a part that the feedback has decided on, bounded by what is known of the gain.

        was: what was known in the interval before.
        """
        if self.hold_s and self.least < was.least:  # it was raised, and that has cost too much
            return self.least
        return max(part, self.least)


FREE = Gain()


def gain_after(last: Gain, used: float, strain: float | None, elapsed_s: float) -> Gain:
    """Return what is known after an interval.

    used: the part that was used, at most the one that could be. strain: None if it isn't known.
    """
    used = max(used, _LEAST)
    if last.hold_s:
        return _held(last, used, strain, elapsed_s)
    if strain is None:
        return last
    return _raised(last, used, strain) if last.least else _cutting(last, used, strain)


def _cutting(last: Gain, used: float, strain: float) -> Gain:
    """Compare two levels while the feedback may cut."""
    before = last.before
    if not before.samples or used > before.first / SAME:
        return replace(last, before=NO_LEVEL.plus(used, strain), after=NO_LEVEL)
    if used >= SAME * before.first:
        return replace(last, before=before.plus(used, strain), after=NO_LEVEL)
    if used > LESS * before.first:
        return last
    after = last.after.plus(used, strain)
    if after.samples < SAMPLES:
        return replace(last, after=after)
    gain = (before.ln_strain - after.ln_strain) / (before.ln_part - after.ln_part)
    if gain < LEAST_GAIN and after.ln_strain > max(0.0, gain) * log(2):
        return _raise(before, last.pause_s)
    return Gain(after, pause_s=last.pause_s if after.ln_strain > 0 else FIRST_HOLD_S)


def _raise(level: Level, pause_s: float) -> Gain:
    """Raise the part by a level, or hold it if there is none above."""
    if level.first > SAME:
        return _hold(level, pause_s)
    return Gain(level, least=min(1.0, level.first / LESS), pause_s=pause_s)


def _raised(last: Gain, used: float, strain: float) -> Gain:
    """Compare the raised part with the one before."""
    after, before = last.after.plus(used, strain), last.before
    if after.samples < SAMPLES:
        return replace(last, after=after)
    rise = max(_LEAST_RISE, after.ln_part - before.ln_part)
    if after.ln_strain - before.ln_strain < LEAST_GAIN * rise:
        return _raise(after._replace(first=last.least), last.pause_s)
    return _hold(before, last.pause_s)


def _hold(level: Level, hold_s: float) -> Gain:
    """Hold the part at a level."""
    pause_s = min(2 * hold_s, LONGEST_HOLD_S)
    return Gain(level, least=level.first, hold_s=hold_s, pause_s=pause_s)


def _held(last: Gain, used: float, strain: float | None, elapsed_s: float) -> Gain:
    """Hold the part until the time is over, or latency is worse."""
    after = last.after
    if strain is not None:
        after = after.plus(used, strain)
        worse = after.ln_strain > max(0.0, last.before.ln_strain) + log(WORSE)
        if worse and after.samples == SAMPLES:
            return FREE
    if elapsed_s < last.hold_s:
        return replace(last, after=after, hold_s=last.hold_s - elapsed_s)
    level = after if after.samples == SAMPLES else last.before
    return Gain(level._replace(first=last.least), pause_s=last.pause_s)
