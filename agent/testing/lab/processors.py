"""The processor time that this machine's own hypervisor takes away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Processors:
    """Processors' time since the boot, in clock ticks: what was stolen, and all (proc_stat(5))."""

    stolen: int
    all: int

    @classmethod
    def now(cls) -> Self:
        """Read them."""
        numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return cls(numbers[7], sum(numbers))

    def stolen_ratio(self, before: Self) -> float:
        """Return the part that was stolen since then."""
        return (self.stolen - before.stolen) / max(1, self.all - before.all)
