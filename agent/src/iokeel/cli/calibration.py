"""Runs a calibration for the command: its progress, and its result."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from iokeel.calibrate.fio import Job, JobResult, fio_version
from iokeel.calibrate.measurement import Plan, measure
from iokeel.calibrate.output import Conditions, config_text, json_text
from iokeel.calibrate.plot import check_plot_file, draw_plot
from iokeel.calibrate.result import Calibration, evaluate
from iokeel.calibrate.target import TargetOptions, open_target
from iokeel.cli.cells import PlainTable, layouts
from iokeel.cli.options import PIPE_COLUMNS
from iokeel.cli.output import say, say_json
from iokeel.errors import ConfigError, IokeelError
from iokeel.host.in_use import InUse
from iokeel.libvirt_xml.schema import NAME
from iokeel.words.quoting import escaped, shown
from iokeel.words.units import duration, parse_size, rate, size

# The time left is estimated from the pace of so many seconds: searches and repeats differ.
_PACE_S = 120


class ProgressLines:
    """Writes a line of JSON to stderr as each run begins: what it is, how many are done and left.

    last: the result of the run before.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def filled(self, done_bytes: int, total_bytes: int) -> None:
        """Write how much data is written before the first run."""
        self._write(f"writing {total_bytes >> 20} MiB of random data", done_bytes, total_bytes)

    def run_started(self, job: Job, runs_left: int) -> None:
        """Write the run, and how many are left."""
        self._write(f"{job}, depth {job.depth}", self._runs, self._runs + runs_left)

    def run_finished(self, result: JobResult) -> None:
        """Keep the run's result for the next line."""
        self._runs += 1
        self._last = f"{rate(result.raw_iops)}/s in {duration(result.latency_s)}"

    def _write(self, doing: str, done: int, total: int) -> None:
        line = {"doing": doing, "done": done, "total": total, "last": self._last}
        say_json(line, indent=None, file=sys.stderr)


class ProgressBar(ProgressLines):
    """Shows the same as a bar, and the time left. Needs a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description:34}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]:>20}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=_PACE_S,
        )
        self._task = self._progress.add_task("checking the storage", total=None, last="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run_started(self, job: Job, runs_left: int) -> None:
        """Show the run, and how many are left."""
        if not self._runs:
            self._progress.reset(self._task)
        super().run_started(job, runs_left)

    def run_finished(self, result: JobResult) -> None:
        """Show the run's result."""
        super().run_finished(result)
        self._progress.update(self._task, completed=self._runs, last=self._last)

    def _write(self, doing: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=doing, completed=done, total=total)


def run_calibration(
    storage: str,
    options: TargetOptions,
    plan: Plan,
    name: str | None,
    plot: Path | None,
    as_json: bool,
    as_lines: bool,
) -> None:
    """Calibrate a storage, and print the result.

    name: of the storage in the configuration; None: derived from the storage. plot: the file to
    draw to, if any. as_lines: progress goes to stderr as lines of JSON. Raises ConfigError for
    options that don't suit, CalibrationError if the storage can't be calibrated.
    """
    if name is not None and not NAME.pattern.fullmatch(name):
        raise ConfigError("--name", f"{shown(name)} is {NAME.what}", NAME.mend)
    if plot is not None:
        check_plot_file(plot)
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal or not console.width:
        console.width = PIPE_COLUMNS
    reporter = ProgressLines() if as_lines else ProgressBar(console)
    with _interruptible(), reporter as progress:
        fio = fio_version()
        with open_target(storage, options, progress.filled, InUse()) as target:
            series = measure(target.fio, plan, target.writable, progress, target.check)
    calibration = evaluate(series, target.zero_ratio, target.cache)
    config = config_text(name or target.default_name, target, calibration, fio)
    if as_json:
        conditions = Conditions.now(storage, fio, plan.seconds, options.size_bytes, options.threads)
        say(*json_text(conditions, calibration, config).splitlines())
    else:
        _print_summary(console, calibration)
        say(*config.splitlines())
    if plot is not None:  # last, so that its failure takes no result away
        draw_plot(storage, calibration, plot)


def parse_size_option(text: str) -> int:
    """Return --size in bytes. Raises ConfigError if it is not a size."""
    try:
        return parse_size(text)
    except ConfigError as error:
        raise ConfigError.of(error, f"--size {error.where}") from None


def _print_summary(console: Console, calibration: Calibration) -> None:
    """Print the table, latencies and warnings to stderr, ahead of the configuration."""
    console.print(series_table(calibration))
    latencies = (f"{duration(s)} for {kind}" for kind, s in calibration.latencies_s.items())
    console.print("latency at 80 % of saturation: " + ", ".join(latencies))
    for warning in calibration.warnings:
        console.print(f"warning: {escaped(warning)}", style="yellow")
    console.print()
    sys.stderr.flush()


def series_table(calibration: Calibration) -> PlainTable:
    """Return a row for each series: its rate, and its cost by the fit."""
    rows = []
    for series in calibration.series:
        job = series.job
        error = calibration.fit_error_ratio(series)
        rows.append(
            (
                f"{job.order} {job.direction}",
                size(job.size_bytes),
                f"{rate(series.raw_iops)}/s",
                rate(series.raw_iops * job.size_bytes, "B/s"),
                str(job.depth),
                duration(series.latency_p99_s),
                "" if error is None else f"{calibration.cost(series):.4g}",
                "" if error is None else f"{100 * error:+.1f} %",
            )
        )
    headings = ("kind", "size", "rate", "bytes/s", "depth", "p99", "cost", "fit error")
    return PlainTable(headings, rows, layouts("bytes/s", "depth", "fit error", "p99"))


@contextmanager
def _interruptible() -> Iterator[None]:
    """End in order at SIGINT, SIGTERM and SIGHUP, and with one line."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        what = "interrupted, nothing is left behind"
        raise IokeelError("calibrate", what, "run it again") from None
