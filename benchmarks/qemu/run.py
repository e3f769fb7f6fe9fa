"""How exact are the QEMU patches, and what do they cost?

    python -m benchmarks.qemu.run [--patched DIR] [--stock DIR] [--quick] [NAME...]
    python -m benchmarks.qemu.run --table FILE [--readme README]

A storage daemon exports throttled null devices over NBD on a unix socket, and fio loads them. fio
logs every request, and curves.py prices it: nothing is computed by the code under test. Measures
exactness, shift, idleness and retune (limit.py), shares (shares.py), overhead and accounting
(overhead.py), threads (threads.py), or those that are named; the others' results stay as they are.

A DIR has the programs that qemu-patches/build makes; without one, it is run first. Writes
results/qemu.json. --table prints a result as the tables of qemu-patches/README.md, or puts
them into --readme.

Terms, the same in every figure:
- cost: the sum over requests of their price by the curve, with 4 KiB reads = 1.
- rate in a window: see load.py. Windows are the full seconds after the first, up to a second before
  the end, when fio stops asking.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from benchmarks import readme, result_file
from benchmarks.qemu.daemon import Daemons
from benchmarks.qemu.limit import exactness, idleness, retune, shift
from benchmarks.qemu.overhead import accounting, overhead
from benchmarks.qemu.rows import Result, Results, Run, Versions
from benchmarks.qemu.shares import shares
from benchmarks.qemu.tables import tables
from benchmarks.qemu.threads import threads

RESULT = result_file.RESULTS / "qemu.json"
#: By the name of their rows in Results.
MEASUREMENTS: dict[str, Callable[[Daemons], Iterable[object]]] = {
    "exactness": exactness,
    "shift": shift,
    "idleness": idleness,
    "retune": retune,
    "shares": shares,
    "overhead": overhead,
    "threads": threads,
    "accounting": accounting,
}


def main() -> None:
    """Measure, or print a result."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--patched", type=Path, help="folder of the patched binaries")
    parser.add_argument("--stock", type=Path, help="folder of the stock binaries")
    parser.add_argument("--out", type=Path, default=RESULT, help="result file")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a result as tables")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the tables into this file")
    options = parser.parse_args()
    if options.table:
        text = tables(result_file.read(options.table, Result))
        if options.readme:
            readme.put_into(options.readme, text)
        else:
            sys.stdout.write(text)
        return
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    daemons = Daemons.built(options.stock, options.patched, options.quick)
    kept = options.out if options.names and options.out.exists() else None
    result = begun(daemons, kept)
    for name in options.names or MEASUREMENTS:
        setattr(result.results, name, shown(MEASUREMENTS[name](daemons)))
        result.earlier.pop(name, None)
    result_file.write(options.out, result)


def begun(daemons: Daemons, kept: Path | None) -> Result:
    """Return a result without rows, or with those of a file that keeps them."""
    result = Result(
        scenario="qemu-patches",
        when=result_file.now(),
        host=result_file.Machine.this(),
        kernel=platform.release(),
        qemu=Versions(*map(result_file.version, (daemons.stock, daemons.patched))),
        fio=result_file.version("fio"),
        load_before=os.getloadavg(),
        results=Results(),
    )
    if kept is not None:
        before = result_file.read(kept, Result)
        result.results = before.results
        measured = (name for name in MEASUREMENTS if getattr(before.results, name))
        run = Run(before.when, before.load_before)
        result.earlier = dict.fromkeys(measured, run) | before.earlier
    return result


def shown(rows: Iterable[object]) -> list[object]:
    """Return rows, each printed as it comes."""
    found = []
    for row in rows:
        found.append(row)
        print(json.dumps(msgspec.to_builtins(row)), file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
