"""The kernel's own controllers that this host has: limits of a cgroup, and BFQ's weights.

The limits are those of io.max. On a host whose cgroups are of version 1 they are blkio.throttle's,
which the same code of the kernel holds. Linux 6.18 charges the bytes of a request about twice if it
has to split it, as it does requests of 1 MiB on a loop device: those get half of their limit.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench.controllers.controller import InKernel
from benchmarks.bench.controllers.static import bytes_, requests
from benchmarks.bench.running.booted_host import write
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario
from testing.lab.blkio import ROOT


class IoMax(InKernel):
    """Limits on requests and on bytes of a VM's cgroup, reads and writes apart."""

    def __init__(self) -> None:
        super().__init__("io.max", "cgroup io.max")

    def lacks(self, scenario: Scenario) -> str | None:
        """Return what is missing: blkio.throttle."""
        return no_throttle()

    def begin(self, stage: Stage) -> None:
        """Bound each VM to what its drives are owed: as 4K reads, and as reads of 1 MiB."""
        model = stage.scenario.model
        for group, owed in owed_by_group(stage).items():
            iops, bps = requests(owed, model), bytes_(owed, model)
            for way in ("read", "write"):
                bound(group, stage.device_number, f"{way}_iops", iops)
                bound(group, stage.device_number, f"{way}_bps", bps)


class Bfq(InKernel):
    """BFQ on the disk, with the drives' weights; a reservation gets the one that is as much."""

    def __init__(self) -> None:
        super().__init__("bfq", "BFQ")

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: a limit."""
        return None if scenario.tenant_limit is None else "it has weights only, and no limits"

    def lacks(self, scenario: Scenario) -> str | None:
        """Return what is missing: BFQ."""
        return self.unfit(scenario) or (None if scenario.booted else no_bfq())

    def begin(self, stage: Stage) -> None:
        """Give the disk the scheduler, and each VM its weight."""
        stage.set_scheduler("bfq")
        fair = stage.scenario.fair_weight
        weights = {p.group: max(1, min(1000, round(fair(p.drive)))) for p in stage.places}
        if stage.booted is not None:
            files = {group / "io.bfq.weight": weight for group, weight in weights.items()}
            write(stage.booted, files)
            return
        for group, weight in weights.items():
            bfq_weight(group).write_text(str(weight))


def no_throttle() -> str | None:
    """Return why there is no blkio.throttle here; None if there is one."""
    has = (ROOT / "blkio.throttle.io_serviced").exists()
    return None if has else f"this kernel's cgroups have no blkio controller at {ROOT}"


def no_bfq() -> str | None:
    """Return why there is no BFQ with weights here; None if there is one."""
    has = (ROOT / "blkio.bfq.io_serviced").exists()
    return None if has else "this kernel has no BFQ with cgroups (CONFIG_BFQ_GROUP_IOSCHED)"


def bfq_weight(group: Path) -> Path:
    """Return the file of a group's weight. It is there while BFQ schedules a device."""
    return group / "blkio.bfq.weight"


def owed_by_group(stage: Stage) -> dict[Path, float]:
    """Return what the drives of each cgroup are owed together."""
    owed: dict[Path, float] = {}
    for place in stage.places:
        owed[place.group] = owed.get(place.group, 0.0) + stage.scenario.owed(place.drive)
    return owed


def bound(group: Path, device: str, what: str, value: int) -> None:
    """Set one of a group's limits on a device. what: such as read_iops. 0: unlimited."""
    (group / f"blkio.throttle.{what}_device").write_text(f"{device} {value}")
