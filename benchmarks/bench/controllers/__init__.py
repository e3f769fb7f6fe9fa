"""Controllers: the ways to hold drives that are compared, by name.

Each is a class in a module here and a line in this table.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.bench.controllers.average_size import AverageSize
from benchmarks.bench.controllers.booted import IoCost, IoLatency
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.controllers.iokeel import Iokeel, OverBfq, Paced
from benchmarks.bench.controllers.kernel import Bfq, IoMax
from benchmarks.bench.controllers.static import Caps, Nothing, StaticBps, StaticIops, TunedSize
from benchmarks.bench.errors import BenchError
from iokeel.words.quoting import did_you_mean

CONTROLLERS: dict[str, Controller] = {
    each.name: each
    for each in (
        Nothing(),
        StaticIops(),
        StaticBps(),
        TunedSize(),
        Caps("iops-50", "iops-50"),
        Caps("bps-512KiB", "bps-512KiB"),
        Caps("bps-512KiB+iops-50", "bps-512KiB+iops-50"),
        Caps("bps-128KiB+iops-10", "bps-128KiB+iops-10"),
        Caps("io-throttle-caps", "caps of io-throttle"),
        AverageSize(),
        IoMax(),
        Bfq(),
        IoLatency(),
        IoCost(),
        Iokeel("iokeel-retune", "iokeel, stock QEMU", exact=False),
        Iokeel("iokeel-exact", "iokeel, patched QEMU", exact=True),
        OverBfq(),
        Paced("paced", "paced at 80 %", 0.8),
        Paced("paced-no-syncs", "paced at 80 %, no syncs", 0.8, syncs=False),
        Paced("paced-65", "paced at 65 %", 0.65),
        Paced("paced-50", "paced at 50 %", 0.5),
        Paced("paced-35", "paced at 35 %", 0.35),
    )
}
#: Those that run unless they are named: paced ones show what limits can do, and control nothing.
USUAL = tuple(name for name in CONTROLLERS if not name.startswith("paced"))
STOCK_QEMU, PATCHED_QEMU = ("iokeel-retune",), ("iokeel-exact", "iokeel-bfq")
OURS = (*STOCK_QEMU, *PATCHED_QEMU)
NONE = "none"
#: Not a controller: drives that run alone, without any control.
ALONE = "alone"


def title(name: str) -> str:
    """Return a controller's name for readers."""
    return CONTROLLERS[name].title if name in CONTROLLERS else name


def chosen(names: Iterable[str]) -> list[Controller]:
    """Return the controllers of these names, "none" first, because others are measured by it.

    Raises BenchError for a name that there isn't.
    """
    wanted = [NONE, *(name for name in names if name != NONE)]
    for name in wanted:
        if name not in CONTROLLERS:
            mend = did_you_mean(name, CONTROLLERS)
            raise BenchError(f"controller {name}", "there is none of this name", mend)
    return [CONTROLLERS[name] for name in dict.fromkeys(wanted)]
