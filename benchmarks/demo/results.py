"""The demo's results as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.demo.conformance import Conformance
from benchmarks.demo.limits_in_force import Sample, changes, gaps, most_passed
from benchmarks.demo.scenario import BENCHMARKS, Scenario
from benchmarks.demo.stage import Stage
from benchmarks.demo.verdict import Rows, Verdict

Json = dict[str, object]


def write_results(
    path: Path, scenario: Scenario, stages: Sequence[Stage], rows: Mapping[str, Rows]
) -> None:
    """Write what a run measured, fio's logs apart. rows: by the stage's name."""
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True)
    result = {
        "outcome": Verdict.on(rows["iokeel"]).outcome.name.lower(),
        "scenario": asdict(scenario),
        "host": host(),
        "qemu": qemu.stdout.splitlines()[0] if qemu.stdout else None,
        "revision": revision(),
        "runs": {stage.name: _stage(stage, rows[stage.name]) for stage in stages},
    }
    path.write_text(json.dumps(result, indent=1, default=sorted) + "\n")


def host() -> Json:
    """Return this machine's kernel and number of processors."""
    return {"kernel": platform.release(), "cpus": os.cpu_count()}


def revision() -> str | None:
    """Return the commit that is checked out; None without git."""
    words = ["git", "rev-parse", "HEAD"]
    answer = subprocess.run(words, cwd=BENCHMARKS, capture_output=True, text=True)
    return answer.stdout.strip() or None


def _stage(stage: Stage, rows: Rows) -> Json:
    begun_s = {name: float(stage.completions(name).at_s[0]) for name in stage.logs}
    return {
        "start_epoch_s": stage.start_s,
        "stolen_ratio": round(stage.stolen_ratio, 4),
        "guest_clocks": {name: asdict(clock) for name, clock in stage.clocks.items()},
        "fio_begun_s": {name: round(at_s - stage.start_s, 3) for name, at_s in begun_s.items()},
        "limits": {
            name: [_limits(sample, begun_s[name]) for sample in [*samples[:1], *changes(samples)]]
            for name, samples in stage.limits.items()
        },
        "unanswered_s": {
            name: [[round(at_s - begun_s[name], 3) for at_s in gap] for gap in gaps(samples)]
            for name, samples in stage.limits.items()
        },
        "qemu_let_through_at_most": {
            name: _rounded(most_passed(samples)) for name, samples in stage.limits.items()
        },
        "drives": {name: [_row(row) for row in phases] for name, phases in rows.items()},
    }


def _limits(sample: Sample, begun_s: float) -> Json:
    """Return limits and when they were first seen, in seconds since the drive's first request."""
    found = {name: value for name, value in sample.limits._asdict().items() if value}
    return {"at_s": round(sample.at_s - begun_s, 3), **found}


def _row(row: Conformance) -> Json:
    span = row.span
    return {
        "phase": span.phase,
        "start_s": round(span.start_s, 3),
        "end_s": round(span.end_s, 3),
        "limit": span.limit,
        "verdict": row.verdict,
        "misses": row.misses,
        "held_up_s": round(row.held_up_s, 2),
        "back_s": row.back_s,
        "mean_ratio": _rounded(row.mean_ratio),
        "worst_ratio": _rounded(row.worst_ratio),
        "did_mean_ratio": _rounded(row.did_mean_ratio),
        "did_worst_ratio": _rounded(row.did_worst_ratio),
        "seconds": {
            "did": [_rounded(second.did_ratio) for second in row.seconds],
            "allowed": [_rounded(second.allowed_ratio) for second in row.seconds],
            "counts": [_rounded(second.counts_ratio) for second in row.seconds],
        },
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)
