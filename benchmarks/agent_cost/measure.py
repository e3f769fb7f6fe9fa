"""The figures of one scenario; see run.py for each one's meaning."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.agent_cost.agent_process import Metrics, agent_beside
from benchmarks.agent_cost.scenario import Scenario
from benchmarks.spread import Spread

WARM_UP_S = 20.0
FIGURES = (
    "ticks", "cpu_us_per_drive_and_tick", "kernel_ratio", "core_percent", "rss_mib", "pss_mib",
    "tick_p50_ms", "tick_p99_ms", "retunes_per_drive_and_minute", "scrape_cpu_ms",
    "scrape_held_up_ms", "all_known_after_s",
)  # fmt: skip
_SCRAPES = 5
# Idle drives are then left out of most ticks (docs/design/architecture.md).
_SETTLED_S = 30.0
_TICK_METRIC = "iokeel_agent_tick_seconds"
_RETUNES_METRIC = "iokeel_drive_retunes_total"
_ERRORS_METRIC = "iokeel_agent_errors_total"


@dataclass(frozen=True)
class Measured:
    """A scenario's figures in one run. errors: by their kind."""

    scenario: str
    vms: int
    drives: int
    hung_vms: int
    ticks: int
    cpu_us_per_drive_and_tick: float
    kernel_ratio: float
    core_percent: float
    rss_mib: float
    pss_mib: float
    tick_p50_ms: float
    tick_p99_ms: float
    retunes_per_drive_and_minute: float
    scrape_cpu_ms: float
    scrape_held_up_ms: float
    all_known_after_s: float
    errors: dict[str, float]


@dataclass(frozen=True)
class Repeated:
    """A scenario's figures in several runs, as results/agent-cost.json has them.

    figures: those of Measured, by name. errors: of all runs, by their kind. A file from before runs
    were repeated has the figures of one, beside the scenario.
    """

    scenario: str
    vms: int
    drives: int
    hung_vms: int
    repeats: int
    figures: dict[str, Spread]
    errors: dict[str, float]

    @classmethod
    def of(cls, runs: Sequence[Measured]) -> Repeated:
        """Return the figures of some runs of one scenario."""
        first = runs[0]
        errors: Counter[str] = Counter()
        for run in runs:
            errors.update(run.errors)
        return cls(
            scenario=first.scenario,
            vms=first.vms,
            drives=first.drives,
            hung_vms=first.hung_vms,
            repeats=len(runs),
            figures={name: Spread.of([getattr(run, name) for run in runs]) for name in FIGURES},
            errors=dict(errors),
        )


def measure(
    scenario: Scenario,
    ticks: int,
    command: Sequence[str],
    warm_up_s: float = WARM_UP_S,
    tables: str = "",
) -> Measured:
    """Measure an agent. command: the words that run its `iokeel`. tables: of its configuration."""
    drives = scenario.drives
    with agent_beside(scenario, command, tables) as agent:
        connected_s = agent.wait_for(drives)
        time.sleep(warm_up_s + (_SETTLED_S if scenario.idle else 0.0))
        before, scraped = agent.metrics(), time.monotonic()
        time.sleep(1.0)  # keeps the cost of the scrape out
        cpu_s, split, started = agent.cpu_s(), agent.user_and_system(), time.monotonic()
        time.sleep(ticks)
        cpu_s, elapsed_s = agent.cpu_s() - cpu_s, time.monotonic() - started
        user, system = (
            now - then for now, then in zip(agent.user_and_system(), split, strict=True)
        )
        rss, pss = agent.memory_mib()
        scrape_s, scraped_s = agent.cpu_s(), time.monotonic() - scraped
        after = agent.metrics()
        scrape_s = agent.cpu_s() - scrape_s
        held_up_s = min(agent.held_up_s() for _ in range(_SCRAPES))
    count = after[f"{_TICK_METRIC}_count"] - before[f"{_TICK_METRIC}_count"]
    retunes = _total(after, _RETUNES_METRIC) - _total(before, _RETUNES_METRIC)
    cost_s = cpu_s / elapsed_s / (count / scraped_s) / drives
    return Measured(
        scenario=str(scenario),
        vms=scenario.vms,
        drives=drives,
        hung_vms=scenario.hung,
        ticks=round(count),
        cpu_us_per_drive_and_tick=round(cost_s * 1e6, 1),
        kernel_ratio=round(system / max(1, user + system), 2),
        core_percent=round(100 * cpu_s / elapsed_s, 2),
        rss_mib=round(rss, 1),
        pss_mib=round(pss, 1),
        tick_p50_ms=round(_tick_s(before, after, 0.5) * 1e3, 1),
        tick_p99_ms=round(_tick_s(before, after, 0.99) * 1e3, 1),
        retunes_per_drive_and_minute=round(retunes / drives / scraped_s * 60, 2),
        scrape_cpu_ms=round(scrape_s * 1e3, 1),
        scrape_held_up_ms=round(held_up_s * 1e3, 1),
        all_known_after_s=round(connected_s, 1),
        errors=_new_errors(before, after),
    )


def _tick_s(before: Metrics, after: Metrics, part: float) -> float:
    """Return a percentile of the tick histogram between two scrapes, in seconds."""
    buckets = []
    for name in after:
        if found := re.fullmatch(_TICK_METRIC + r'_bucket\{le="([^"]+)"\}', name):
            buckets.append((float(found[1]), after[name] - before.get(name, 0.0)))
    wanted = part * buckets[-1][1]
    low, below = 0.0, 0.0
    for high, count in buckets:
        if count >= wanted and count > below:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (count - below)
        low, below = high, count
    return low


def _total(metrics: Metrics, name: str) -> float:
    """Return the sum of a metric's samples."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def _new_errors(before: Metrics, after: Metrics) -> dict[str, float]:
    """Return the errors between two scrapes by their kind."""
    return {
        key.partition('kind="')[2].rstrip('"}'): value - before.get(key, 0.0)
        for key, value in after.items()
        if key.startswith(_ERRORS_METRIC) and value > before.get(key, 0.0)
    }
