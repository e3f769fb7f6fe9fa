"""What the controller sees, what it remembers of drives, and what it orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import Counters, DriveId, Rates
from iokeel.core.curve import DEFAULT_MODEL, CostModel
from iokeel.core.drive.burst import NO_CREDIT, Credit
from iokeel.core.drive.envelope import Mix
from iokeel.core.drive.mix import NO_NOISE, Noise
from iokeel.core.limits import ThrottleLimits
from iokeel.core.policy import DrivePolicy, TenantPolicy
from iokeel.core.sharing.storage import StorageCounters, StorageLoad, StoragePolicy


class Reason(Enum):
    """Why limits were set."""

    POLICY = "the policy is new or has changed"
    SHIFT = "the mix of request sizes has shifted"
    DRIFT = "the mix is known better now"
    IDLE = "the drive went idle, so its next mix is unknown"
    BURST_OPENS = "it has saved credit, so it may burst"
    BURST_CLOSES = "its burst credit is used up"
    CREDIT_GREW = "it has saved more credit than its limits carry"
    SHARE = "its share of its storage or tenant has changed"
    CURVE = "its storage has, or is found to have, another cost curve"
    SPLIT = "the size of the parts in which its large reads wait has changed"
    OVERWRITTEN = "somebody else had changed the limits"
    RETRY = "the last change of limits had failed"
    RELEASED = "it has no policy or no limit any more"
    STOPPING = "the agent stops"


class Verdict(Enum):
    """What the last look at a drive found."""

    NO_POLICY = "it has no policy, so it is left alone"
    NO_LIMIT = "its policy sets no limit"
    UNKNOWN = "its rates are not known yet"
    IDLE = "it does nothing"
    UNBOUND = "it does less than its limits allow, so their price doesn't matter"
    PRICED = "its limits fit what it does"
    SUSPECT = "its limits don't fit what it does; a second look decides"
    WAITING = "its limits don't fit what it does, but the last change is too recent"
    RETUNED = "its limits didn't fit what it did, so they were set anew"
    EXACT = "QEMU prices each of its requests by the cost curve itself"


class DriveSeen(NamedTuple):
    """A drive at a tick.

    counters: None where it can't be read now. in_force: its limits, None where they are not
    known. failed: whether the last order to this drive was not carried out. abilities: those of
    its QEMU. storage: the name of what it is on; None where that is not
    known. tenant: whose it is.
    """

    policy: DrivePolicy | None
    counters: Counters | None
    in_force: ThrottleLimits | None
    failed: bool = False
    abilities: Abilities = STOCK
    storage: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """A storage at a tick. counters: None where it has none, or they can't be read now."""

    policy: StoragePolicy
    counters: StorageCounters | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot. partial: other drives exist, and are not looked at this time.

    storages: by name, those that drives are on; none where it is partial. keep: whether drives that
    are not seen may come back, as where the agent has just started.
    """

    drives: Mapping[DriveId, DriveSeen]
    partial: bool = False
    storages: Mapping[str, StorageSeen] = field(default_factory=dict)
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SetLimits:
    """An order to the edges: put these limits in force on this drive."""

    drive: DriveId
    limits: ThrottleLimits
    reason: Reason


@dataclass(frozen=True, slots=True)
class Share:
    """What a drive may do of what it shares, in normalized I/O operations a second, and why.

    most: what it may do. storage, tenant: what it shares; None where that doesn't bound it.
    owed: what its reservation comes to. by_weight: what its weight adds; inf where there is more
    than is wanted. cut: what was taken from it for the latency of drives in StorageState.suffering.
    """

    most: float
    storage: str | None
    tenant: str | None
    owed: float
    by_weight: float
    cut: float = 0.0


@dataclass(frozen=True, slots=True)
class StorageState:
    """What the controller knows of a storage. Rates are normalized I/O operations a second.

    ratio, room, peak: see capacity.py. doubt: for how many intervals latency has been above its
    target while limits changed, so that it may be due to that. fell: whether ratio was just cut by
    much. usable: what its drives may do together, room not counted; None where that is not known.
    promised: the sum of its drives' reservations. wanted, given: sums over its drives. level, kept:
    see share.py. short: whether a drive could do more if it were let. suffering: drives above their
    latency target. cut: what the others give up for those; exhausted: whether they have no more to
    give. split_for: the drives for whose latency targets large reads of the others wait in
    parts.
    """

    policy: StoragePolicy
    counters: StorageCounters | None = None
    load: StorageLoad | None = None
    ratio: float = 1.0
    doubt: int = 0
    fell: bool = False
    room: float = 1.0
    peak: float = 0.0
    usable: float | None = None
    promised: float = 0.0
    wanted: float = 0.0
    given: float = 0.0
    level: float = inf
    kept: float = 1.0
    short: bool = False
    suffering: tuple[DriveId, ...] = ()
    cut: float = 0.0
    exhausted: bool = False
    split_for: tuple[DriveId, ...] = ()

    @property
    def oversold(self) -> bool:
        """Whether more is reserved than it can serve, as far as that is known."""
        return self.policy.capacity is not None and self.promised > self.policy.capacity


class DriveState(NamedTuple):  # of which a copy with changes costs least
    """What the controller knows of a drive.

    rate: R of the last interval; lately: of some, newest first. demand: what it wants if its limits
    don't hold it (demand.py); backlogged: whether they do. share: what it may do of its
    storage and tenant. held: the rate that its limits were made for. mix: the mean of the `looks`
    intervals since the last shift. size, price: the mean request size, and the bytes that a
    normalized operation moves. unit, base: the limits that hold `priced_for` to a rate that is the
    same for all drives, and to its own, the burst not included.
    sent, replaced: what was ordered last, and before that. found: what was in force before the
    first order. suspect: the sign of e where it was beyond the deadband. error_ratio: e.
    throttled_s: seconds in which a bound was full.
    """

    policy: DrivePolicy | None = None
    storage: str | None = None
    tenant: str | None = None
    counters: Counters | None = None
    rates: Rates | None = None
    rate: float | None = None
    lately: tuple[float, ...] = ()
    demand: float = 0.0
    backlogged: bool = False
    bound_ns: int = 0
    share: Share | None = None
    held: float | None = None
    credit: Credit = NO_CREDIT
    granted_s: float = 0.0
    mix: Mix | None = None
    looks: int = 0
    size: Noise = NO_NOISE
    price: Noise = NO_NOISE
    priced_for: Mix | None = None
    unit: ThrottleLimits | None = None
    base: ThrottleLimits | None = None
    sent: ThrottleLimits | None = None
    replaced: ThrottleLimits | None = None
    found: ThrottleLimits | None = None
    sent_ns: int = 0
    reason: Reason | None = None
    active_ns: int | None = None
    idle_ns: int | None = None
    suspect: int = 0
    error_ratio: float | None = None
    verdict: Verdict = Verdict.UNKNOWN
    abilities: Abilities = STOCK
    retunes: int = 0
    overwritten: int = 0
    throttled_s: float = 0.0

    @property
    def ceiling(self) -> int | None:
        """What its policy allows now, normalized: its burst while that is open, else its limit."""
        if self.policy is None:
            return None
        return self.policy.burst if self.credit.open else self.policy.limit

    @property
    def allowed(self) -> float | None:
        """What the drive may do now, normalized; None where nothing limits it."""
        if self.share is None:
            return self.ceiling
        return self.share.most if self.ceiling is None else min(self.share.most, self.ceiling)


@dataclass(frozen=True, slots=True)
class State:
    """The controller's memory. tenants: what those are promised that have a policy of their own.

    look_again: drives that want a look LOOK_AGAIN_S from now.
    """

    model: CostModel = DEFAULT_MODEL
    drives: Mapping[DriveId, DriveState] = field(default_factory=dict)
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    storages: Mapping[str, StorageState] = field(default_factory=dict)
    look_again: tuple[DriveId, ...] = ()


NEW = DriveState()
