"""The shares' results as Markdown: weights, a reservation, and latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.readme import table
from benchmarks.shares.measured import (
    VICTIM,
    controls,
    latencies_ms,
    latency_scenarios,
    weights_of,
)
from benchmarks.shares.scenario import PREFIX, SCENARIOS, read_scenario

NAMES = {"none": "none", "static": "static limits", "bfq": "BFQ", "iokeel": "iokeel"}
DISKS = {"nvme-970-pro": "NVMe", "sata-ssd-px-256m5s": "SATA SSD", "hdd-hts72755": "hard disk"}
_TOTAL = "total, over no control"


def tables() -> str:
    """Return all three tables."""
    lines = ["Weights, the share of each drive:", "", *_weights(), ""]
    lines += ["A reservation of 30 %:", "", *_reservation(), ""]
    lines += ["A latency target:", "", *_latency()]
    return "\n".join(lines) + "\n"


def _weights() -> Iterator[str]:
    found = controls("weights")
    wanted = weights_of(found)
    due = (f"{weight / sum(wanted.values()):.1%} is due" for weight in wanted.values())
    rows = []
    for control, runs in found.items():
        shares = (_percents([run.drives[name].share for run in runs], 1) for name in wanted)
        rows.append([NAMES[control], *shares, _percents([run.total_ratio for run in runs])])
    yield from table(["control", *due, _TOTAL], rows)


def _reservation() -> Iterator[str]:
    rows = []
    for control, runs in controls("reservation").items():
        worst = [run.drives[VICTIM].worst_second_of_reservation for run in runs]
        totals = [run.total_ratio for run in runs]
        known = [ratio for ratio in worst if ratio is not None]
        rows.append([NAMES[control], _percents(known), _percents(totals)])
    yield from table(["control", "its lowest second, over it", _TOTAL], rows)


def _latency() -> Iterator[str]:
    header = ["disk, beside", "control", "mean, ms", "99th percentile, ms", _TOTAL]
    rows = (row for name in latency_scenarios() for row in _latency_rows(name))
    yield from table(header, rows)


def _latency_rows(name: str) -> Iterator[list[str]]:
    """Yield the rows of a scenario."""
    scenario = read_scenario(SCENARIOS / f"{PREFIX}latency-{name}.toml")
    found = controls(f"latency-{name}")
    disk = f"{DISKS[scenario.device]}, times x {scenario.slowdown:g}, {name.partition('-')[2]}"
    alone = latencies_ms(found["alone"])
    yield [disk, "alone", *(_spread(values) for values in alone), ""]
    for control, runs in found.items():
        if control == "alone":
            continue
        cells = [
            f"{_spread(values)}: {_short(median(values) / median(base), 2)} x"
            for values, base in zip(latencies_ms(runs), alone, strict=True)
        ]
        totals = [100 * run.total_ratio for run in runs]
        yield ["", NAMES.get(control, control), *cells, f"{_spread(totals)} %"]


def _percents(values: Sequence[float], digits: int = 0) -> str:
    return ", ".join(f"{100 * value:.{digits}f}" for value in values) + " %"


def _spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the most if they differ."""
    low, middle, high = (_short(value) for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"
