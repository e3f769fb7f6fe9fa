"""The processor time that this machine's own hypervisor takes away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Processors:
    """Processors' time since the boot, in clock ticks (proc_stat(5)).

    stolen: by this machine's own hypervisor. idle: without work. all: the whole.
    """

    stolen: int
    idle: int
    all: int

    @classmethod
    def now(cls) -> Self:
        """Read them."""
        numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return cls(numbers[7], numbers[3] + numbers[4], sum(numbers))

    def stolen_ratio(self, before: Self) -> float:
        """Return the part that was stolen since then."""
        return (self.stolen - before.stolen) / max(1, self.all - before.all)

    def busy_ratio(self, before: Self) -> float:
        """Return the part in which they had work since then."""
        return 1 - (self.idle - before.idle) / max(1, self.all - before.all)
