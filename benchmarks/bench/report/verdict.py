"""Where iokeel is ahead of the best other controller, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.bench.controllers import title
from benchmarks.bench.report.figures import LEAST_REPEATS, Figures, Spread, shown
from benchmarks.bench.shown import Shown


@dataclass(frozen=True)
class Verdict:
    """Where iokeel is ahead of the best other, where behind, and where none can tell.

    best: figures in which yet another is better than iokeel, and the best of all. elsewhere: the
    other cases in which it is behind, and in how many figures.
    """

    ours: str
    other: str
    ahead: list[str]
    behind: list[str]
    even: list[str]
    best: Sequence[str] = ()
    elsewhere: Sequence[str] = ()

    def __str__(self) -> str:
        parts = []
        if self.behind:
            parts.append(f"**Loses** to {title(self.other)}: {'; '.join(self.behind)}")
        if self.ahead:
            of = "" if parts else f" of {title(self.other)}"
            parts.append(f"Ahead{of}: {'; '.join(self.ahead)}")
        if self.even:
            of = "" if parts else f" to {title(self.other)}"
            parts.append(f"No clear difference{of}: {'; '.join(self.even)}")
        if self.best:
            parts.append(f"Best of any: {'; '.join(self.best)}")
        if self.elsewhere:
            parts.append(f"In other cases: **loses** {', '.join(self.elsewhere)}")
        return ". ".join(parts)

    @property
    def sign(self) -> str:
        """It is behind if any figure is; else ahead if any is; else even."""
        return "-" if self.behind else "+" if self.ahead else "="

    @property
    def lost(self) -> str:
        """In how many figures it is behind."""
        compared = len(self.ahead) + len(self.behind) + len(self.even)
        return f"{len(self.behind)} of {compared} figures"


def verdicts(figures: Figures) -> list[Verdict]:
    """Return iokeel against the best other by the headline, in every metric: the best way first.

    There is one for each way to run iokeel, of the last case. It names the others where this way
    is behind the best other there.
    """
    others = {case: _verdicts(figures, case) for case in figures.cases[:-1]}
    return [
        replace(
            one,
            elsewhere=[
                f"{case} ({each.lost})"
                for case, found in others.items()
                for each in found
                if each.ours == one.ours and each.behind
            ],
        )
        for one in _verdicts(figures, None)
    ]


def _verdicts(figures: Figures, case: str | None) -> list[Verdict]:
    """Return the verdicts of a case: the best way first. case: as of `Figures.spread`.

    The best is behind in the fewest metrics; of those, it has the best headline. Left out: a way
    with fewer than LEAST_REPEATS headlines, or a run without it, which may have been the worst. If
    the other is so, there is none.
    """
    other = figures.best(figures.others, case)
    names = [*figures.ours, *([other] if other else [])]
    spreads = {name: figures.spread(figures.shown[0], name, case) for name in names}
    worth = {
        name: one.distance
        for name, one in spreads.items()
        if one and len(one.values) >= LEAST_REPEATS and not one.without
    }
    if other is None or other not in worth:
        return []
    found = [_compared(figures, case, ours, other) for ours in figures.ours if ours in worth]
    return sorted(found, key=lambda one: (len(one.behind), worth[one.ours]))


def _compared(figures: Figures, case: str | None, ours: str, other: str) -> Verdict:
    """Compare two controllers; ahead or behind only if they are apart.

    A side that lacks a figure in some runs is behind: those may have been the worst. If both do,
    none can tell. A figure that runs may lack is left out then.
    """
    ahead, behind, even, best = [], [], [], []
    for what in figures.judged:
        mine, theirs = (figures.spread(what, name, case) for name in (ours, other))
        i_lack, they_lack = (figures.without(what, name, case) for name in (ours, other))
        if (mine is None and theirs is None) or (what.metric.may_lack and (i_lack or they_lack)):
            continue
        text = f"{what.title} {_median(what, mine)} against {_median(what, theirs)}"
        if i_lack and they_lack:
            even.append(text)
        elif theirs is None or they_lack:
            ahead.append(text)
        elif mine is None or i_lack:
            behind.append(text)
        elif not mine.apart(theirs):
            even.append(text + _in_each(mine, theirs))
        elif mine.better(theirs):
            ahead.append(text)
        else:
            behind.append(text)
        if mine is not None and not i_lack:
            for name, spread in _best_of_any(figures, case, what, mine):
                if name != other:
                    best.append(f"{what.title} {_median(what, spread)} ({title(name)})")
    return Verdict(ours, other, ahead, behind, even, best)


def _best_of_any(
    figures: Figures, case: str | None, what: Shown, mine: Spread
) -> list[tuple[str, Spread]]:
    """Return the other with the best figure of those that are clearly better than ours, if any."""
    found = [(name, figures.spread(what, name, case)) for name in figures.others]
    better = [
        (name, one)
        for name, one in found
        if one and not one.without and one.apart(mine) and one.better(mine)
    ]
    return sorted(better, key=lambda pair: pair[1].distance)[:1]


def _in_each(mine: Spread, theirs: Spread) -> str:
    """Return which is better in every repeat, if one is, though that may be chance."""
    if not mine.apart_in_each(theirs):
        return ""
    return f" ({'better' if mine.better(theirs) else 'worse'} in every repeat, not certain)"


def _median(what: Shown, spread: Spread | None) -> str:
    if spread is None:
        return what.metric.never
    return f"{shown(what.metric, spread.median)}{spread.missing}"
