"""Draw results/shares-*.json as docs/shares.png, and put them into docs/measurements.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.readme import put_into
from benchmarks.shares.run import CONTROLS, read_scenario

BENCHMARKS = Path(__file__).resolve().parents[1]
DOCS = BENCHMARKS.parent / "docs"
NAMES = {"none": "none", "static": "static limits", "bfq": "BFQ", "iokeel": "iokeel"}
DISKS = {"nvme-970-pro": "NVMe", "sata-ssd-px-256m5s": "SATA SSD", "hdd-hts72755": "hard disk"}
COLOURS = dict(zip(("alone", *CONTROLS), ("gray", "red", "orange", "green", "blue"), strict=True))


def results(name: str) -> dict[str, Any]:
    """Return a scenario's runs by control."""
    text = (BENCHMARKS / f"results/shares-{name}.json").read_text()
    found: dict[str, Any] = json.loads(text)["controls"]
    return found


def weights(axes: Any) -> None:
    """Shares of four backlogged drives, and the weights as lines."""
    found = results("weights")
    names = list(found["iokeel"][0]["drives"])
    wanted = [int(name.removeprefix("w")) for name in names]
    for place, control in enumerate(c for c in CONTROLS if c in found):
        heights = [median(r["drives"][n]["share"] for r in found[control]) for n in names]
        at = [i + 0.2 * (place - 1.5) for i in range(len(names))]
        axes.bar(at, heights, 0.2, color=f"tab:{COLOURS[control]}", label=control)
    for i, weight in enumerate(wanted):
        axes.hlines(weight / sum(wanted), i - 0.4, i + 0.4, "black", linestyles="dashed")
    axes.set_xticks(range(len(names)), [f"weight {weight}" for weight in wanted])
    axes.set(title="Share of the disk (dashed: by weight)", ylabel="part of all cost")
    axes.legend()


def reservation(axes: Any) -> None:
    """What a drive with a reservation got of it, second by second."""
    for control, runs in results("reservation").items():
        for i, run in enumerate(runs):
            seconds = run["drives"]["victim"]["of_reservation_by_second"]
            label = control if not i else None
            axes.plot(seconds, color=f"tab:{COLOURS[control]}", alpha=0.7, label=label)
    axes.axhline(1, color="black", linestyle="dashed")
    axes.set(title="A reservation of 30 % beside 15 others", xlabel="seconds", ylabel="of it")
    axes.set_ylim(bottom=0)
    axes.legend()


def latency(axes: Any) -> None:
    """Mean and 99th percentile of the drive with a latency target, by scenario."""
    names = latency_scenarios()
    for place, control in enumerate(("alone", *CONTROLS)):
        for key, alpha in (("latency_mean_ms", 1.0), ("latency_p99_ms", 0.4)):
            heights = [
                median(run["drives"]["victim"][key] for run in results(f"latency-{name}")[control])
                for name in names
            ]
            at = [i + 0.16 * (place - 2) for i in range(len(names))]
            label = control if alpha == 1.0 else None
            look = {"color": f"tab:{COLOURS[control]}", "alpha": alpha, "label": label}
            axes.bar(at, heights, 0.16, log=True, **look)
    axes.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names])
    axes.set(title="Latency beside 15 others (pale: 99th percentile)", ylabel="ms")
    axes.legend(loc="upper center")


def latency_scenarios() -> list[str]:
    """Return the names of those that have been measured, without "latency-"."""
    files = (BENCHMARKS / "results").glob("shares-latency-*.json")
    return sorted(file.stem.removeprefix("shares-latency-") for file in files)


def tables() -> Iterator[str]:
    """Yield lines of Markdown."""
    found = results("weights")
    names = list(found["iokeel"][0]["drives"])
    wanted = [int(name.removeprefix("w")) for name in names]
    due = (f"{weight / sum(wanted):.1%} is due" for weight in wanted)
    yield from ("Weights, the share of each drive:", "")
    yield from heading("control", *due, "total, over no control")
    for control, runs in found.items():
        shares = (percents([run["drives"][n]["share"] for run in runs], 1) for n in names)
        yield row(NAMES[control], *shares, percents([run["total_ratio"] for run in runs]))
    yield from ("", "A reservation of 30 %:", "")
    yield from heading("control", "its lowest second, over it", "total, over no control")
    for control, runs in results("reservation").items():
        worst = [run["drives"]["victim"]["worst_second_of_reservation"] for run in runs]
        totals = [run["total_ratio"] for run in runs]
        yield row(NAMES[control], percents(worst), percents(totals))
    yield from ("", "A latency target:", "")
    yield from heading(
        "disk, beside", "control", "mean, ms", "99th percentile, ms", "total, over no control"
    )
    for name in latency_scenarios():
        yield from latency_rows(name)


def latency_rows(name: str) -> Iterator[str]:
    """Yield the rows of a scenario with a latency target."""
    path = BENCHMARKS / f"scenarios/shares-latency-{name}.toml"
    scenario = read_scenario(path, None)
    found = results(f"latency-{name}")
    disk = f"{DISKS[scenario.device]}, times x {scenario.slowdown:g}, {name.partition('-')[2]}"
    keys = ("latency_mean_ms", "latency_p99_ms")
    alone = {key: [run["drives"]["victim"][key] for run in found["alone"]] for key in keys}
    yield row(disk, "alone", *(spread(values) for values in alone.values()), "")
    for control in (c for c in found if c != "alone"):
        cells = []
        for key in keys:
            values = [run["drives"]["victim"][key] for run in found[control]]
            cells.append(f"{spread(values)}: {short(median(values) / median(alone[key]), 2)} x")
        totals = [100 * run["total_ratio"] for run in found[control]]
        yield row("", NAMES.get(control, control), *cells, f"{spread(totals)} %")


def heading(*cells: str) -> Iterator[str]:
    yield row(*cells)
    yield "|" + "---|" * len(cells)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def percents(values: Sequence[float], digits: int = 0) -> str:
    return ", ".join(f"{100 * value:.{digits}f}" for value in values) + " %"


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the most where they differ."""
    low, middle, high = (short(value) for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def short(value: float, digits: int = 3) -> str:
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def main() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.5))
    for draw, where in zip((weights, reservation, latency), axes, strict=True):
        draw(where)
    figure.tight_layout()
    figure.savefig(DOCS / "shares.png", dpi=90)
    put_into(DOCS / "measurements.md", "\n".join(tables()) + "\n")


if __name__ == "__main__":
    main()
