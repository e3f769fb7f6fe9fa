"""Do four backlogged members share equally by cost, whatever their requests?"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.qemu.curves import Limits, limits_of
from benchmarks.qemu.daemon import BOTH, Daemons, daemon
from benchmarks.qemu.load import job, run_logged
from benchmarks.qemu.rows import Shares

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


def shares(daemons: Daemons) -> Iterator[Shares]:
    """Yield each QEMU's shares in each mix."""
    seconds = 6 if daemons.quick else 15
    for which in BOTH:
        limits: Limits = {"iops-total": 2000} if which == "stock" else limits_of(5000)
        for name, mix in MIXES.items():
            with daemon(daemons.of(which), limits, len(mix)) as target:
                jobs = [job(target, seconds, rw, {"bs": bs}, i) for i, (rw, bs) in enumerate(mix)]
                passed = run_logged(target, jobs)
            # Only while all four are at it.
            counts = (passed.at_ms >= 1000) & (passed.at_ms < (seconds - 1) * 1000)
            costs = passed.prices()
            done = [float(costs[counts & (passed.job == i)].sum()) for i in range(len(mix))]
            parts = [cost / sum(done) for cost in done]
            yield Shares(which, name, parts, [part * len(mix) - 1 for part in parts])
