"""Do shares of a disk hold, whatever the neighbours do?

    python -m benchmarks.shares.run [SCENARIO...] [--paced PERCENT...]

A scenario (scenarios/shares-*.toml) names a simulated disk, its drives with their policies and fio
jobs. Each drive is a process in a cgroup, as a VM is. It runs with no control, with static limits,
with BFQ and its weights, and with iokeel, in turn and several times. Drives that have a latency
target run alone too. With --paced their neighbours also run at fixed rates, which iokeel only
holds: the best that limits can do on the disk. If neighbours sync, they run without that too. All
figures come from fio's own log of every request:

    rate     the cost of a drive's requests a second, by the storage's curve, over [begin_s, end)
    share    its rate over the sum of all drives' rates
    total    the sum of all drives' rates, over the same with no control
    worst    its lowest rate of any second from the third one on, over its reservation
    latency  mean and 99th percentile of its requests' times, over the same alone
    stolen   the part of the processors' time that this machine's own hypervisor took. With some
             percent of it, times are not those of the disk and its control. So of up to TRIES runs
             the first one counts that has less than STOLEN_RATIO, or the one that has the least

Writes results/shares-NAME.json and prints a table. benchmarks.shares.page then draws the results
and puts them into the docs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import result_file
from benchmarks.shares.done import Run, figures, free_rate
from benchmarks.shares.one_run import CONTROLS, Control, run_quietly
from benchmarks.shares.rows import Controls, DriveFigures, Result
from benchmarks.shares.scenario import PREFIX, SCENARIOS, Scenario, paced, read_scenario

#: Of many drives, so many and the last one are printed.
SHOWN_DRIVES = 5

out = Console(highlight=False)


def paces_of(scenario: Scenario, percents: Sequence[int]) -> dict[str, tuple[float, bool]]:
    """Return the fixed rates of a scenario's neighbours: a part of the free rate, and syncs."""
    if not percents or not scenario.has_target:
        return {}
    paces = {f"paced, {percent} %": (percent / 100, True) for percent in percents}
    if scenario.syncs:
        paces[f"paced, {max(percents)} %, no syncs"] = (max(percents) / 100, False)
    return paces


def measured(
    scenario: Scenario, controls: Sequence[Control], percents: Sequence[int], repeats: int
) -> Controls:
    """Run a scenario under all controls, in turn; return the figures."""
    paces = paces_of(scenario, percents)
    names = [*controls, *(["alone"] if scenario.has_target else []), *paces]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(repeats):
        for control in controls:
            runs[control].append(run_quietly(scenario, control))
        if scenario.has_target:
            runs["alone"].append(run_quietly(scenario, "none", alone=True))
        for name, (pace, syncs) in paces.items():
            rate = pace * free_rate(scenario, runs["none"])
            runs[name].append(run_quietly(paced(scenario, rate, syncs), "iokeel"))
    free = free_rate(scenario, runs["none"])
    return {name: [figures(scenario, run, free) for run in found] for name, found in runs.items()}


def table(scenario: Scenario, found: Controls) -> Table:
    """Return the medians over the repeats."""
    shown = Table(title=f"{scenario.name}: {scenario.device}, times x {scenario.slowdown:g}")
    for heading in ("control", "total", "drive", "rate", "share", "worst s", "ms mean", "ms p99"):
        shown.add_column(heading, justify="left" if heading in ("control", "drive") else "right")
    for control, repeats in found.items():
        total = median(one.total_ratio for one in repeats)
        names = list(repeats[0].drives)
        for i, name in enumerate(names):
            if SHOWN_DRIVES <= i < len(names) - 1:
                continue
            first = (control, f"{total:.0%}") if i == 0 else ("", "")
            shown.add_row(*first, name, *_cells([one.drives[name] for one in repeats]))
        shown.add_section()
    return shown


def _cells(rows: Sequence[DriveFigures]) -> list[str]:
    return [
        _median([row.rate for row in rows], "{:.0f}"),
        _median([row.share for row in rows], "{:.1%}"),
        _median([row.worst_second_of_reservation for row in rows], "{:.0%}"),
        _median([row.latency_mean_ms for row in rows], "{:.2f}"),
        _median([row.latency_p99_ms for row in rows], "{:.2f}"),
    ]


def _median(values: Sequence[float | None], text: str) -> str:
    known = [value for value in values if value is not None]
    return text.format(median(known)) if known else "-"


def main() -> None:
    """Run the scenarios."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument(
        "scenario", nargs="*", type=Path, help="such as scenarios/shares-weights.toml"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, help="instead of the scenario's")
    parser.add_argument("--output", type=Path, default=result_file.RESULTS, help="a folder")
    parser.add_argument("--controls", nargs="+", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument(
        "--paced", nargs="+", type=int, default=[], help="percents of the rate with no control"
    )
    options = parser.parse_args()
    if "none" not in options.controls:
        parser.error("--controls lacks none: totals are over it")
    options.output.mkdir(parents=True, exist_ok=True)
    for path in options.scenario or sorted(SCENARIOS.glob(f"{PREFIX}*.toml")):
        scenario = read_scenario(path, options.seconds)
        found = measured(scenario, options.controls, options.paced, options.repeats)
        result = Result(scenario.name, scenario.device, found)
        result_file.write(options.output / f"{PREFIX}{scenario.name}.json", result)
        out.print(table(scenario, found))
        stolen = max(run.stolen_ratio or 0.0 for runs in found.values() for run in runs)
        out.print(f"stolen: {stolen:.1%} of a run, at most")


if __name__ == "__main__":
    main()
