"""The plots of a scenario: the published figures beside ours, on one scale.

By the kind of figure: a rate second by second, a panel for each controller; a line over the cases,
or over the drives; or a bar for each controller, beside the throughput that it leaves.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import median

import matplotlib as mpl

from benchmarks.bench.controllers import ALONE, title
from benchmarks.bench.metrics import METRICS
from benchmarks.bench.records import Run
from benchmarks.bench.report.figures import Figures, shown
from benchmarks.bench.shown import Shown

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.rcParams["svg.hashsalt"] = "iokeel"  # the same figures make the same file

COLOURS = {
    "alone": "#999999",
    "none": "#444444",
    "static-iops": "#f2c14e",
    "static-bps": "#e8963a",
    "static-iops-size": "#c8641e",
    "iops-50": "#f5d77f",
    "bps-512KiB": "#efb077",
    "bps-512KiB+iops-50": "#d98c4a",
    "bps-128KiB+iops-10": "#a65a2a",
    "io-throttle-caps": "#8c4a2f",
    "average-size": "#b5323c",
    "io.max": "#9ccc65",
    "bfq": "#43a047",
    "io.latency": "#2e7d32",
    "io.cost": "#1b5e20",
    "iokeel-retune": "#64b5f6",
    "iokeel-exact": "#1565c0",
    "iokeel-bfq": "#00838f",
    "paced": "#b39ddb",
    "paced-no-syncs": "#7e57c2",
    "paced-65": "#c8b8e6",
    "paced-50": "#dccff0",
    "paced-35": "#eee6f8",
}
_PUBLISHED = "#8d6e63"
#: Figures over so wide a range are on a scale of powers of ten.
_WIDE_RATIO = 20
_IN_A_ROW = 4
_DPI = 80
#: The rate over what is owed at which a panel ends, so that small errors are seen.
_HIGHEST = 2.5
#: The controllers in the README's picture.
_README = ("static-iops", "static-iops-size", "iokeel-retune", "iokeel-exact")
_BY_SECOND = ("error_p50", "error_p99", "error_worst", "overspend", "held", "first_10s", "burst")


#: What draws a plot.
Plot = Callable[[], Figure]


def plots(figures: Figures) -> list[Plot]:
    """Return what draws a scenario's plots: the headline, then other figures that are published.

    There is none if no controller has a headline.
    """
    if not any(figures.spread(figures.shown[0], name) for name in figures.controllers):
        return []
    return [_headline(figures), *_others(figures)]


def readme(figures: Figures) -> dict[str, Plot]:
    """Return what draws the README's picture, by its file in docs, if it is of this scenario."""
    if figures.suite.name != "shift-8k-64k" or not figures.result:
        return {}
    return {"shift.png": partial(_seconds, figures, "db", _README)}


def _headline(figures: Figures) -> Plot:
    headline = figures.shown[0]
    seconds = figures.suite.published is not None and figures.suite.published.seconds
    if headline.drive and (seconds or headline.metric.name in _BY_SECOND):
        return partial(_seconds, figures, headline.drive)
    if len(figures.cases) > 1:
        return _over_cases(figures, headline)
    return partial(_bars, figures, headline)


def _others(figures: Figures) -> Iterator[Plot]:
    """Yield a plot of each other metric: over the cases, or over the drives if there are some."""
    others = [what for what in figures.published if what != figures.shown[0]]
    if len(figures.cases) > 1:
        yield from (_over_cases(figures, what) for what in others)
        return
    (case,) = figures.cases
    for metric in dict.fromkeys(what.metric for what in others):
        drives = {what.drive or "": (what, case) for what in others if what.metric is metric}
        if len(drives) > 1:
            yield partial(_lines, figures, metric.title, drives)


def _over_cases(figures: Figures, what: Shown) -> Plot:
    return partial(_lines, figures, what.title, {case: (what, case) for case in figures.cases})


def as_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as svg or png, and forget it."""
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, dpi=_DPI, metadata=metadata)
    plt.close(figure)
    return out.getvalue()


def _seconds(figures: Figures, drive: str, names: Sequence[str] = ()) -> Figure:
    """A panel for each controller: rate over what is owed, all repeats.

    names: of some controllers; else of all, and of what is published.
    """
    assert figures.result is not None
    published = figures.suite.published if not names else None
    panels: list[tuple[str, str, list[list[float]]]] = []
    for name, rates in (published.seconds if published else {}).items():
        panels.append((f"published: {name}", _PUBLISHED, [rates]))
    case = figures.result.cases[figures.cases[-1]]
    for name in [one for one in figures.controllers if not names or one in names]:
        ratios = [_ratios(run, drive, case.plans[drive].owed) for run in case.runs[name]]
        panels.append((title(name), COLOURS[name], [one for one in ratios if one]))
    rows = ceil(len(panels) / _IN_A_ROW)
    figure, grid = plt.subplots(
        rows, _IN_A_ROW, figsize=(13, 2.4 * rows + 0.4), sharey=True, squeeze=False
    )
    everything = [rate for _, _, lines in panels for rates in lines for rate in rates]
    top = min(_HIGHEST, max(everything, default=1.0))
    for axes, (name, colour, lines) in zip(grid.flat, panels, strict=False):
        for rates in lines:
            axes.plot(range(len(rates)), rates, color=colour, linewidth=1.4, alpha=0.8)
        axes.axhline(1, color="black", linewidth=0.8, linestyle="dashed")
        highest = max((max(rates) for rates in lines if rates), default=0.0)
        more = f", up to {highest:.1f}" if highest > top else ""
        axes.set_title(f"{name}{more}", fontsize=10)
        axes.set_ylim(0, top * 1.05)
        axes.tick_params(labelsize=8)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("rate / owed", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("seconds", fontsize=9)
    figure.tight_layout()
    return figure


def _ratios(run: Run, drive: str, owed: float) -> list[float]:
    rates = run.drives[drive].by_second if drive in run.drives else None
    return [rate / owed for rate in rates or []]


def _lines(figures: Figures, words: str, points: Mapping[str, tuple[Shown, str]]) -> Figure:
    """A line over the points for each controller; the published lines on the left.

    points: a metric and its case, by the name under the axis.
    """
    published = [(figures.published.get(each, {}), case) for each, case in points.values()]
    (what, _), *_ = points.values()
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), sharey=True)
    for i, name in enumerate(published[0][0]):
        values = [found[name][figures.cases.index(case)] for found, case in published]
        style = ("solid", "dashed", "dotted", "dashdot")[i % 4]
        left.plot(list(points), _scaled(what, values), marker="o", color=_PUBLISHED, ls=style)
        left.lines[-1].set_label(title(name))
    for name in figures.controllers:
        known = {at: figures.spread(each, name, case) for at, (each, case) in points.items()}
        spreads = {at: spread for at, spread in known.items() if spread}
        medians = _scaled(what, [spread.median for spread in spreads.values()])
        right.plot(list(spreads), medians, "o-", color=COLOURS[name], label=title(name))
        low = _scaled(what, [min(spread.values) for spread in spreads.values()])
        high = _scaled(what, [max(spread.values) for spread in spreads.values()])
        right.fill_between(list(spreads), low, high, color=COLOURS[name], alpha=0.15)
    left.set(title="published", ylabel=f"{words} ({what.metric.unit})")
    right.set(title="here")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.tight_layout()
    return figure


def _scaled(what: Shown, values: Sequence[float]) -> list[float]:
    factor = 100 if what.metric.unit == "%" else 1
    return [factor * value for value in values]


def _bars(figures: Figures, headline: Shown) -> Figure:
    """A bar for each controller: published, ours, and the throughput that it leaves."""
    published = figures.suite.published
    values = {name: one[-1] for name, one in (published.values if published else {}).items()}
    work = Shown(METRICS["work"], None)
    panels = [("published", headline)] * bool(values) + [("here", headline)]
    if headline.metric.name != "work" and any(one.metric.name == "work" for one in figures.shown):
        panels.append(("here", work))
    names = [ALONE, *figures.controllers]
    names = [name for name in names if figures.spread(headline, name)]
    height = 0.9 + 0.34 * max(len(names), len(values))
    figure, found = plt.subplots(1, len(panels), figsize=(13, height), squeeze=False)
    everything = list(values.values())
    for (where, what), axes in zip(panels, found.flat, strict=True):
        if where == "published":
            _bar(axes, what, {name: [value] for name, value in values.items()}, _PUBLISHED)
        else:
            spreads = {name: figures.spread(what, name) for name in names}
            known = {name: list(one.values) for name, one in spreads.items() if one}
            _bar(axes, what, known, None)
            if what is headline:
                everything += [value for one in known.values() for value in one]
        unit = "" if what.metric.unit == "x" else f" ({what.metric.unit})"
        axes.set_title(f"{where}: {what.metric.title}{unit}", fontsize=10)
    both = zip(panels, found.flat, strict=True)
    ones = [axes for (_, what), axes in both if what is headline]
    _one_scale(ones, _scaled(headline, everything))
    figure.tight_layout()
    return figure


def _bar(
    axes: Axes, what: Shown, values: Mapping[str, Sequence[float]], colour: str | None
) -> None:
    for name, found in values.items():
        (middle,) = _scaled(what, [median(found)])
        low, high = _scaled(what, [min(found), max(found)])
        axes.barh(title(name), middle, color=colour or COLOURS[name])
        if high > low:
            axes.plot([low, high], [title(name)] * 2, color="black", linewidth=1.2)
        text = f" {shown(what.metric, median(found), '')}"
        axes.annotate(text, (high, title(name)), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.tick_params(labelsize=8)


def _one_scale(all_axes: Sequence[Axes], values: Sequence[float]) -> None:
    """Give axes the same scale, of powers of ten if the values are far apart."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    wide = low > 0 and high / low > _WIDE_RATIO
    for axes in all_axes:
        if wide:
            axes.set_xscale("log")
            axes.set_xlim(low / 2, high * 4)
        else:
            axes.set_xlim(0, high * 1.18)
