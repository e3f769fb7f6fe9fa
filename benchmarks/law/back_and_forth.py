"""What does a drive get that goes back and forth between two request sizes?

    python -m benchmarks.law.back_and_forth

Runs the agent's law on a simulated throttle (agent/testing/sim) that computes as stock QEMU's does,
for each of DWELLS_S, with its ticks at ten different moments after the shifts. Writes
results/back-and-forth.json and prints a table, of rates over the limit:

- mean, least, most: of all seconds after the first ten;
- within: the part of them that is within 5 % of the limit.

Before that, it prints the most that limits which never change could give both sizes: the largest
least rate of the two over all iops-sizes, bps and iops limits under which no traffic costs more
than 1 + OVERSHOOT_RATIO.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from benchmarks import result_file
from iokeel.core.enforce.envelope import OVERSHOOT_RATIO, gains_by_price
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.policy import DrivePolicy
from testing.sim.drive import Phase, Stream, run

RESULT = result_file.RESULTS / "back-and-forth.json"
LIMIT = 10_000  # normalized iops
SIZES = (8192, 65536)  # bytes
DWELLS_S = (1.0, 2.0, 3.0, 5.0, 10.0)
BEGIN_S, END_S = 10, 60


@dataclass(frozen=True)
class Row:
    """A drive that keeps to each size for dwell_s, and its figures."""

    dwell_s: float
    mean_ratio: float
    least_ratio: float
    most_ratio: float
    within_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.dwell_s:>7g} {self.mean_ratio:>6.2f} {self.least_ratio:>6.2f}"
            f" {self.most_ratio:>6.2f} {self.within_ratio:>7.0%}"
        )


def row(dwell_s: float) -> Row:
    """Run a drive that keeps to each size for dwell_s."""
    streams = [(Stream.of(size),) for size in SIZES]
    phases = [Phase(dwell_s, streams[i % 2]) for i in range(round(END_S / dwell_s))]
    rates: list[float] = []
    for i in range(10):
        did = run(phases, DrivePolicy(limit=LIMIT), tick_offset_s=0.05 + 0.1 * i, seed=i)
        rates += [did.rate(second, second + 1) / LIMIT for second in range(BEGIN_S, END_S)]
    within = sum(abs(rate - 1) <= 0.05 for rate in rates) / len(rates)
    return Row(dwell_s, mean(rates), min(rates), max(rates), within)


def most_for_both() -> float:
    """Return the most that limits which never change could give both sizes, over the limit."""
    curve = DEFAULT_MODEL.read
    bps_of = [size / curve.cost(size) for size in SIZES]  # that cost 1 a second
    most = 0.0
    for iops_size in (round(4096 * 2 ** (i / 16)) for i in range(16 * 9)):
        prices = gains_by_price((curve,), iops_size)
        for step in range(100):
            bps = min(bps_of) * (1 + step / 20)
            # The largest S under which no traffic costs more (envelope.py).
            iops = max((1 + OVERSHOOT_RATIO - price * bps) / gain for price, _, gain in prices)
            passed = [
                min(iops / max(1.0, size / iops_size), bps / size) * curve.cost(size)
                for size in SIZES
            ]
            most = max(most, min(passed))
    return most


def main() -> None:
    """Run all of DWELLS_S."""
    unchanged = most_for_both()
    print(f"most for both, unchanged: {unchanged:.2f}")
    print("dwell s   mean  least   most  within")
    rows = []
    for dwell_s in DWELLS_S:
        rows.append(row(dwell_s))
        print(rows[-1], flush=True)
    result_file.write(
        RESULT, {"limit": LIMIT, "sizes": SIZES, "most_for_both": unchanged, "rows": rows}
    )


if __name__ == "__main__":
    main()
