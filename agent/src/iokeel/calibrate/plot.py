"""Draws a calibration: the cost of a request by size, and latency by load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iokeel.calibrate.fio import JobResult
from iokeel.calibrate.measurement import Series
from iokeel.calibrate.result import Calibration
from iokeel.core.values.curve import DEFAULT_CURVE, KIB, CostCurve
from iokeel.errors import CalibrationError, ConfigError
from iokeel.words.quoting import reason, shown_path
from iokeel.words.units import rate

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")
_READ_COLOUR, _WRITE_COLOUR = "#1f6fb4", "#c8552b"
_GREY = "#8a8a8a"
_GRID_COLOUR = "#dddddd"
# The sizes on the axis: 4 KiB to 1 MiB.
_SIZES = tuple(KIB << power for power in range(2, 11))
# Points of a curve between two sizes of the axis, whose scale is logarithmic.
_STEPS = 16


def check_plot_file(file: Path) -> None:
    """Raise ConfigError if a plot can't be drawn to a file. Call it before measuring."""
    name = shown_path(file)
    if file.suffix.lower() not in _SUFFIXES:
        mend = f"end it in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        raise ConfigError("--plot", f"{name} is not a picture", mend)
    if not file.absolute().parent.is_dir():
        raise ConfigError("--plot", f"the folder of {name} does not exist", "create it")
    new = not file.exists()
    try:
        file.open("ab").close()
        if new:
            file.unlink()
    except OSError as error:
        mend = "give another file"
        raise ConfigError("--plot", f"{name} can't be written, {reason(error)}", mend) from None
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        mend = "install it (python3-matplotlib), or leave out --plot"
        raise ConfigError("--plot", "needs matplotlib", mend) from None


def draw_plot(title: str, calibration: Calibration, file: Path) -> None:
    """Draw the curves beside the measured costs, and latency by load.

    Raises CalibrationError if the file can't be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(12, 5), layout="constrained")
    costs, latencies = figure.subplots(1, 2)
    # A dollar sign would begin a formula.
    whole = f"{title}: {rate(calibration.fit.capacity)} normalized iops"
    figure.suptitle(whole, parse_math=False)
    _draw_costs(costs, calibration)
    _draw_latencies(latencies, calibration)
    for axes in (costs, latencies):
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(True, which="major", color=_GRID_COLOUR, linewidth=0.6)
        axes.legend(framealpha=0.8, edgecolor="none", fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        what = f"can't be written, {reason(error)}"
        raise CalibrationError(shown_path(file), what, "give another file to --plot") from None


def _draw_costs(axes: Axes, calibration: Calibration) -> None:
    _draw_curve(axes, DEFAULT_CURVE, "built-in curve", _GREY, "--")
    _draw_curve(axes, calibration.fit.read, "curve_read", _READ_COLOUR, "-")
    if calibration.fit.write is not None:
        _draw_curve(axes, calibration.fit.write, "curve_write", _WRITE_COLOUR, "-")
    for write in (False, True):
        for sequential in (False, True):
            series = [
                one
                for one in calibration.series
                if one.job.write is write and one.job.sequential is sequential
            ]
            if series:
                _draw_measured_costs(axes, series, calibration.fit.capacity)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_SIZES, [f"{s // KIB}K" if s < KIB**2 else "1M" for s in _SIZES])
    axes.set_xlabel("request size")
    axes.set_ylabel("cost, in random 4K reads")
    axes.set_title("Cost of a request")


def _draw_curve(axes: Axes, curve: CostCurve, label: str, colour: str, style: str) -> None:
    count = _STEPS * (len(_SIZES) - 1)
    sizes = [_SIZES[0] * 2 ** (step / _STEPS) for step in range(count + 1)]
    costs = [curve.cost(size) for size in sizes]
    axes.plot(sizes, costs, style, color=colour, linewidth=1.4, label=label)


def _draw_measured_costs(axes: Axes, series: list[Series], capacity: int) -> None:
    job = series[0].job
    axes.plot(
        [one.job.size_bytes for one in series],
        [capacity / one.raw_iops for one in series],
        "x" if job.sequential else "o",
        color=_colour(job.write),
        markersize=6,
        alpha=0.9,
        linestyle="none",
        label=f"{job.order} {job.direction}s, measured",
    )


def _draw_latencies(axes: Axes, calibration: Calibration) -> None:
    for series in calibration.series:
        if series.searched_from_one:
            _draw_latency(axes, series)
    target_ms = calibration.latency_target_ms
    axes.axhline(target_ms, color="black", linewidth=1, linestyle="--")
    axes.annotate(
        f"latency_target_ms = {target_ms:g}",
        (0, target_ms),
        xycoords=("axes fraction", "data"),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize="small",
    )
    axes.set_yscale("log")
    axes.set_xlim(0, 105)
    axes.set_xlabel("rate, % of saturation, at depth 1, 2, 4, ...")
    axes.set_ylabel("latency, ms")
    axes.set_title("Latency of random requests")


def _draw_latency(axes: Axes, series: Series) -> None:
    def depth(run: JobResult) -> int:
        return run.job.depth

    job = series.job
    runs = sorted(series.search, key=depth)
    most = max(run.raw_iops for run in runs)
    load_percent = [100 * run.raw_iops / most for run in runs]
    large = job.size_bytes >= KIB**2
    kind = f"{'1M' if large else '4K'} {job.direction}s"
    colour, marker = _colour(job.write), "s" if large else "o"
    mean_ms = [1e3 * run.latency_s for run in runs]
    p99_ms = [1e3 * run.latency_p99_s for run in runs]
    axes.plot(
        load_percent, mean_ms, f"{marker}-", color=colour, linewidth=1.4, markersize=4,
        label=f"{kind}, mean",
    )  # fmt: skip
    axes.plot(
        load_percent, p99_ms, f"{marker}:", color=colour, linewidth=1.4, markersize=4,
        alpha=0.6, label=f"{kind}, p99",
    )  # fmt: skip


def _colour(write: bool) -> str:
    return _WRITE_COLOUR if write else _READ_COLOUR
