"""A scenario: how many synthetic VMs an agent has, their monitors, and their configuration."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLASSES = ("bronze", "silver", "gold")


@dataclass(frozen=True)
class Scenario:
    """VMs, drives a VM, how many further VMs hang, and whether QEMUs have cost curves."""

    vms: int
    drives_a_vm: int
    hung: int = 0
    exact: bool = False

    @classmethod
    def of(cls, text: str) -> Scenario:
        """Return a scenario written as 100x1, 100x1+5 with 5 VMs that hang, or 100x1/exact."""
        size, _, kind = text.partition("/")
        size, _, hung = size.partition("+")
        vms, _, drives = size.partition("x")
        return cls(int(vms), int(drives), int(hung or 0), kind == "exact")

    def __str__(self) -> str:
        hung = f"+{self.hung}" if self.hung else ""
        return f"{self.vms}x{self.drives_a_vm}{hung}{'/exact' if self.exact else ''}"

    @property
    def drives(self) -> int:
        """The drives whose VMs answer."""
        return self.vms * self.drives_a_vm


@contextlib.contextmanager
def synthetic_vms(folder: Path, scenario: Scenario, events: float = 0.1) -> Iterator[None]:
    """Serve the monitors of a scenario's VMs as sockets in a folder.

    events: that each VM sends, a minute.
    """
    vms = scenario.vms + scenario.hung
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.agent_cost.synthetic.serve", str(folder)),
            *(f"--vms={vms}", f"--drives={scenario.drives_a_vm}", f"--hung={scenario.hung}"),
            *(f"--events={events}", f"--processes={1 if vms < 500 else 2}"),
            *["--exact"] * scenario.exact,
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            sys.exit("the synthetic VMs did not start")
        yield
    finally:
        process.terminate()
        process.wait()


def vm_tables(sockets: Path) -> str:
    """Return the tables [[vm]] of an agent's configuration for all sockets in a folder."""
    return "".join(
        f'[[vm]]\nname = "{path.stem}"\nsocket = "{path}"\nclass = "{CLASSES[number % 3]}"\n'
        for number, path in enumerate(sorted(sockets.glob("*.qmp")))
    )
