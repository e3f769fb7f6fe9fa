"""Ends a cut of the others that doesn't pay for the drives with a latency target.

Part of a latency isn't due to the load of others: the device's own time for a write, or a sync.
With a target below it, the room (headroom.py) would fall to its floor and gain nothing. So the gain
is measured. With the room x and the protected drives' strain s,

    E = d ln s / d ln x      between two levels of x, from the means of some intervals

A cut pays if E >= LEAST_GAIN: it lowers latency by as much as throughput. With E = 1, throughput
over latency is at its maximum (Kleinrock's power: "Power and deterministic rules of thumb", ICC
1979). It also pays while half of the room would reach the target at this E.

After a cut that doesn't pay, the others get back the room before it, and are *held* there. When the
hold ends, they are *raised* by a level. If that costs no latency, they stay. Else they go back, and
another cut is tried. Each cut that doesn't pay doubles the next hold. A latency that becomes WORSE
ends a hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

LEAST_GAIN = 1.0
# A level's rooms: at least SAME of its first one. The next level is at LESS of it or below.
SAME, LESS = 0.85, 0.7
SAMPLES = 3
FIRST_HOLD_S, LONGEST_HOLD_S = 30.0, 960.0
WORSE = 1.5


class Level(NamedTuple):
    """Intervals with about the same room.

    first: the room of the first one. samples: how many there are. ln_room, ln_strain: the means of
    the last SAMPLES or so.
    """

    first: float = 0.0
    samples: int = 0
    ln_room: float = 0.0
    ln_strain: float = 0.0

    def plus(self, room: float, strain: float) -> Level:
        """Return it with one interval more."""
        n = min(self.samples + 1, SAMPLES)
        return Level(
            self.first or room,
            n,
            self.ln_room + (log(room) - self.ln_room) / n,
            self.ln_strain + (log(strain) - self.ln_strain) / n,
        )


NO_LEVEL = Level()


@dataclass(frozen=True, slots=True)
class Gain:
    """What is known of the gain of a cut.

    before, after: two levels. least: the room below which the others aren't cut; 0 if they may be.
    hold_s: how long it is held, or has been raised if that is 0. pause_s: how long the next hold
    lasts.
    """

    before: Level = NO_LEVEL
    after: Level = NO_LEVEL
    least: float = 0.0
    hold_s: float = 0.0
    pause_s: float = FIRST_HOLD_S


FREE = Gain()


def gain_after(
    last: Gain, room: float, strain: float | None, elapsed_s: float
) -> tuple[Gain, float]:
    """Return what is known after an interval, and the most room that the others may have then.

    room: theirs in the interval, > 0. strain: None if no protected drive was active.
    """
    if last.hold_s:
        return _held(last, strain, elapsed_s), 1.0
    if strain is None:
        return last, 1.0
    if last.least:
        return _raised(last, room, strain)
    return _cutting(last, room, strain), 1.0


def _cutting(last: Gain, room: float, strain: float) -> Gain:
    """Compare two levels while the others may be cut."""
    before = last.before
    if not before.samples or room > before.first / SAME:
        return replace(last, before=NO_LEVEL.plus(room, strain), after=NO_LEVEL)
    if room >= SAME * before.first:
        return replace(last, before=before.plus(room, strain), after=NO_LEVEL)
    if room > LESS * before.first:
        return last
    after = last.after.plus(room, strain)
    if after.samples < SAMPLES:
        return replace(last, after=after)
    gain = _gain(before, after)
    if gain < LEAST_GAIN and after.ln_strain > max(0.0, gain) * log(2):
        return _hold(before, last.pause_s, min(2 * last.pause_s, LONGEST_HOLD_S))
    return Gain(after, pause_s=last.pause_s if after.ln_strain > 0 else FIRST_HOLD_S)


def _hold(level: Level, hold_s: float, pause_s: float) -> Gain:
    return Gain(level, least=level.first, hold_s=hold_s, pause_s=pause_s)


def _held(last: Gain, strain: float | None, elapsed_s: float) -> Gain:
    """Hold the others' room, and raise it when the hold ends."""
    after = last.after
    if strain is not None:
        after = after.plus(last.least, strain)
        worse = after.ln_strain > max(0.0, last.before.ln_strain) + log(WORSE)
        if worse and after.samples == SAMPLES:
            return FREE
    if elapsed_s < last.hold_s:
        return replace(last, after=after, hold_s=last.hold_s - elapsed_s)
    now = after if after.samples == SAMPLES else last.before
    if last.least > SAME:
        return Gain(now, pause_s=last.pause_s)
    return Gain(now, least=min(1.0, last.least / LESS), pause_s=last.pause_s)


def _raised(last: Gain, room: float, strain: float) -> tuple[Gain, float]:
    """Compare the raised room with the one before."""
    after = last.after.plus(max(room, last.least), strain)
    if after.samples < SAMPLES:
        return replace(last, after=after), 1.0
    if _gain(after, last.before) < LEAST_GAIN:
        return _hold(after, FIRST_HOLD_S, last.pause_s), 1.0
    return Gain(last.before, pause_s=last.pause_s), last.before.first


def _gain(high: Level, low: Level) -> float:
    """Return E between two levels, of which `high` has more room."""
    return (high.ln_strain - low.ln_strain) / (high.ln_room - low.ln_room)
