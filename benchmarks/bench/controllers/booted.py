"""Controllers of cgroup v2 that this host's kernel doesn't offer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.bench.controllers.controller import Controller, Held
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario

_CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
_KERNEL = {
    "io.latency": "a kernel with CONFIG_BLK_CGROUP_IOLATENCY, which no Debian kernel has",
    "io.cost": "a kernel with CONFIG_BLK_CGROUP_IOCOST, such as Debian's 6.1",
}


class Booted(Controller):
    """io.latency or io.cost. They take a booted host, which this runner doesn't have yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name, name)
        self.needs = f"a booted host with cgroup v2 and {_KERNEL[name]}"

    def lacks(self, scenario: Scenario) -> str | None:
        """Return which host and kernel it takes."""
        try:
            offered = "io" in _CONTROLLERS.read_text().split()
        except OSError:
            offered = False
        host = "this host offers it" if offered else "this host's cgroup v2 has no io controller"
        return f"it takes {self.needs}; {host}"

    def hold(self, stage: Stage) -> AbstractContextManager[Held]:
        """Never run: it always lacks something."""
        raise NotImplementedError
