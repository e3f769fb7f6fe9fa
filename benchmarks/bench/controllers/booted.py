"""Controllers of cgroup v2: io.latency and io.cost, in a host that boots in a guest."""

from __future__ import annotations

from benchmarks.bench.controllers.controller import InKernel
from benchmarks.bench.running.booted_host import CGROUPS, device_number, write
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario

#: Reads and writes in sequence, in MB/s, without a slowdown: of results/disks.json.
_MBPS = {"hdd-hts72755": (125, 125), "sata-ssd-px-256m5s": (525, 390), "nvme-970-pro": (3500, 2300)}


class Booted(InKernel):
    """A controller of cgroup v2."""

    needs = "a scenario whose host boots with cgroup v2 (booted = true)"

    def __init__(self, name: str) -> None:
        super().__init__(name, name)

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: the host."""
        return None if scenario.booted else f"it takes {self.needs}"


class IoLatency(Booted):
    """io.latency, with the drives' latency targets."""

    def __init__(self) -> None:
        super().__init__("io.latency")

    def begin(self, stage: Stage) -> None:
        """Set the target of each drive that has one."""
        assert stage.booted is not None
        number = device_number(stage.booted)
        targets = {
            place.group: round(1000 * place.drive.policy["latency_target_ms"])
            for place in stage.places
            if place.drive.has_target
        }
        write(
            stage.booted,
            {group / "io.latency": f"{number} target={us}" for group, us in targets.items()},
        )


class IoCost(Booted):
    """io.cost, with the drives' weights, a model of the disk and its latency target.

    The device's rate is bounded to 50 to 150 % of the model's, as in the kernel's own example
    (Documentation/admin-guide/cgroup-v2.rst): with a lower bound, a target that can't be met by any
    rate stops the disk. The kernel's own default goes from 1 % to 10,000 %, though: with that,
    io.cost could give up more throughput for the target than it may here.
    """

    rule = 2  # the first one had 100 % as the upper bound

    def __init__(self) -> None:
        super().__init__("io.cost")

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: the host, or what a real disk does in sequence."""
        if scenario.is_real:
            return "its model is only known of the simulated disks"
        return super().unfit(scenario)

    def begin(self, stage: Stage) -> None:
        """Set the model, the target and the weights."""
        assert stage.booted is not None
        scenario = stage.scenario
        number, target = device_number(stage.booted), round(1000 * scenario.latency_target_ms)
        model = []
        curves = (scenario.model.read, scenario.model.write)
        for way, mbps, curve in zip("rw", _MBPS[scenario.device], curves, strict=True):
            bps = round(1e6 * mbps / scenario.slowdown)
            random = round(scenario.capacity / curve.cost(4096))
            in_sequence = bps // 4096 if scenario.device.startswith("hdd") else random
            model.append(f"{way}bps={bps} {way}seqiops={in_sequence} {way}randiops={random}")
        targets = f"rpct=95.00 rlat={target} wpct=95.00 wlat={target}"
        write(
            stage.booted,
            {
                CGROUPS / "io.cost.model": f"{number} ctrl=user model=linear {' '.join(model)}",
                CGROUPS / "io.cost.qos": (
                    f"{number} enable=1 ctrl=user {targets} min=50.00 max=150.00"
                ),
                **{place.group / "io.weight": place.drive.weight for place in stage.places},
            },
        )
