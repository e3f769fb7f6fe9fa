"""What a simulated fleet is made of: hosts, their messages, and what etcd has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from iokeel.core.fleet import coordinate as coordinating
from iokeel.core.fleet import host as hosting
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.coordinate import Tenure
from iokeel.core.fleet.host import Answer, Me, Part
from iokeel.core.fleet.ledger import Ledger, Stamp
from iokeel.core.values.storage import Load

# The longest that a QEMU takes for new limits. With a tick it stays within hosting.GUARD_S.
LONGEST_ORDER_S = 2.5


@dataclass(frozen=True)
class Protocol:
    """The functions under test; a mutant has others."""

    heard: Callable[[Part, Me, Ledger | None, int | None, int, int], tuple[Part, Answer]] = (
        hosting.heard
    )
    allowance: Callable[[Part, Me, int], int] = hosting.allowance
    coordinate: Callable[
        [Ledger | None, Mapping[str, HostClaim], Budget, Tenure, int], tuple[Ledger, Tenure]
    ] = coordinating.coordinate
    applied: Callable[[Part, Me, int], Stamp | None] = hosting.applied


class Stored(NamedTuple):
    """What etcd has of the budget."""

    budget: Budget | None
    ledger: Ledger | None = None
    claims: Mapping[str, HostClaim] = {}


class Read(NamedTuple):
    """A read of etcd. asked_ns: by the host's clock. found: None until etcd has served it."""

    asked_ns: int
    found: Stored | None = None


class Write(NamedTuple):
    """A ledger on its way to etcd, in place of another one or of none."""

    ledger: Ledger
    found: Ledger | None


class Process(Enum):
    """An agent's process: RUNS, STOPPED (it may go on), DEAD; or the whole host is OFF."""

    RUNS = "runs"
    STOPPED = "stopped"
    DEAD = "dead"
    OFF = "off"


class Work(NamedTuple):
    """The sums over a host's drives: see HostClaim."""

    reservation: int = 0
    weight: int = 100
    wants: int = 0
    most: int = 0


@dataclass
class Host:
    """A host. load: what it tells of a storage. held: what its QEMUs are held to. order_s: how long
    they take for new limits, at most LONGEST_ORDER_S. orders: when they are done, and their
    amounts.

    disk: what the agent finds after a start. clock_ratio: its clock's speed. fragile_until_s: until
    then its agent doesn't die, because nobody who reaches etcd knows what it has. tells_by_s: by
    then it reads etcd, and until then it neither dies nor is cut off (see `Fleet.restore`).
    """

    me: Me
    clock_ratio: float = 1.0
    work: Work = field(default_factory=Work)
    load: Load | None = None
    process: Process = Process.RUNS
    connected: bool = True
    held: int = 0
    order_s: float = 0.0
    orders: list[tuple[float, int]] = field(default_factory=list)
    part: Part = field(default_factory=Part)
    disk: Part = field(default_factory=Part)
    tenure: Tenure | None = None
    reads: list[Read] = field(default_factory=list)
    claims: list[HostClaim] = field(default_factory=list)
    write: Write | None = None
    fragile_until_s: float = 0.0
    tells_by_s: float | None = None

    @property
    def runs(self) -> bool:
        return self.process is Process.RUNS

    @property
    def reaches_etcd(self) -> bool:
        return self.runs and self.connected

    @property
    def may_hold(self) -> int:
        """The most that its QEMUs may be held to, with orders that are on their way."""
        return max([self.held, *(amount for _, amount in self.orders)])
