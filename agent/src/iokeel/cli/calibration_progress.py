"""The progress of `iokeel calibrate`: a bar for people, lines of JSON for programs."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from iokeel.calibrate.job import Job, JobResult
from iokeel.cli.output import say_json
from iokeel.words.units import duration, rate

# The time left is estimated from the pace of so many seconds: searches and repeats differ.
_PACE_S = 120


class ProgressBar:
    """Shows the current run, the last run's result, and the time left. Needs a terminal."""

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
            speed_estimate_period=_PACE_S,
        )
        self._task = self._progress.add_task("checking the storage", total=None, last="")
        self._runs = 0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def filled(self, done_bytes: int, total_bytes: int) -> None:
        """Show how much data is written before the first run."""
        self._progress.update(
            self._task,
            description=f"writing {total_bytes >> 20} MiB of random data",
            completed=done_bytes,
            total=total_bytes,
        )

    def run_started(self, job: Job, runs_left: int) -> None:
        """Show the run, and how many are left."""
        if not self._runs:
            self._progress.reset(self._task)
        self._progress.update(
            self._task,
            description=f"{job}, depth {job.depth}",
            completed=self._runs,
            total=self._runs + runs_left,
        )

    def run_finished(self, result: JobResult) -> None:
        """Show the run's result."""
        self._runs += 1
        last = f"{rate(result.raw_iops)}/s in {duration(result.latency_s)}"
        self._progress.update(self._task, completed=self._runs, last=last)


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
