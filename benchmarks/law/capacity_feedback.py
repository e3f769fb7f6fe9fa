"""How stable are the capacity's feedback and the headroom, and what does each constant cost?

    python -m benchmarks.law.capacity_feedback [--only CONSTANT]

Runs the agent's law on a simulated host (agent/testing/sim), once for each value of each constant
of SWEEPS with the others as they are: on disks with a soft and with a sharp knee, with stock and
with exact throttles. capacity_figures.py defines the figures.

Writes results/capacity-feedback.json and docs/design/capacity-feedback.png, and prints a table.
With --only, writes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import result_file
from benchmarks.law.capacity_figures import Figures, by_setup, feedback_figures, headroom_figures
from benchmarks.law.capacity_plot import plot, series
from benchmarks.law.constants import Sweep

RESULT = result_file.RESULTS / "capacity-feedback.json"
PLOT = result_file.BENCHMARKS.parent / "docs/design/capacity-feedback.png"
CAPACITY = "iokeel.core.correct.capacity"
SWEEPS = (
    Sweep(CAPACITY, "POWER", (0.05, 0.1, 0.2, 0.5)),
    Sweep(CAPACITY, "STEP", (0.7, 0.8, 0.9, 0.95)),
    Sweep(CAPACITY, "SLACK", (1.0, 1.05, 1.2, 10.0)),
    Sweep(CAPACITY, "SEEN_MOST", (1.4, 2.0, 4.0)),
    Sweep(CAPACITY, "UP_RATIO", (0.02, 0.04, 0.08, 0.16, 0.32)),
    Sweep(CAPACITY, "CALM_RATIO", (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)),
    Sweep(CAPACITY, "CREEP_RATIO", (0.0, 0.01, 0.03, 0.1)),
    Sweep(CAPACITY, "CREEP_TO", (0.9, 1.0)),
)
HEADROOM_SWEEPS = (
    Sweep(CAPACITY, "FIRST_ROOM_RATIO", (0.7, 0.8, 0.85, 0.9, 1.0)),
    Sweep(CAPACITY, "UP_RATIO", (0.02, 0.04, 0.08, 0.16)),
    Sweep(CAPACITY, "CALM_RATIO", (0.5, 0.6, 0.7, 0.8, 0.9)),
    Sweep(CAPACITY, "POWER", (0.05, 0.1, 0.2, 0.5)),
)


@dataclass(frozen=True)
class Row:
    """Figures at a value of a constant, by throttle and knee. usual: the value is its own."""

    constant: str
    value: float
    usual: bool
    setups: dict[str, Figures]

    def values(self) -> dict[str, object]:
        """Return it as the result file has it."""
        head = {"constant": self.constant, "value": self.value, "usual": self.usual}
        return {**head, **self.setups}

    def __str__(self) -> str:
        """Each figure for stock, soft; stock, sharp; exact, soft; exact, sharp."""
        setups = list(self.setups.values())
        cells = "  ".join(
            f"{figure} " + " ".join(f"{setup[figure]:.3g}" for setup in setups)
            for figure in setups[0]
        )
        return f"{self.constant:14} {self.value:5g}{'*' if self.usual else '':1} {cells}"


def swept(sweeps: Sequence[Sweep], figures: Callable[[float, bool], Figures]) -> list[Row]:
    """Return the figures for each value of each constant."""
    rows = []
    for sweep in sweeps:
        usual = sweep.chosen
        for value in sweep.all_values():
            with sweep.at(value):
                rows.append(Row(sweep.name, value, value == usual, by_setup(figures)))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Try the constants."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    names = sorted({sweep.name for sweep in (*SWEEPS, *HEADROOM_SWEEPS)})
    parser.add_argument("--only", choices=names, help="one constant, and no files")
    only = parser.parse_args().only
    feedback, headroom = (
        swept([sweep for sweep in sweeps if only in (None, sweep.name)], figures)
        for sweeps, figures in ((SWEEPS, feedback_figures), (HEADROOM_SWEEPS, headroom_figures))
    )
    if only:
        return
    found = series()
    plot(found, PLOT)
    result = {
        "constants": {sweep.name: sweep.chosen for sweep in (*SWEEPS, *HEADROOM_SWEEPS)},
        "ratio": [row.values() for row in feedback],
        "room": [row.values() for row in headroom],
        "series": found,
    }
    result_file.write(RESULT, result)


if __name__ == "__main__":
    main()
