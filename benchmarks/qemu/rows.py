"""The measurements of the QEMU patches, as results/qemu.json holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.qemu.daemon import Which
from benchmarks.result_file import Machine


@dataclass(frozen=True)
class Exactness:
    """A workload at a limit. rate_min, rate_max: of the full seconds, over the limit."""

    limit: int
    workload: str
    requests: int
    requests_counted: int
    cost_expected: float
    cost_charged: float
    cost_error: float
    rate_min: float
    rate_max: float


@dataclass(frozen=True)
class Shift:
    """A shift from 4K to 1M. seconds: each one's rate over the limit."""

    qemu: Which
    limit: int
    seconds: list[float]
    worst: float


@dataclass(frozen=True)
class Idleness:
    """after_idleness: first seconds, over the limit; while_late: the mean rate over the limit."""

    qemu: Which
    limit: int
    idle_credit_ms: int | None
    after_idleness: list[float]
    while_late: float


@dataclass(frozen=True)
class Retune:
    """Limits that were rewritten `sets` times. ratio: the cost passed, of the mean limit."""

    qemu: Which
    limits: str
    bs: str
    sets: int
    passed: float
    ratio: float


@dataclass(frozen=True)
class Shares:
    """Each member's share of the cost. errors: by how much of an equal one it is off."""

    qemu: Which
    mix: str
    shares: list[float]
    errors: list[float]


@dataclass(frozen=True)
class Ratio:
    """A median ratio, and the range that holds it with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Overhead:
    """Requests that never wait, in many short runs.

    cpu_us: the daemon's CPU time a request. ratio, cpu_ratio: to stock in the same turn.
    undisturbed: IOPS over stock's, of the fastest tenth of runs.
    """

    depth: int
    qemu: str
    iops: list[float]
    cpu_us: list[float]
    median: float
    cpu_us_median: float
    ratio: Ratio
    cpu_ratio: Ratio
    undisturbed: float


@dataclass(frozen=True)
class Threads:
    """A group with a member in each of several iothreads.

    first: the limit before `limit`. cpu_us: CPU time a request. of_stock: the ratio of medians.
    """

    threads: int
    limit: int
    first: int
    qemu: Which
    iops: list[float]
    cpu_us: list[float]
    median: float
    cpu_us_median: float
    of_stock: float


@dataclass(frozen=True)
class Accounting:
    """The time that accounting for a request takes."""

    case: str
    ns: list[float]
    median: float


@dataclass
class Results:
    """The rows of each measurement; empty until it has run."""

    exactness: list[Exactness] = field(default_factory=list)
    shift: list[Shift] = field(default_factory=list)
    idleness: list[Idleness] = field(default_factory=list)
    retune: list[Retune] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)
    threads: list[Threads] = field(default_factory=list)
    accounting: list[Accounting] = field(default_factory=list)


@dataclass(frozen=True)
class Versions:
    """What the two daemons say of themselves."""

    stock: str
    patched: str


@dataclass(frozen=True)
class Run:
    """When a measurement ran, and the load average before."""

    when: str
    load_before: tuple[float, float, float]


@dataclass
class Result:
    """A result file. earlier: the runs of the measurements that the last one left as they were."""

    scenario: str
    when: str
    host: Machine
    kernel: str
    qemu: Versions
    fio: str
    load_before: tuple[float, float, float]
    results: Results
    earlier: dict[str, Run] = field(default_factory=dict)
