"""Draws what a calibration found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iokeel.calibrate.measurement import Series
from iokeel.calibrate.result import Calibration
from iokeel.core.curve import DEFAULT_CURVE, KIB, CostCurve
from iokeel.errors import CalibrationError, ConfigError
from iokeel.words.quoting import shown_path
from iokeel.words.units import rate

_KINDS = (".png", ".svg", ".pdf")
_COLOURS = {False: "#1f6fb4", True: "#c8552b"}
_GREY = "#8a8a8a"
_SIZES = tuple(KIB << power for power in range(2, 11))


def check(file: Path) -> None:
    """Raise ConfigError where nothing could be drawn to a file, before anything is measured."""
    name = shown_path(file)
    if file.suffix.lower() not in _KINDS:
        raise ConfigError("--plot", f"{name} is no picture", f"end it in {', '.join(_KINDS)}")
    if not file.absolute().parent.is_dir():
        raise ConfigError("--plot", f"the folder of {name} is not there", "give one that is")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        mend = "install it (python3-matplotlib), or leave --plot out"
        raise ConfigError("--plot", "needs matplotlib", mend) from None


def draw(name: str, calibration: Calibration, file: Path) -> None:
    """Draw the curves beside what was measured, and latency against load, to a file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(12, 5), layout="constrained")
    costs, latencies = figure.subplots(1, 2)
    figure.suptitle(f"{name}: {rate(calibration.fit.capacity)} normalized iops")
    _draw_costs(costs, calibration)
    _draw_latencies(latencies, calibration)
    for axes in (costs, latencies):
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        what = f"can't be written, {error.strerror}"
        raise CalibrationError(shown_path(file), what, "give another --plot") from None


def _draw_costs(axes: Any, calibration: Calibration) -> None:
    fitted = calibration.fit
    axes.plot(*_line(DEFAULT_CURVE), "--", color=_GREY, linewidth=1, label="built-in curve")
    for write, curve in ((False, fitted.read), (True, fitted.write)):
        if curve is None:
            continue
        word, colour = "write" if write else "read", _COLOURS[write]
        axes.plot(*_line(curve), "-", color=colour, linewidth=1.6, label=f"curve_{word}")
        for sequential in (False, True):
            points = [
                (s.job.size_bytes, fitted.capacity / s.raw_iops)
                for s in calibration.series
                if s.job.write is write and s.job.sequential is sequential
            ]
            axes.plot(
                *zip(*points, strict=True),
                "x" if sequential else "o",
                color=colour,
                markersize=6,
                alpha=0.9,
                linestyle="none",
                label=f"{'sequential' if sequential else 'random'} {word}s, measured",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_SIZES, [f"{s // KIB}K" if s < KIB**2 else "1M" for s in _SIZES])
    axes.set_xlabel("request size")
    axes.set_ylabel("cost, in random 4K reads")
    axes.set_title("Cost of a request")


def _line(curve: CostCurve) -> tuple[list[float], list[float]]:
    sizes = [_SIZES[0] * 2 ** (i / 16) for i in range(16 * (len(_SIZES) - 1) + 1)]
    return sizes, [curve.cost(size) for size in sizes]


def _draw_latencies(axes: Any, calibration: Calibration) -> None:
    for series in _searched(calibration):
        job = series.job
        runs = sorted(series.search, key=lambda run: run.job.depth)
        most = max(run.raw_iops for run in runs)
        load = [100 * run.raw_iops / most for run in runs]
        style = {"color": _COLOURS[job.write], "linewidth": 1.4, "markersize": 4}
        large = job.size_bytes >= KIB**2
        kind = f"{'1M' if large else '4K'} {'writes' if job.write else 'reads'}"
        axes.plot(
            load,
            [1e3 * run.latency_s for run in runs],
            "s-" if large else "o-",
            label=f"{kind}, mean",
            **style,
        )
        axes.plot(
            load,
            [1e3 * run.latency_p99_s for run in runs],
            "s:" if large else "o:",
            label=f"{kind}, p99",
            alpha=0.6,
            **style,
        )
    target = calibration.latency_target_ms
    axes.axhline(target, color="black", linewidth=1, linestyle="--")
    axes.annotate(
        f"latency_target_ms = {target:g}",
        (0, target),
        xycoords=("axes fraction", "data"),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize="small",
    )
    axes.set_yscale("log")
    axes.set_xlim(0, 105)
    axes.set_xlabel("rate, % of saturation, as the queue deepens 1, 2, 4, ...")
    axes.set_ylabel("latency, ms")
    axes.set_title("Latency of random requests")


def _searched(calibration: Calibration) -> Iterator[Series]:
    return (s for s in calibration.series if s.searched)
