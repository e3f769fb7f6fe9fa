"""Draw results/shares-*.json as docs/shares.png: weights, a reservation, and latencies."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
CONTROLS = ("none", "static", "bfq", "iokeel")
COLOURS = dict(zip(("alone", *CONTROLS), ("gray", "red", "orange", "green", "blue"), strict=True))


def results(name: str) -> dict[str, Any]:
    """Return a scenario's runs by control."""
    text = (HERE / f"results/shares-{name}.json").read_text()
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
    files = sorted((HERE / "results").glob("shares-latency-*.json"))
    names = [file.stem.removeprefix("shares-latency-") for file in files]
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
    axes.legend()


def main() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.5))
    for draw, where in zip((weights, reservation, latency), axes, strict=True):
        draw(where)
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs/shares.png", dpi=90)


if __name__ == "__main__":
    main()
