"""Do four backlogged members share by weight, whatever their requests?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.qemu.curves import Limits, limits_of
from benchmarks.qemu.daemon import BOTH, Daemons, daemon
from benchmarks.qemu.load import job, run_logged
from benchmarks.qemu.rows import Weights

WEIGHTS = (1000, 800, 600, 400)
#: IOPS of four groups with these weights, as published for two kernel controllers.
PUBLISHED_IOPS = {
    "tpps, run 1": (30220, 28261, 26333, 20152),
    "tpps, run 2": (17292, 15221, 12080, 7995),
    "cfq": (16478, 13015, 9300, 5806),
}
MIXES = {
    "4K 16K 64K 256K reads": (
        ("randread", "4k"), ("randread", "16k"), ("randread", "64k"), ("randread", "256k")
    ),
    "256K 64K 16K 4K reads": (
        ("randread", "256k"), ("randread", "64k"), ("randread", "16k"), ("randread", "4k")
    ),
    "4K reads, 1M writes, 64K reads, 8K writes": (
        ("randread", "4k"), ("randwrite", "1m"), ("randread", "64k"), ("randwrite", "8k")
    ),
}  # fmt: skip


def weights(daemons: Daemons) -> Iterator[Weights]:
    """Yield each QEMU's shares in each mix; stock QEMU has no weights."""
    seconds = 6 if daemons.quick else 15
    stock: tuple[Limits, Sequence[int | None]] = ({"iops-total": 2000}, [None] * len(WEIGHTS))
    for which in BOTH:
        limits, wanted = stock if which == "stock" else (limits_of(5000), WEIGHTS)
        for name, mix in MIXES.items():
            with daemon(daemons.of(which), limits, wanted) as target:
                jobs = [job(target, seconds, rw, {"bs": bs}, i) for i, (rw, bs) in enumerate(mix)]
                passed = run_logged(target, jobs)
            # Only while all four are at it.
            counts = (passed.at_ms >= 1000) & (passed.at_ms < (seconds - 1) * 1000)
            costs = passed.prices()
            done = [float(costs[counts & (passed.job == i)].sum()) for i in range(len(mix))]
            shares = shares_of(done)
            yield Weights(which, name, shares, errors_of(shares))


def shares_of(amounts: Sequence[float]) -> list[float]:
    """Return each amount's part of their sum."""
    return [amount / sum(amounts) for amount in amounts]


def errors_of(shares: Sequence[float]) -> list[float]:
    """Return by how much of its due by WEIGHTS each share is off."""
    due = shares_of(WEIGHTS)
    return [share / wanted - 1 for share, wanted in zip(shares, due, strict=True)]
