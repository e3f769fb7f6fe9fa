"""The output of `iokeel calibrate --json`, and the content of results/calibrate.json."""

from __future__ import annotations

from dataclasses import dataclass, field

#: (size in bytes, cost)
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Steadiness:
    """How a rate is spread over a run. modes: of its two sets; None if it forms no two."""

    spread_ratio: float
    modes: tuple[float, float] | None


@dataclass(frozen=True)
class Series:
    """Requests of one kind, order and size, at saturation."""

    kind: str
    order: str
    size_bytes: int
    depth: int
    cost: float
    raw_iops: float
    steadiness: Steadiness


@dataclass(frozen=True)
class Found:
    """A calibration, as far as it is used here. latency_at_load_ms: by kind of request."""

    capacity: int
    latency_target_ms: float
    latency_at_load_ms: dict[str, float]
    curve_read: Points
    curve_write: Points | None
    warnings: list[str]
    series: list[Series]
    fio: str


@dataclass(frozen=True)
class Mix:
    """Reads of 4 KiB and of `size_bytes` at once.

    small_ratio: the 4 KiB reads' part of the cost. strain: the latency over what the law allows.
    """

    size_bytes: int
    small_ratio: float
    latency_ms: float
    strain: float


@dataclass(frozen=True)
class Size:
    """The rate and the cost of requests of a size, beside the rules'."""

    kind: str
    size_bytes: int
    depth: int
    cost: float
    raw_iops: float
    by_rules_iops: float
    rate_error_ratio: float
    deepest_by_rules_iops: float
    curve_error_ratio: float
    steady: bool


@dataclass(frozen=True)
class Latency:
    """The latency at 80 % of saturation: calibrate's, and by the rules."""

    reckoned_ms: float
    by_rules_ms: float


@dataclass(frozen=True)
class Compared:
    """One calibration of a disk beside its rules. latencies: by kind of request."""

    large_strain: float | None
    capacity: int
    by_rules_capacity: float
    latency_target_ms: float
    curve_read: Points
    curve_write: Points | None
    warnings: list[str]
    sizes: list[Size]
    latencies: dict[str, Latency]


@dataclass(frozen=True)
class Disk:
    """All calibrations of a disk, and the figures of the one whose capacity is the median."""

    slowdown: float
    capacity: int
    latency_target_ms: float
    curve_read: Points
    curve_write: Points | None
    repeats: list[Compared]

    @classmethod
    def of(cls, slowdown: float, repeats: list[Compared]) -> Disk:
        """Return a disk's calibrations."""
        middle = sorted(repeats, key=lambda one: one.capacity)[len(repeats) // 2]
        target_ms, read, write = middle.latency_target_ms, middle.curve_read, middle.curve_write
        return cls(slowdown, middle.capacity, target_ms, read, write, repeats)


@dataclass
class Result:
    """The result file. fio: its version; None before the first calibration."""

    devices: dict[str, Disk] = field(default_factory=dict)
    kernel: str = ""
    seconds: float = 0.0
    mixes: dict[str, list[Mix]] = field(default_factory=dict)
    fio: str | None = None
