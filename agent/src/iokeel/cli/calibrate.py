"""The command `iokeel calibrate`."""

from __future__ import annotations

import json
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from iokeel import __version__
from iokeel.calibrate import fio
from iokeel.calibrate import plot as plots
from iokeel.calibrate.measurement import QUICK, Plan, measure
from iokeel.calibrate.result import Calibration, found, latency, toml, values
from iokeel.calibrate.target import Target, Wishes, default_name, opened
from iokeel.cli import tables
from iokeel.errors import ConfigError, IokeelError
from iokeel.host.in_use import InUse
from iokeel.policy_xml.schema import NAME
from iokeel.words.quoting import shown
from iokeel.words.units import duration, parse_size, rate

# Where no terminal says how wide it is.
_WIDE = 1000
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 3600.0
_MOST_THREADS = 64


def calibrate(
    storage: Annotated[
        str,
        typer.Argument(
            metavar="STORAGE",
            help="A block device, a folder (on a filesystem) or an NBD URI.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The storage's name in the configuration.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size", help="How much of it to use (default 4g of a filesystem, else all)."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=_LEAST_SECONDS, max=_MOST_SECONDS, help="Seconds a run (default 3)."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes and shorter runs: two minutes, not ten.")
    ] = False,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=1,
            max=_MOST_THREADS,
            help="Threads that submit, where one can't keep the storage busy.",
        ),
    ] = 1,
    destroy_data: Annotated[
        bool,
        typer.Option("--destroy-data", help="Measure writes on a device, over what is on it."),
    ] = False,
    fill: Annotated[
        bool,
        typer.Option("--fill", help="First fill the device with random data (--destroy-data)."),
    ] = False,
    even_if_in_use: Annotated[
        bool,
        typer.Option("--even-if-in-use", help="Read from it though others use it, and will wait."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the fit: FILE.png, .svg or .pdf.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, every run included.")
    ] = False,
) -> None:
    """Measure what a storage serves, and print configuration for it.

    Runs fio against it, with nothing between but the kernel: reads and writes, random and
    sequential, from 4 KiB to 1 MiB, at depths up to saturation. Fits a capacity, a cost curve for
    reads and one for writes, and proposes a latency target.

    In a folder, a file of its own is used and removed. A device or export is only read, unless
    --destroy-data is given. What is found to be in use is refused.
    """
    wishes = Wishes(
        None if size is None else _size(size), destroy_data, fill, even_if_in_use, threads
    )
    if name is not None and not NAME.pattern.fullmatch(name):
        raise ConfigError("--name", f"{shown(name)} is {NAME.what}", NAME.mend)
    if plot is not None:
        plots.check(plot)
    plan = QUICK if quick else Plan()
    if seconds is not None:
        plan = Plan(plan.random_kib, plan.sequential_kib, seconds, plan.ramp_s, plan.repeats)
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    with _ended_by_signals(), _Progress(console) as progress:
        tool = fio.version()
        with opened(storage, wishes, progress.filled, InUse()) as target:
            series = measure(target.fio, plan, target.writable, progress)
    result = found(series, target.zero_ratio)
    chosen = name or default_name(target)
    if plot is not None:
        plots.draw(storage, result, plot)
    table = _table(chosen, target, result, tool)
    if as_json:
        facts = _facts(storage, wishes, plan, tool)
        print(json.dumps(facts | values(result) | {"config": table}, indent=1))
        return
    console.print(tables.calibration(result))
    console.print(latency(result))
    for warning in result.warnings:
        console.print(f"warning: {warning}", style="yellow")
    console.print()
    sys.stderr.flush()
    print(table, end="")


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"--size {error.where}", error.what, error.mend) from None


def _table(name: str, target: Target, result: Calibration, tool: str) -> str:
    today = datetime.now(UTC).date()
    lines = [f"# Calibrated on {today} by iokeel {__version__} with {tool}."]
    lines += [f"# {warning}" for warning in result.warnings]
    return "\n".join(lines) + "\n" + toml(name, target.key, target.value, result)


def _facts(storage: str, wishes: Wishes, plan: Plan, tool: str) -> dict[str, Any]:
    return {
        "storage": storage,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "fio": tool,
        "iokeel": __version__,
        "seconds": plan.seconds,
        "size_bytes": wishes.size_bytes,
        "threads": wishes.threads,
    }


class _Progress:
    """Shows what is measured, what came of the last run, and the time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:34}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]:>20}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=120,
        )
        self._task = self._progress.add_task("looking", total=None, last="")
        self._runs = 0

    def __enter__(self) -> _Progress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def filled(self, done: int, total: int) -> None:
        """Show how far data is laid out."""
        self._progress.update(
            self._task,
            description=f"laying out {total >> 20} MiB of random data",
            completed=done,
            total=total,
        )

    def running(self, job: fio.Job, left: int) -> None:
        """Show what runs."""
        if not self._runs:
            self._progress.reset(self._task)
        self._progress.update(
            self._task,
            description=f"{job}, depth {job.depth}",
            completed=self._runs,
            total=self._runs + left,
        )

    def done(self, run: fio.Run) -> None:
        """Show what came of it."""
        self._runs += 1
        last = f"{rate(run.raw_iops)}/s in {duration(run.latency_s)}"
        self._progress.update(self._task, completed=self._runs, last=last)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End in order at SIGINT, SIGTERM and SIGHUP, and with one line."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        what = "interrupted, and nothing is left behind"
        raise IokeelError("calibrate", what, "run it again") from None
