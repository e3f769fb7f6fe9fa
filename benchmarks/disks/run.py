"""Do the simulated disks behave as the real ones are published to?

    python -m benchmarks.disks.run [--out FILE] [--quick] [figures|path|victims...]
    python -m benchmarks.disks.run --table FILE [--readme README]

Measures all three, or those that are named; the others' results stay as they are:

- figures: each device's published rates (published.py);
- path: the time that the way to the disk adds to a request, and its own rate (path.py);
- victims: the latency of one reader beside 15 neighbours (victims.py).

All rates and times are the disk's: those of fio, with the disk's slowdown taken out again. Writes
results/disks.json and prints it as tables; --readme puts them between the marks of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks import readme, result_file
from benchmarks.disks.path import path
from benchmarks.disks.published import figures
from benchmarks.disks.rows import Result, Results
from benchmarks.disks.tables import tables
from benchmarks.disks.victims import victims
from testing.lab import qemu

RESULT = result_file.RESULTS / "disks.json"
#: By the name of their rows in Results.
MEASUREMENTS: dict[str, Callable[[int, bool], Iterator[object]]] = {
    "figures": figures,
    "path": path,
    "victims": victims,
}
REPEATS = 3


def begun(results: Results, repeats: int) -> Result:
    """Return a result with the time and the machine."""
    programs = ("fio", "nbdkit", qemu.storage_daemon())
    return Result(
        results=results,
        scenario="disksim",
        when=result_file.now(),
        host=result_file.Machine.this(),
        kernel=platform.release(),
        revision=result_file.revision(),
        programs={Path(program).name: result_file.version(program) for program in programs},
        load_before=os.getloadavg(),
        repeats=repeats,
    )


def measure(names: list[str], out: Path, quick: bool) -> None:
    """Measure and write. names: none for all; a file's results of the others stay."""
    kept = result_file.read(out, Result).results if names and out.exists() else Results()
    result = begun(kept, 1 if quick else REPEATS)
    for name in names or MEASUREMENTS:
        rows: list[object] = []
        for row in MEASUREMENTS[name](result.repeats, quick):
            rows.append(row)
            print(json.dumps(msgspec.to_builtins(row)), file=sys.stderr, flush=True)
        setattr(result.results, name, rows)
    result_file.write(out, result)


def main() -> None:
    """Measure, or print a result."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--out", type=Path, default=RESULT, help="result file")
    parser.add_argument("--quick", action="store_true", help="one short run each")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a result as tables")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the tables into this file")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not options.table:
        measure(options.names, options.out, options.quick)
    text = tables(result_file.read(options.table or options.out, Result))
    if options.readme:
        readme.put_into(options.readme, text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
