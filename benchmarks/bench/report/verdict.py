"""Where iokeel is ahead of the best other controller, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bench.controllers import title
from benchmarks.bench.report.figures import LEAST_REPEATS, Figures, Spread, shown


@dataclass(frozen=True)
class Verdict:
    """Where iokeel is ahead of the best other, where behind, and where none can tell."""

    ours: str
    other: str
    ahead: list[str]
    behind: list[str]
    even: list[str]

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
        return ". ".join(parts)


def verdict(figures: Figures) -> Verdict | None:
    """Return iokeel against the best other by the headline, in every metric.

    Of several ways to run iokeel it is the one that is behind in the fewest metrics; of those,
    the one with the best headline. None: one side has no figure with LEAST_REPEATS, or a run
    without it, which may have been the worst.
    """
    headline = figures.shown[0]

    def repeated(names: Sequence[str]) -> list[str]:
        spreads = {name: figures.spread(headline, name) for name in names}
        return [
            name
            for name, one in spreads.items()
            if one and len(one.values) >= LEAST_REPEATS and not one.without
        ]

    other = figures.best(figures.others)
    if other is None or other not in repeated([other]):
        return None
    left = [_compared(figures, ours, other) for ours in repeated(figures.ours)]
    if not left:
        return None
    fewest = min(len(one.behind) for one in left)
    best = figures.best([one.ours for one in left if len(one.behind) == fewest])
    return next(one for one in left if one.ours == best)


def _compared(figures: Figures, ours: str, other: str) -> Verdict:
    """Compare two controllers; ahead or behind only if they are apart.

    A side that lacks a figure in some runs is behind: those may have been the worst. If both do,
    none can tell.
    """
    ahead, behind, even = [], [], []
    for what in figures.shown:
        mine, theirs = figures.spread(what, ours), figures.spread(what, other)
        i_lack, they_lack = figures.without(what, ours), figures.without(what, other)
        if (mine is None and theirs is None) or (
            what.metric.of_processes and (mine is None or theirs is None)
        ):
            continue
        text = f"{what.title} {_median(mine)} against {_median(theirs)}"
        if i_lack and they_lack:
            even.append(what.title)
        elif theirs is None or they_lack:
            ahead.append(text)
        elif mine is None or i_lack:
            behind.append(text)
        elif not mine.apart(theirs):
            even.append(what.title)
        elif mine.better(theirs):
            ahead.append(text)
        else:
            behind.append(text)
    return Verdict(ours, other, ahead, behind, even)


def _median(spread: Spread | None) -> str:
    return f"{shown(spread.metric, spread.median)}{spread.missing}" if spread else "no figure"
