"""The committed results of the scenarios, for the plot and the tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import result_file
from benchmarks.shares.rows import Controls, Result, RunFigures
from benchmarks.shares.scenario import PREFIX

VICTIM = "victim"
_LATENCY = f"{PREFIX}latency-"


def controls(name: str) -> Controls:
    """Return a scenario's runs by control."""
    return result_file.read(result_file.RESULTS / f"{PREFIX}{name}.json", Result).controls


def latency_scenarios() -> list[str]:
    """Return the names of the scenarios with a latency target, without "latency-"."""
    files = result_file.RESULTS.glob(f"{_LATENCY}*.json")
    return sorted(file.stem.removeprefix(_LATENCY) for file in files)


def weights_of(found: Controls) -> dict[str, int]:
    """Return the weights of the drives w1000, w800 and so on, by name."""
    return {name: int(name.removeprefix("w")) for name in found["iokeel"][0].drives}


def latencies_ms(runs: Sequence[RunFigures]) -> tuple[list[float], list[float]]:
    """Return the victim's mean and its 99th percentile in each run."""
    victims = [run.drives[VICTIM] for run in runs]
    means = [one.latency_mean_ms for one in victims if one.latency_mean_ms is not None]
    p99s = [one.latency_p99_ms for one in victims if one.latency_p99_ms is not None]
    return means, p99s
