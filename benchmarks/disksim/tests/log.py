"""Logs of the simulated disk, held against the rules."""

import csv
from collections import Counter
from pathlib import Path

from benchmarks.disksim.twin import Command, Params, serve


def rows_of(log: Path) -> list[dict[str, str]]:
    """Return a log's rows in order of arrival."""
    with log.open() as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row["id"]))


def checked(log: Path, params: Params) -> Counter[str]:
    """Assert that all times of a log are what the rules make of its arrivals.

    Returns how many commands there are of each kind.
    """
    rows = rows_of(log)
    assert [int(row["id"]) for row in rows] == list(range(len(rows)))
    arrivals = [int(row["arrival_ns"]) for row in rows]
    assert arrivals == sorted(arrivals)
    commands = [
        Command(row["op"], row["fua"] == "1", int(row["offset"]), int(row["length"]), arrival)
        for row, arrival in zip(rows, arrivals, strict=True)
    ]
    serve(params, commands)
    for row, command in zip(rows, commands, strict=True):
        times = [int(row[name]) for name in ("entered_ns", "start_ns", "unit", "done_ns")]
        assert times == [command.entered, command.start, command.unit, command.done]
        assert int(row["actual_ns"]) >= command.done
    return Counter(row["op"] for row in rows)
