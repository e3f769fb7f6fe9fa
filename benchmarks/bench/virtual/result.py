"""The result of runs in virtual time: every figure of every seed, in one file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from benchmarks import result_file
from benchmarks.bench.compare import Comparison, Pair, changes
from benchmarks.bench.errors import BenchError
from benchmarks.bench.records import rounded
from benchmarks.bench.scenario import names
from benchmarks.bench.shown import Shown
from testing.lab.disks.disksim import SOURCE

FILE = "virtual.json"


class Values(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure: its value for each seed that has one. without: how many seeds have none."""

    values: list[float]
    without: int = 0


#: By controller, then by metric as a scenario's file writes it.
Figures = dict[str, dict[str, Values]]


class ScenarioFigures(msgspec.Struct, frozen=True):
    """A scenario's figures by case. digest: as in records.Setup. settle_s: as in its file."""

    digest: str
    cases: dict[str, Figures]
    settle_s: float = 0.0


class VirtualResult(msgspec.Struct, frozen=True):
    """A result file. model: of `model()`. seeds: 0 to seeds - 1. revision: of the checkout."""

    model: str
    seeds: int
    revision: str | None
    scenarios: dict[str, ScenarioFigures]


@cache
def model() -> str:
    """Return a digest of what a run is computed by, but for the law: it is what is judged."""
    sources = [*SOURCE.glob("*.[ch]"), *SOURCE.glob("*.conf"), *Path(__file__).parent.glob("*.py")]
    left_out = {"disksim.c", "device.c", "fuse.c", "replay.c", Path(__file__).name, "runner.py"}
    digest = hashlib.sha256()
    for path in sorted(sources):
        if path.name not in left_out:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def write(path: Path, result: VirtualResult) -> None:
    """Write a result."""
    path.write_text(rounded(result))


def read(path: Path) -> VirtualResult:
    """Read a result of today's model. Raises BenchError if it is none, or another model's."""
    again = "run it again: iokeel-bench run --virtual"
    try:
        result = result_file.read(path, VirtualResult)
    except FileNotFoundError as error:
        raise BenchError(str(path), "there is no result", again) from error
    except msgspec.DecodeError as error:
        raise BenchError(str(path), f"it is no result in virtual time ({error})", again) from error
    if result.model != model():
        what = f"it is of the model {result.model}, and today's is {model()}"
        raise BenchError(str(path), what, again)
    return result


def compare(before: VirtualResult, after: VirtualResult) -> Comparison:
    """Tell what has changed by more than seeds do. Both have to be of the same model."""
    pairs, unlike, lost = [], [], []
    for name in sorted(before.scenarios.keys() & after.scenarios.keys() & set(names())):
        old, new = before.scenarios[name], after.scenarios[name]
        if (old.digest, old.settle_s) != (new.digest, new.settle_s):
            unlike.append(f"{name}: it is another scenario now")
            continue
        for case in [case for case in old.cases if case in new.cases]:
            for controller, figures in old.cases[case].items():
                for words, then in figures.items():
                    now = new.cases[case].get(controller, {}).get(words)
                    if now is None:
                        continue
                    what = Shown.of(words)
                    if _part_without(now) > _part_without(then) and not what.metric.may_lack:
                        where = f"{name} {case}".strip() + f", {controller}: {what.title}"
                        lost.append(f"{where}: {now.without} seeds have none")
                    pairs.append(
                        Pair(
                            *(name, case, controller, what.title, what.metric),
                            then.values,
                            now.values,
                        )
                    )
    found = changes([pair for pair in pairs if pair.before and pair.after])
    return replace(found, unlike=tuple(unlike), lost=tuple(lost))


def _part_without(one: Values) -> float:
    return one.without / max(1, one.without + len(one.values))
