"""The stretches of time in which a drive is judged: its phases, by its own requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from benchmarks.demo.conformance import Span
from benchmarks.demo.fio_log import Completions
from benchmarks.demo.scenario import STREAM_BYTES, Guest, Phase, Scenario
from benchmarks.demo.stage import LimitChange

# A shift is looked for this long before and after the time that the scenario gives it.
_SHIFT_WITHIN_S = 4.0


def spans(
    scenario: Scenario, guest: Guest, done: Completions, changed: LimitChange | None
) -> list[Span]:
    """Return a guest's phases; one in which its limit changes is two.

    All times are counted from the guest's first completion. Raises RuntimeError if its limit has
    not been changed as the scenario says.
    """
    if guest.change is not None and changed is None:
        raise RuntimeError(f"{guest.name}: its limit has not been changed")
    starts = [0.0, *shifts(scenario, done), scenario.length_s]
    found = []
    limit = guest.limit
    for phase, (start_s, end_s) in zip(scenario.phases, pairwise(starts), strict=True):
        before_s = max(0.0, start_s - 1)
        if changed is None or guest.change is None or not start_s < changed.begin_s < end_s:
            found.append(Span(phase.name, start_s, end_s, limit, before_s))
            continue
        found.append(Span(phase.name, start_s, changed.begin_s, limit, before_s))
        limit = guest.change.limit
        # A window that begins before would show what the old limit allowed.
        name = f"{phase.name}, new limit"
        found.append(Span(name, changed.end_s, end_s, limit, changed.end_s + 1))
    return found


def shifts(scenario: Scenario, done: Completions) -> Iterator[float]:
    """Yield when the drive's requests went from each phase's sizes to the next one's.

    On a busy machine fio starts and ends its streams late.
    """
    for before, after in pairwise(scenario.phases):
        yield _shift(before, after, done)


def _shift(before: Phase, after: Phase, done: Completions) -> float:
    near = abs(done.at_s - before.end_s) <= _SHIFT_WITHIN_S
    times = []
    for stream in before.streams ^ after.streams:
        at_s = done.at_s[near & (done.size == STREAM_BYTES[stream])]
        if len(at_s):
            times.append(float(at_s[0] if stream in after.streams else at_s[-1]))
    return max(times, default=before.end_s)
