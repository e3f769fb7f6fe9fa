"""A result as the tables of qemu-patches/README.md, one for each measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.qemu.rows import (
    Accounting,
    Exactness,
    Idleness,
    Overhead,
    Ratio,
    Result,
    Retune,
    Shares,
    Shift,
    Threads,
)
from benchmarks.readme import table


def tables(result: Result) -> str:
    """Return Markdown: the tables, then when and where they were measured."""
    found = result.results
    lines = [
        *_exactness(found.exactness),
        *_shift(found.shift),
        *_idleness(found.idleness),
        *_retune(found.retune),
        *_shares(found.shares),
        *_overhead(found.overhead),
        *_threads(found.threads),
        *_accounting(found.accounting),
        *_measured_on(result),
    ]
    return "\n".join(lines) + "\n"


def _titled(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"**{title}**", "", *table(header, rows), "")


def _exactness(rows: Sequence[Exactness]) -> Iterator[str]:
    if not rows:
        return
    limits = sorted({row.limit for row in rows})
    by: dict[str, dict[int, Exactness]] = {}
    for row in rows:
        by.setdefault(row.workload, {})[row.limit] = row
    worst = max(abs(row.cost_error) for row in rows)
    yield from _titled(
        "Exactness: slowest and fastest full second after the first, in % of the limit; "
        f"cost charged differs from fio's log by {worst:.1e} at most",
        ["workload, depth 32", *(f"{limit:,}" for limit in limits)],
        [
            [name, *(f"{_percent(at[i].rate_min)} to {_percent(at[i].rate_max)}" for i in limits)]
            for name, at in by.items()
        ],
    )


def _shift(rows: Sequence[Shift]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "Shift: 4K reads for 5 s, then 1M reads, limit 2000; rate in % of the limit",
        ["QEMU", *(f"s {i}" for i in range(2, 2 + len(rows[0].seconds)))],
        [[row.qemu, *(f"{100 * ratio:.1f}" for ratio in row.seconds)] for row in rows],
    )


def _idleness(rows: Sequence[Idleness]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "Idleness: the worst first second of four that come after one of idleness, and what "
        "passes while the daemon is stopped for 20 ms five times a second; in % of the limit",
        ["QEMU", "idle-credit-ms", "after idleness", "while it is late"],
        [
            [
                row.qemu,
                "" if row.idle_credit_ms is None else str(row.idle_credit_ms),
                _percent(max(row.after_idleness)),
                _percent(row.while_late),
            ]
            for row in rows
        ],
    )


def _retune(rows: Sequence[Retune]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "Retune: limits rewritten ten times a second for 10 s",
        ["QEMU", "limits", "reads of", "passed, of the mean limit"],
        [[row.qemu, row.limits, row.bs, _percent(row.ratio)] for row in rows],
    )


def _shares(rows: Sequence[Shares]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "Shares: four backlogged members, their share of the cost",
        ["QEMU", "members", "1st", "2nd", "3rd", "4th", "off by at most"],
        [
            [row.qemu, row.mix, *map(_percent, row.shares), _percent(max(map(abs, row.errors)))]
            for row in rows
        ],
    )


def _overhead(rows: Sequence[Overhead]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "Overhead: 4K reads, limits so high that nothing waits; medians of "
        f"{len(rows[0].iops)} runs in turn, and of the ratios to stock's in the same turn, "
        "with what it lies within at 95 % confidence; and the mean of the fastest tenth",
        ["depth", "QEMU", "IOPS", "of stock's", "fastest", "daemon's CPU", "of stock's"],
        [
            [
                str(row.depth),
                row.qemu,
                f"{row.median:,.0f}",
                _ratio(row.ratio),
                _percent(row.undisturbed),
                f"{row.cpu_us_median:.2f} µs",
                _ratio(row.cpu_ratio),
            ]
            for row in rows
        ],
    )


def _threads(rows: Sequence[Threads]) -> Iterator[str]:
    if not rows:
        return
    pairs: dict[tuple[int, int, int], dict[str, Threads]] = {}
    for row in rows:
        pairs.setdefault((row.threads, row.limit, row.first), {})[row.qemu] = row
    yield from _titled(
        "Iothreads: a member with 32 requests in each; operations a second and CPU time of each, "
        f"medians of {len(rows[0].iops)} runs in turn",
        ["iothreads", "limit", "stock", "", "patched", "", "of stock's"],
        [
            [
                str(threads),
                f"{limit:,}" + (f" after {first:,}" if first != limit else ""),
                *(
                    cell
                    for row in (pair["stock"], pair["patched"])
                    for cell in (f"{row.median:,.0f}", f"{row.cpu_us_median:.2f} µs")
                ),
                _percent(pair["patched"].of_stock),
            ]
            for (threads, limit, first), pair in pairs.items()
        ],
    )


def _accounting(rows: Sequence[Accounting]) -> Iterator[str]:
    if not rows:
        return
    yield from _titled(
        "The accounting call alone",
        ["charge", "ns per request, median", "range"],
        [
            [
                row.case.removeprefix("throttle_account, "),
                f"{row.median:.1f}",
                f"{min(row.ns):.1f} to {max(row.ns):.1f}",
            ]
            for row in rows
        ],
    )


def _measured_on(result: Result) -> Iterator[str]:
    yield (
        f"{result.when[:10]}, {result.host.cpus} cores, Linux {result.kernel}, "
        f"{result.qemu.patched.removeprefix('qemu-storage-daemon ')}, {result.fio}; "
        f"load before the run {result.load_before[0]:.1f}."
    )
    for name, run in result.earlier.items():
        yield f"{name}: {run.when[:10]}, load before {run.load_before[0]:.1f}."


def _percent(ratio: float) -> str:
    return f"{ratio:.1%}".replace("%", " %")


def _ratio(ratio: Ratio) -> str:
    return f"{_percent(ratio.median)} ({_percent(ratio.low)} to {_percent(ratio.high)})"
