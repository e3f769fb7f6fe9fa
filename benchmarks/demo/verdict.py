"""The verdict on a run of the demo: every drive in every phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from benchmarks.demo.conformance import LATE_S, Conformance, Drive
from benchmarks.demo.limits_in_force import Sample
from benchmarks.demo.scenario import STREAM_BYTES, Guest, Scenario
from benchmarks.demo.spans import spans
from benchmarks.demo.stage import LimitChange, Stage
from iokeel.core.values.curve import DEFAULT_MODEL

Rows = Mapping[str, Sequence[Conformance]]
"""The conformance of each guest's drive, by phase."""


class Outcome(IntEnum):
    """A run's outcome, and its exit status."""

    KEPT = 0
    MISSED = 1
    UNCLEAR = 3


@dataclass(frozen=True)
class Verdict:
    """What a run shows about iokeel.

    held_up_s: for how long the machine kept each guest from asking.
    """

    outcome: Outcome
    missed: tuple[tuple[str, Conformance], ...]
    unclear: tuple[tuple[str, Conformance], ...]
    held_up_s: Mapping[str, float]

    @classmethod
    def on(cls, rows: Rows) -> Verdict:
        """Return the verdict: unclear if nothing could be judged for some drive."""
        everything = [(name, row) for name, phases in rows.items() for row in phases]
        missed = tuple(item for item in everything if item[1].verdict == "missed")
        unclear = tuple(item for item in everything if item[1].verdict == "unclear")
        outcome = Outcome.KEPT
        if missed:
            outcome = Outcome.MISSED
        elif any(all(row.verdict == "unclear" for row in phases) for phases in rows.values()):
            outcome = Outcome.UNCLEAR
        held_up_s = {name: sum(row.held_up_s for row in phases) for name, phases in rows.items()}
        return cls(outcome, missed, unclear, held_up_s)


def judge_stage(stage: Stage, scenario: Scenario) -> Rows:
    """Return the conformance of every drive in every phase of a stage."""
    rows = {}
    for guest in scenario.guests:
        done = stage.completions(guest.name)
        zero_s = float(done.at_s[0])
        done = done.after(zero_s)
        limits = [Sample(s.at_s - zero_s, s.limits) for s in stage.limits[guest.name]]
        drive = Drive(done, limits, LATE_S + _under_way_s(guest))
        changed = stage.changes.get(guest.name)
        if changed is not None:
            changed = LimitChange(changed.begin_s - zero_s, changed.end_s - zero_s)
        rows[guest.name] = [
            drive.judge(span, scenario.bounds) for span in spans(scenario, guest, done, changed)
        ]
    return rows


def _under_way_s(guest: Guest) -> float:
    """Return what a guest may have under way at once, in seconds of its lowest limit."""
    cost = sum(DEFAULT_MODEL.read.cost(size) for size in STREAM_BYTES.values())
    lowest = min(guest.limit, guest.change.limit if guest.change else guest.limit)
    return guest.depth * cost / lowest
