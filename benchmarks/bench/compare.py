"""What has changed between two results, and what is only noise?

A figure is one metric of one controller in one case. Its noise is the relative standard deviation
of its repeats, or that of all figures of this metric and controller together if that is greater: a
few repeats can be alike by chance, and some controllers are less even than others. A difference of
the means is a change if it is above LEAST_RATIO, and above what noise makes in one of a hundred
comparisons like this one: noise counts as normal, is known from few repeats (Student's t), and all
figures share the odds. If a figure is better the nearer it is to 1, both are of how far it is from
that.

A figure that more runs lack than before is lost, which is worse, too, unless runs may lack it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from benchmarks.bench.controllers import title
from benchmarks.bench.errors import BenchError
from benchmarks.bench.metric import Metric
from benchmarks.bench.records import Result, Setup, read_all
from benchmarks.bench.report.figures import LEAST_RATIO, NOTHING, Figures, Spread, apart_ratio
from benchmarks.bench.report.figures import shown as value_shown
from benchmarks.bench.scenario import load, names
from benchmarks.bench.student import noise

ODDS = 0.01
#: How far a figure and its double are apart, over the mean of both.
_DOUBLED_RATIO = 2 / 3
#: What has to be the same in the setups of two results.
_ALIKE = {
    "device": "device",
    "slowdown": "slowdown",
    "shortened": "factor by which it is shortened",
    "seconds": "length in seconds",
    "begin_s": "second in which figures begin",
    "digest": "digest of what runs",
}
#: What is told if it isn't.
_TOLD = {"cpu": "processor", "kernel": "kernel", "programs": "fio or qemu-storage-daemon"}


@dataclass(frozen=True)
class Pair:
    """A figure's repeats before and after."""

    scenario: str
    case: str
    controller: str
    what: str
    metric: Metric
    before: Sequence[float]
    after: Sequence[float]


@dataclass(frozen=True)
class Change:
    """A figure that differs by more than noise. noise_ratio: what noise would make of it."""

    pair: Pair
    noise_ratio: float

    @property
    def ratio(self) -> float:
        """The difference of the means, over the mean of both: which is before makes no odds."""
        return apart_ratio(self.pair.metric, self.pair.before, self.pair.after)

    @property
    def worse(self) -> bool:
        """Whether it is for the worse."""
        before, after = (
            fmean(map(self.pair.metric.distance, values))
            for values in (self.pair.before, self.pair.after)
        )
        return after > before


@dataclass(frozen=True)
class Comparison:
    """All changes, and how many figures were compared.

    skipped: with fewer than two repeats. blunt: with so much noise that even a doubling would count
    as that. unlike: scenarios and controllers whose runs can't be compared, with the reason. lost:
    figures that more runs lack than before. left_out: controllers that were not run again. added:
    scenarios and controllers that are new. elsewhere: what differs of the machines and programs,
    and in how many scenarios.
    """

    changes: list[Change]
    compared: int
    skipped: int
    blunt: int = 0
    unlike: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether a figure is worse than before, or lost."""
        return bool(self.lost) or any(change.worse for change in self.changes)


@dataclass(frozen=True)
class _Gone:
    """What there was before, and isn't now. wanted: it was to be run."""

    text: str
    wanted: bool


@dataclass(frozen=True)
class _Changed:
    """A controller that holds drives by another rule now."""

    where: str


def compare(before: Path, after: Path) -> Comparison:
    """Compare two folders of results. Raises BenchError if they have nothing in common."""
    old, new = read_all(before), read_all(after)
    unlike = {
        name: f"{name}: {why}"
        for name in sorted(old.keys() & new.keys())
        if (why := _unlike(name, old[name], new[name])) is not None
    }
    both = sorted(old.keys() & new.keys() - unlike.keys())
    found = list(chain.from_iterable(_figures(name, old[name], new[name]) for name in both))
    pairs = [one for one in found if isinstance(one, Pair)]
    gone = [one for one in found if isinstance(one, _Gone)]
    lost = tuple(one.text for one in gone if one.wanted)
    rules = [f"{one.where}: by another rule" for one in found if isinstance(one, _Changed)]
    if not pairs and not lost:
        what = "; ".join(["there is nothing to compare", *unlike.values(), *rules])
        mend = "name two folders with results of a scenario that both have"
        raise BenchError(f"{before} and {after}", what, mend)
    return replace(
        changes(pairs),
        unlike=(*unlike.values(), *rules),
        lost=lost,
        left_out=tuple(one.text for one in gone if not one.wanted),
        added=tuple(sorted(new.keys() - old.keys()))
        + tuple(chain.from_iterable(_added(name, old[name], new[name]) for name in both)),
        elsewhere=tuple(_elsewhere([(old[name].setup, new[name].setup) for name in both])),
    )


def _unlike(name: str, before: Result, after: Result) -> str | None:
    """Return why two results of a scenario can't be compared; None if they can."""
    if name not in names():
        return "there is no such scenario any more"
    if caveat := load(name).caveat:
        return f"the committed result has a caveat: {caveat}"
    for what, words in _ALIKE.items():
        old, new = getattr(before.setup, what), getattr(after.setup, what)
        if old != new:
            return f"the {words} is {new}, and was {old}"
    cases = [case for case in before.cases if case in after.cases]
    if any(before.cases[case].plans != after.cases[case].plans for case in cases):
        return "drives are promised something else"
    return None


def _elsewhere(setups: Sequence[tuple[Setup, Setup]]) -> Iterator[str]:
    """Yield what differs of the machines and programs, and how often."""
    for what, name in _TOLD.items():
        if count := sum(getattr(old, what) != getattr(new, what) for old, new in setups):
            yield f"another {name} in {count} of {len(setups)} scenarios"


def changes(pairs: Sequence[Pair]) -> Comparison:
    """Return the figures that have changed."""
    usable = [pair for pair in pairs if min(len(pair.before), len(pair.after)) > 1]
    pooled = _pooled(usable)
    found, blunt = [], 0
    for pair in usable:
        together, freedom = pooled[_kind(pair)]
        spread = max(together, *(_spread(pair.metric, one) for one in (pair.before, pair.after)))
        samples = [(spread, len(values)) for values in (pair.before, pair.after)]
        change = Change(pair, noise(freedom, ODDS / len(usable), *samples))
        if abs(change.ratio) > max(change.noise_ratio, LEAST_RATIO):
            found.append(change)
        else:
            blunt += change.noise_ratio >= _DOUBLED_RATIO
    found.sort(key=lambda change: (not change.worse, -abs(change.ratio)))
    return Comparison(found, len(usable), len(pairs) - len(usable), blunt)


def _spread(metric: Metric, values: Sequence[float]) -> float:
    """Return the relative standard deviation of some repeats."""
    return stdev(metric.judged(values)) / max(NOTHING, abs(fmean(values)))


def _kind(pair: Pair) -> tuple[str, str]:
    """Return which figures a figure shares its noise with."""
    return pair.metric.name, pair.controller


def _pooled(pairs: Sequence[Pair]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return each kind's relative standard deviation over all its figures, and its freedom."""
    squares: dict[tuple[str, str], float] = defaultdict(float)
    freedom: dict[tuple[str, str], int] = defaultdict(int)
    for pair in pairs:
        for values in (pair.before, pair.after):
            squares[_kind(pair)] += (len(values) - 1) * _spread(pair.metric, values) ** 2
            freedom[_kind(pair)] += len(values) - 1
    return {kind: (math.sqrt(squares[kind] / freedom[kind]), freedom[kind]) for kind in squares}


def _figures(name: str, before: Result, after: Result) -> Iterator[Pair | _Gone | _Changed]:
    """Yield all figures that there were before."""
    suite = load(name)
    one, other = Figures(suite, before), Figures(suite, after)
    for case in [case for case in one.cases if case in other.cases]:
        for controller in one.controllers:
            where = _where(name, case, controller)
            if controller not in {**after.cases[case].runs, **after.lacking}:
                yield _Gone(where, wanted=False)
                continue
            rules = [result.cases[case].rules(controller) for result in (before, after)]
            if all(rules) and rules[0] != rules[1]:
                yield _Changed(where)
                continue
            for what in one.shown:
                then = one.spread(what, controller, case)
                now = other.spread(what, controller, case)
                if then is None:
                    continue
                less = now is None or now.without > then.without
                if less and not what.metric.may_lack:
                    value = f"{what.title}, {then.range} before, and now {_now(now)}"
                    yield _Gone(f"{where}: {value}", wanted=True)
                elif now is not None:
                    yield Pair(
                        name, case, controller, what.title, what.metric, then.values, now.values
                    )


def _added(name: str, before: Result, after: Result) -> Iterator[str]:
    """Yield the controllers that have runs of a case now, and had none before."""
    for case, now in after.cases.items():
        then = before.cases[case].runs if case in before.cases else {}
        for controller, runs in now.runs.items():
            if runs and not then.get(controller):
                yield _where(name, case, controller)


def _where(name: str, case: str, controller: str) -> str:
    return f"{name} {case}".strip() + f", {title(controller)}"


def _now(spread: Spread | None) -> str:
    return "no figure" if spread is None else spread.range


def table(found: Comparison) -> str:
    """Return the changes as a table for a terminal."""
    out = Console(highlight=False, width=160)
    with out.capture() as text:
        if found.changes:
            rows = Table(
                "", "scenario", "controller", "figure", "before", "after", "apart", "noise"
            )
            for change in found.changes:
                pair = change.pair
                rows.add_row(
                    "worse" if change.worse else "better",
                    f"{pair.scenario} {pair.case}".strip(),
                    title(pair.controller),
                    pair.what,
                    value_shown(pair.metric, fmean(pair.before)),
                    value_shown(pair.metric, fmean(pair.after)),
                    f"{change.ratio:+.0%}",
                    f"{change.noise_ratio:.0%}",
                )
            out.print(rows)
            out.print("apart, noise: over the mean of before and after")
            out.print("if nearer to 1 is better, of how far a figure is from it")
        for lost in found.lost:
            out.print(f"lost: {lost}", soft_wrap=True)
        same = found.compared - len(found.changes)
        out.print(f"{found.compared} figures compared: {same} as before, within their noise")
        if found.blunt:
            what = "so uneven that even twice as much would count as noise"
            out.print(f"of these, {found.blunt} are {what}: more repeats would tell")
        if found.skipped:
            out.print(f"{found.skipped} figures have one run only, and can't be compared")
        for why in found.unlike:
            out.print(f"not compared: {why}")
        if found.added:
            out.print(f"new, not compared: {'; '.join(found.added)}", soft_wrap=True)
        if found.elsewhere:
            out.print(f"measured with {', '.join(found.elsewhere)}", soft_wrap=True)
        if found.left_out:
            out.print(f"not run again: {'; '.join(found.left_out)}", soft_wrap=True)
    return text.get()
