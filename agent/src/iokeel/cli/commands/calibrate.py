"""The command `iokeel calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from iokeel.calibrate.measurement import QUICK, Plan
from iokeel.calibrate.target import TargetOptions
from iokeel.cli.calibration import parse_size_option, run_calibration

# The ranges of --seconds and --threads.
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 3600.0
_MOST_THREADS = 64
app = typer.Typer(add_completion=False)


@app.command()
def calibrate(
    storage: Annotated[
        str,
        typer.Argument(metavar="STORAGE", help="A block device, a folder, or an NBD URI."),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Its name in the configuration (default: from STORAGE)."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="How much of it to use (default: 4g in a folder, else all)."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=_LEAST_SECONDS,
            max=_MOST_SECONDS,
            help="Seconds per run (default: 3, or 1 with --quick).",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer sizes, shorter runs: two minutes instead of ten."),
    ] = False,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=1,
            max=_MOST_THREADS,
            help="Submitting threads, if one can't keep the storage busy (rounded down to a power"
            " of two).",
        ),
    ] = 1,
    destroy_data: Annotated[
        bool,
        typer.Option(
            "--destroy-data",
            help="Measure writes to a device or export too. Overwrites its data.",
        ),
    ] = False,
    fill: Annotated[
        bool,
        typer.Option("--fill", help="First fill it with random data. Needs --destroy-data."),
    ] = False,
    even_if_in_use: Annotated[
        bool,
        typer.Option(
            "--even-if-in-use", help="Measure a storage in use. Its users will be slowed down."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the fit to FILE.png, .svg or .pdf."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, every run included.")
    ] = False,
    as_lines: Annotated[
        bool, typer.Option("--progress", help="Print progress to stderr as lines of JSON.")
    ] = False,
) -> None:
    """Measure a storage, and print its configuration.

    Runs fio directly on the storage: reads and writes, random and sequential, from 4 KiB to 1 MiB,
    in ever deeper queues until it is saturated. Finds its capacity, the cost of a read and of a
    write by size, and a latency target.

    The table for the configuration goes to stdout, everything else to stderr.

    A folder is measured in a temporary file. A device or export is only read, unless
    --destroy-data is given. A storage in use is refused.
    """
    size_bytes = None if size is None else parse_size_option(size)
    options = TargetOptions(size_bytes, destroy_data, fill, even_if_in_use, threads)
    plan = QUICK if quick else Plan()
    if seconds is not None:
        plan = replace(plan, seconds=seconds)
    run_calibration(storage, options, plan, name, plot, as_json, as_lines)
