"""A scenario: how many synthetic VMs an agent has, their monitors, and their configuration."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLASSES = ("bronze", "silver", "gold")


@dataclass(frozen=True)
class Scenario:
    """VMs, drives a VM, how many further VMs hang, and whether QEMUs have cost curves.

    idle: how many further VMs do nothing; each VM then is a process of its own, as a QEMU is, so
    that the kernel's counters tell which of them run. None if all VMs share some processes.
    """

    vms: int
    drives_a_vm: int
    hung: int = 0
    exact: bool = False
    idle: int | None = None

    @classmethod
    def of(cls, text: str) -> Scenario:
        """Return a scenario as it is written.

        100x1 is VMs x drives, 100x1+5 has 5 VMs that hang, 50x1~950 has 950 that are idle, and
        100x1/exact has cost curves.
        """
        size, _, kind = text.partition("/")
        size, _, hung = size.partition("+")
        size, _, idle = size.partition("~")
        vms, _, drives = size.partition("x")
        some = int(idle) if idle else None
        return cls(int(vms), int(drives), int(hung or 0), kind == "exact", some)

    def __str__(self) -> str:
        hung = f"+{self.hung}" if self.hung else ""
        idle = "" if self.idle is None else f"~{self.idle}"
        return f"{self.vms}x{self.drives_a_vm}{idle}{hung}{'/exact' if self.exact else ''}"

    @property
    def drives(self) -> int:
        """The drives whose VMs answer."""
        return (self.vms + (self.idle or 0)) * self.drives_a_vm


@contextlib.contextmanager
def synthetic_vms(folder: Path, scenario: Scenario, events: float = 0.1) -> Iterator[None]:
    """Serve the monitors of a scenario's VMs as sockets in a folder.

    events: that each VM sends, a minute.
    """
    idle, apart = scenario.idle or 0, scenario.idle is not None
    vms = scenario.vms + scenario.hung + idle
    python = Path(sys.executable)
    if apart:  # a process counts as a QEMU by its name
        python = folder.with_name("qemu-synthetic")
        python.symlink_to(sys.executable)
    processes = vms if apart else 1 if vms < 500 else 2
    process = subprocess.Popen(
        [
            *(str(python), "-m", "benchmarks.agent_cost.synthetic.serve", str(folder)),
            *(f"--vms={vms}", f"--drives={scenario.drives_a_vm}", f"--hung={scenario.hung}"),
            *(f"--events={events}", f"--processes={processes}", f"--idle={idle}"),
            *["--exact"] * scenario.exact,
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
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
