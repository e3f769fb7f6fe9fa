"""The measurements of the simulated disks, as results/disks.json holds them.

Rates and times are the disk's own: its slowdown is taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.result_file import Machine
from benchmarks.spread import Spread


@dataclass(frozen=True)
class Figure:
    """A rate or time beside the published one; None: none is published."""

    device: str
    figure: str
    unit: str
    slowdown: float
    published: float | None
    median: float
    least: float
    most: float
    values: list[float]


@dataclass(frozen=True)
class Path:
    """A way to the disk: the time it adds to a request, and the requests a second it carries."""

    way: str
    added_us: Spread
    carried_iops: Spread


@dataclass(frozen=True)
class VictimRun:
    """A reader's requests in one run, and the rate of all others."""

    requests: int
    mean_ms: float
    max_ms: float
    others_mb_s: float


@dataclass(frozen=True)
class Victim:
    """A reader beside others. changed: parameters that differ from the device's.

    others: readers or writers; None: alone. how: processes or drives.
    """

    device: str
    changed: dict[str, int]
    others: str | None
    how: str
    scheduler: str
    slowdown: float
    published_mean_ms: float | None
    mean_ms: Spread
    others_mb_s: Spread
    runs: list[VictimRun]


@dataclass
class Results:
    """The rows of each measurement; empty until it has run."""

    figures: list[Figure] = field(default_factory=list)
    path: list[Path] = field(default_factory=list)
    victims: list[Victim] = field(default_factory=list)


@dataclass
class Result:
    """A result file."""

    results: Results
    scenario: str
    when: str
    host: Machine
    kernel: str
    revision: str | None
    programs: dict[str, str]
    load_before: tuple[float, float, float]
    repeats: int
