"""A result as the tables of benchmarks/disksim/README.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.disks.rows import Figure, Path, Result, Victim
from benchmarks.readme import table
from benchmarks.spread import Spread


def tables(result: Result) -> str:
    """Return Markdown: the tables, then when and where they were measured."""
    found, programs = result.results, result.programs
    lines = [*_figures(found.figures), *_victims(found.victims), *_path(found.path)]
    lines.append(
        f"{result.when[:10]}, {result.host.cpus} cores, Linux {result.kernel}, "
        f"{programs['fio']}, {programs['qemu-storage-daemon']}; "
        f"{result.repeats} runs each; load before {result.load_before[0]:.1f}."
    )
    return "\n".join(lines) + "\n"


def _figures(rows: Sequence[Figure]) -> Iterator[str]:
    if not rows:
        return
    yield from ("Published figures, and the model's (median of the runs, least to most):", "")
    yield from table(
        ("device", "figure", "published", "model", "unit", "slowdown"),
        [
            (
                row.device,
                row.figure,
                _number(row.published),
                _range(Spread(row.median, row.least, row.most)),
                row.unit,
                f"{row.slowdown:g}",
            )
            for row in rows
        ],
    )
    yield ""


def _victims(rows: Sequence[Victim]) -> Iterator[str]:
    if not rows:
        return
    alone = {_disk(row): row for row in rows if not row.others}
    yield "Mean latency in ms of 4K random reads at depth 1, alone and while 15 others read or " \
        "write in sequence:"  # fmt: skip
    yield ""
    yield from table(
        ("device", "others", "by", "scheduler", "published", "model", "alone", "others' MB/s"),
        [
            (
                _disk(row),
                row.others,
                row.how,
                row.scheduler,
                _number(row.published_mean_ms) if row.how == "processes" else "-",
                _range(row.mean_ms),
                _number(alone[_disk(row)].mean_ms.median),
                _number(row.others_mb_s.median),
            )
            for row in rows
            if row.others
        ],
    )
    yield ""


def _disk(row: Victim) -> str:
    return " ".join([row.device, *(f"{name}={value}" for name, value in row.changed.items())])


def _path(rows: Sequence[Path]) -> Iterator[str]:
    if not rows:
        return
    yield from ("What the way to the disk adds at depth 1, and carries at depth 64:", "")
    yield from table(
        ("way", "adds, µs", "carries, 4K reads a second"),
        [(row.way, _range(row.added_us), _range(row.carried_iops)) for row in rows],
    )
    yield ""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(spread: Spread) -> str:
    return f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"
