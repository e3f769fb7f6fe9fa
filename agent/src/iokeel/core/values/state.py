"""Holds the law's memory of drives and storages, from one decision to the next.

All rates are normalized I/O operations a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import floor, inf
from typing import Final, NamedTuple

from iokeel.core.values.counters import Counters, DriveId, Mix, Rates
from iokeel.core.values.credit import Credit as Credit
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.mix import NO_NOISE, Noise
from iokeel.core.values.observation import DriveSeen, Reason
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.storage import Load, StorageActivity, StorageCounters, StoragePolicy
from iokeel.core.values.wants import Wants


class Verdict(Enum):
    """The outcome of the last look at a drive."""

    NO_POLICY = "it has no policy and is left alone"
    POLICY_UNKNOWN = "its policy has never been read, so its limits stay as they are"
    NOT_DIVIDED = "its share is not known yet, so its limits stay as they are"
    QEMU_UNKNOWN = "its QEMU hasn't told whether it has cost curves, so its limits stay as they are"
    NO_LIMIT = "its policy sets no limit"
    BYTES = "its policy sets no limit but that of its bytes"
    UNKNOWN = "its rates are not known yet"
    IDLE = "it is idle"
    UNBOUND = "it stays below its limits, so they needn't fit"
    ZEROES = "it writes zeroes, which its limits take for data until some seconds are paid"
    PRICED = "its limits fit its workload"
    SUSPECT = "its limits seem not to fit; a second look decides"
    WAITING = "its limits don't fit, but the last change was too recent"
    RETUNED = "its limits didn't fit and were replaced"
    ANY_QEMU = "its limits hold with any QEMU, until its own has told whether it has cost curves"
    EXACT = "QEMU charges each request by the cost curve"


_UNSURE = frozenset({Verdict.POLICY_UNKNOWN, Verdict.NOT_DIVIDED, Verdict.QEMU_UNKNOWN})


def ceiling(credit: Credit, policy: DrivePolicy | VmPolicy | None) -> int | None:
    """Return the rate that a policy allows now: its burst while that is open, else its limit.

    None if it has no limit.
    """
    if policy is None:
        return None
    return policy.burst if credit.open and policy.burst is not None else policy.limit


class Zeroes(NamedTuple):
    """Zeroes that a drive wrote, and for which nothing else of it passes (measure/zeroes.py).

    bytes: how many at least. at_ns: when they were seen. paid_ns: when its limits will have paid
    for them.
    """

    bytes: float
    at_ns: int
    paid_ns: int


class Measured(NamedTuple):
    """A drive's measurements.

    counters: the last reading. rates, rate: of the last interval, None if unknown; rate is R.
    mix: the mean over the last `looks` intervals. looks_since_shift: the intervals since the mean
    size was another. size, price: the mean request size, and the bytes that a normalized operation
    moves, each with its noise. active_ns, idle_ns: when it woke up, or went idle; None while it is
    not so. If its last requests cost more than its limit, idle_ns is when that will have paid for
    them. A drive of few requests a second has both until it has been idle for long. Requests
    without data, or the later parts of one, leave a drive idle. budget_rate: the part of `rate`
    that counts against a limit: the larger one of reads and writes if each has a budget, else all.
    zeroes: those that it pays for now, which are neither in its rates nor in its mix. read_rate:
    the part of `rate` that its reads have.
    """

    counters: Counters | None = None
    rates: Rates | None = None
    rate: float | None = None
    mix: Mix | None = None
    looks: int = 0
    looks_since_shift: int = 0
    size: Noise = NO_NOISE
    price: Noise = NO_NOISE
    active_ns: int | None = None
    idle_ns: int | None = None
    budget_rate: float | None = None
    zeroes: Zeroes | None = None
    read_rate: float | None = None

    @property
    def anew(self) -> Measured:
        """The same with a mix that begins with the last interval."""
        if self.rates is None:
            return self
        return self._replace(mix=Mix(self.rates.read, self.rates.write), looks=1)


class Demand(NamedTuple):
    """A drive's demand, and how far its limits hold it.

    recent: its rates in the last intervals, newest first. rate: its demand if its limits don't
    hold it (measure/demand.py). backlogged: they hold it now. backlogged_ns: when they last did,
    0 if never. at_limit: the last time, what held it wasn't its burst. throttled_s: for how long a
    bound was full, since the agent's start; held_s: in the last interval. unpaid: the charges of a
    QEMU that has cost curves which its limits' rate hasn't paid yet.
    """

    recent: tuple[float, ...] = ()
    rate: float = 0.0
    backlogged: bool = False
    backlogged_ns: int = 0
    at_limit: bool = False
    throttled_s: float = 0.0
    held_s: float = 0.0
    unpaid: float = 0.0


class Part(NamedTuple):
    """A drive's part of a limit over several drives (divide/pool.py).

    part: as it was divided. most: as much of it as the others leave now. Both are for both budgets
    together, if reads and writes have one each. halved: each has half of it, so that both can't
    have more together; else as much as it uses of both (DriveState.each_of).
    """

    part: int
    most: int
    halved: bool = True


class VmPart(NamedTuple):
    """A drive's part of its VM's limit.

    policy, credit: the VM's, the same for all its drives. part: of the limit, or of its burst while
    that is open; None until it has been divided. sustained: of the limit in any case.
    """

    policy: VmPolicy
    credit: Credit = Credit()
    sustained: int | None = None
    part: Part | None = None

    @property
    def ceiling(self) -> int | None:
        """The rate that the VM's policy allows now."""
        return ceiling(self.credit, self.policy)


class Pricing(NamedTuple):
    """The rate and mix that a drive's limits are made for.

    rate: None if it has no limits of ours. base_rate: the part of it that is left after a burst.
    mix: None for a mix that isn't known, and for a QEMU that charges by the curve. unit: limits
    that hold `mix` to a rate that is the same for all drives; None for a QEMU that charges by the
    curve. base: limits for `base_rate`. apart: reads and writes have half of it each, because the
    drive writes zeroes, for which writes wait.
    """

    rate: float | None = None
    base_rate: float | None = None
    mix: Mix | None = None
    unit: ThrottleLimits | None = None
    base: ThrottleLimits | None = None
    apart: bool = False


class Finding(NamedTuple):
    """The result of a look: do the limits fit the workload?

    error_ratio: the pricing error e; None if it doesn't matter or isn't known. suspect: the sign
    of an e beyond the deadband that waits for a second look, else 0. drift_s: the sum of e times
    its interval, in seconds, since the limits have been made for this workload.
    """

    verdict: Verdict = Verdict.UNKNOWN
    suspect: int = 0
    error_ratio: float | None = None
    drift_s: float = 0.0


class Sent(NamedTuple):
    """The orders that a drive has had.

    limits: of the last one; replaced: of the one before. found: the limits in force before the
    first one. at_ns: when the last one was made. credit_s: the burst credit that its limits carry.
    retunes: orders after the first. overwritten: how often somebody else's limits were replaced.
    carried_out: of the last one that was seen in force. group: the throttle group that they hold,
    as in DriveSeen; None until it is known.
    """

    limits: ThrottleLimits | None = None
    replaced: ThrottleLimits | None = None
    found: ThrottleLimits | None = None
    at_ns: int = 0
    reason: Reason | None = None
    credit_s: float = 0.0
    retunes: int = 0
    overwritten: int = 0
    carried_out: ThrottleLimits | None = None
    group: str | None = None

    @property
    def ours(self) -> list[ThrottleLimits]:
        """Those of its limits that may be in force, because orders may have failed."""
        maybe = (self.limits, self.replaced, self.carried_out)
        return [limits for limits in maybe if limits is not None]

    def seen(self, in_force: ThrottleLimits | None) -> Sent:
        """Return the record once limits have been seen in force; None if they aren't known."""
        if in_force is None or in_force is self.carried_out:
            return self
        if in_force == self.limits or in_force == self.replaced:
            return self._replace(carried_out=in_force)
        return self


class Share(NamedTuple):
    """A drive's share of its storage.

    most: the rate that it may have. owed: the part of its reservation that fits. by_weight: the
    part that its weight adds, inf if there is enough for all and it wasn't cut. cut: what it gave
    up for the drives in StorageState.suffering. The first two less this make `most`, unless
    `by_weight` is inf.
    """

    most: float
    storage: str
    owed: float
    by_weight: float
    cut: float = 0.0


class NotDivided(Enum):
    """Stands for the share of a drive in no division yet, which is not the same as none.

    A restarted agent doesn't know what an earlier one's division allowed. A drive without a share
    may do all that its policy allows.
    """

    NOT_DIVIDED = "not divided"


NOT_DIVIDED: Final = NotDivided.NOT_DIVIDED


class DriveState(NamedTuple):  # a tuple, because a copy with changes costs least
    """The law's memory of a drive.

    storage, abilities: the last ones known; None if they never were. share: None if nothing is
    divided that the drive has a part in. part: of its tenant's limit; storage_part: of what the
    fleet grants on its storage; None if there is none. held: the most that its QEMU may be held to
    now, over both budgets (divide/held.py); None if it has a part of nothing.
    """

    policy: DrivePolicy | None = None
    storage: str | None = None
    tenant: str | None = None
    abilities: Abilities | None = None
    measured: Measured = Measured()
    demand: Demand = Demand()
    credit: Credit = Credit()
    share: Share | NotDivided | None = NOT_DIVIDED
    pricing: Pricing = Pricing()
    finding: Finding = Finding()
    sent: Sent = Sent()
    vm: VmPart | None = None
    part: Part | None = None
    storage_part: Part | None = None
    held: float | None = None

    def with_sent(self, limits: ThrottleLimits) -> DriveState:
        """Return the state with limits as those that were sent last."""
        if limits == self.sent.limits:
            return self
        return self._replace(sent=self.sent._replace(limits=limits, replaced=self.sent.limits))

    @property
    def is_held(self) -> bool:
        """Whether a policy holds it by limits of ours."""
        sent = self.sent
        is_ours = sent.limits is not None and sent.reason is not Reason.RELEASED
        return self.policy is not None and is_ours

    @property
    def keeps_levels(self) -> bool:
        """Whether its QEMU is known to keep the buckets' levels when limits change."""
        return self.abilities is not None and self.abilities.keeps_levels

    @property
    def is_unsure(self) -> bool:
        """Whether its limits stay as they are, because too little is known to make others."""
        return self.finding.verdict in _UNSURE

    @property
    def saves_credit(self) -> bool:
        """Whether it, or its VM, may burst at times."""
        promises = (self.policy, None if self.vm is None else self.vm.policy)
        return any(promise is not None and promise.burst is not None for promise in promises)

    @property
    def ceiling(self) -> int | None:
        """The rate that its policy allows now."""
        return ceiling(self.credit, self.policy)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts of limits over several drives."""
        vm, of_vm = self.vm, None
        if vm is None and self.part is None and self.storage_part is None:
            return ()  # most often, and this is asked of each drive in each tick
        if vm is not None and (limit := vm.policy.limit) is not None:
            of_vm = Part(limit, limit) if vm.part is None else vm.part
        return tuple([p for p in (of_vm, self.part, self.storage_part) if p is not None])

    @property
    def waits_for_room(self) -> bool:
        """Whether other drives still hold some of what it may have."""
        return any(part.most < part.part for part in self.parts)

    @property
    def parts_most(self) -> int | None:
        """The rate that its parts allow it, None without any; with separate budgets, for each."""
        parts = self.parts
        if not parts:
            return None
        return min(
            self.each_budget(most) if halved else max(1, floor(self.each_of(most, 0.0)))
            for _, most, halved in parts
        )

    def each_budget(self, part: int) -> int:
        """Return a part of its VM's or tenant's limit; with separate budgets, for each of both."""
        separate = self.policy is not None and self.policy.separate_budgets
        return max(1, part // 2) if separate else part

    def each_of(self, rate: float, rounding: float = 0.5) -> float:
        """Return what a rate for all that a drive does allows; with separate budgets, for each.

        As large a part of it as the busier one has of all that the drive does, so that reads alone
        can do all that is reserved. While it does nothing, or can't be read, its last requests
        count; without any, it is half. In sixteenths, because each change of limits has a price.
        rounding: of a sixteenth, what is rounded up.
        """
        if self.policy is None or not self.policy.separate_budgets:
            return rate
        _, _, did, mix, _, _, _, _, _, _, budget_rate, _, _ = self.measured
        part = 0.5
        if did and budget_rate is not None:
            part = budget_rate / did
        elif mix is not None:
            reads, writes = mix.read.raw_iops, mix.write.raw_iops
            part = max(reads, writes) / (reads + writes)
        return rate * floor(16 * part + rounding) / 16

    def allowed_by(self, share: Share | None) -> float | None:
        """Return the rate that policy, VM, fleet and a share allow, at least 1; None if none does.

        With separate budgets, it is the rate of each.
        """
        most = ceiling(self.credit, self.policy)
        allowed = None if most is None else float(most)
        if share is not None:
            each = max(1.0, self.each_of(share.most))
            allowed = each if allowed is None else min(allowed, each)
        if (parts := self.parts_most) is not None:  # in whole numbers, so that sums are exact
            allowed = float(max(1, floor(parts if allowed is None else min(parts, allowed))))
        return allowed

    @property
    def allowed(self) -> float | None:
        """The rate that is allowed now; None if nothing limits the drive."""
        return self.allowed_by(self.share if isinstance(self.share, Share) else None)


NEW = DriveState()


@dataclass(frozen=True, slots=True)
class Lessons:
    """What cutting the others did for a drive with a latency target (correct/lessons.py).

    latencies: of the drive, in seconds, by level of the others' rate. lowest_s: while they were cut
    as far as possible; None if they weren't. age_s: of the oldest latency.
    """

    latencies: Mapping[int, float] = field(default_factory=dict)
    lowest_s: float | None = None
    age_s: float = 0.0


class Shown(NamedTuple):
    """What a drive did when its storage last kept its target, and how long ago, in seconds.

    in_vain: it missed the target, but nothing was left to cut.
    """

    rate: float
    age_s: float
    in_vain: bool = False


@dataclass(frozen=True, slots=True)
class Feedback:
    """The lessons of a storage's latency (correct/capacity.py).

    ratio: corrects its capacity. fell: the ratio was cut by much just now. doubt: for how many
    intervals latency was above its target while something disturbed it. room: the part of the
    capacity for drives without a latency target. peak: the capacity, if nobody has configured it.
    over: latency was above its target just now. passed: the ratios at which it passed it the last
    two times, oldest first; inf: not known. lessons: of its drives with a latency target. shown: by
    those with a reservation (correct/held_up.py). cut: the ratio at which a row of cuts began,
    the queue and the strain when one helped last, and how many intervals none has; None if there is
    no such row. vain: how many times its target the law goes by, because cuts were in vain.
    """

    ratio: float = 1.0
    fell: bool = False
    doubt: int = 0
    room: float = 1.0
    peak: float = 0.0
    over: bool = False
    passed: tuple[float, float] = (inf, inf)
    lessons: Mapping[DriveId, Lessons] = field(default_factory=dict)
    shown: Mapping[DriveId, Shown] = field(default_factory=dict)
    cut: tuple[float, float, float, int] | None = None
    vain: float = 1.0


@dataclass(frozen=True, slots=True)
class Division:
    """The last division of a storage's capacity among its drives.

    usable: the capacity for drives with a policy; None if it isn't known, and nothing is divided.
    given: the sum of what they use of it. level, kept: see divide.py. short: a drive could do more
    if its share were larger. cut: what drives gave up for those with a latency target; exhausted:
    cutting them further isn't possible or doesn't help, and one of those still suffers.
    """

    usable: float | None = None
    given: float = 0.0
    level: float = inf
    kept: float = 1.0
    short: bool = False
    cut: float = 0.0
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class StorageState:
    """The law's memory of a storage.

    activity: its requests in the last interval, None if unknown. promised, wanted: the sums of its
    drives' reservations and demands. wants: the demands as the fleet needs them; None if it doesn't
    share it. suffering: drives above their latency target. protected: drives for whose targets or
    reservations the others' large reads wait in pieces. load: what its drives did in the last
    interval. amounts: what each drive got in the last division. weighted: its scheduler shares it
    out by VMs' weights, as far as is known. writing: for how many intervals from now on its drives
    count as writing; None if it isn't left to its scheduler. held_up: the demands of drives with a
    reservation that their limits don't hold, as far as it can tell (correct/held_up.py).
    """

    policy: StoragePolicy
    counters: StorageCounters | None = None
    activity: StorageActivity | None = None
    feedback: Feedback = Feedback()
    division: Division = Division()
    promised: float = 0.0
    wanted: float = 0.0
    wants: Wants | None = None
    suffering: tuple[DriveId, ...] = ()
    protected: tuple[DriveId, ...] = ()
    load: Load = field(default_factory=Load)
    amounts: Mapping[DriveId, float] = field(default_factory=dict)
    weighted: bool = False
    writing: int | None = None
    held_up: Mapping[DriveId, float] = field(default_factory=dict)

    @property
    def by_weight(self) -> bool:
        """Whether it is left to its scheduler (divide/storage.py)."""
        return self.writing is not None

    @property
    def oversold(self) -> bool:
        """Whether more is reserved than it can serve, as far as that is known.

        Never of one that the fleet shares: its capacity is for the drives of all hosts.
        """
        capacity = self.policy.capacity
        return self.wants is None and capacity is not None and self.promised > capacity


class Settled(NamedTuple):
    """A drive that the last look has left as it was (measure/settled.py).

    known: its state since. model, split_size: what its limits are made by.
    """

    known: DriveState
    model: CostModel
    split_size: int | None


@dataclass(frozen=True, slots=True)
class State:
    """The law's memory. model: the cost curves of storages that have none of their own.

    tenants: the policies of tenants that have one. suspects: drives that need a second look,
    LOOK_AGAIN_S from now (enforce/retune.py). failures: errors of the law itself in the last
    decision, by the drive or storage that was set aside for it; under None, one of the division
    whatever is set aside. settled: the drives that needn't be looked at again. seen: the drives as
    the last look at each saw them. started: when drives began with credit because their guests had
    booted (measure/burst.py).
    """

    model: CostModel = DEFAULT_MODEL
    drives: Mapping[DriveId, DriveState] = field(default_factory=dict)
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    storages: Mapping[str, StorageState] = field(default_factory=dict)
    suspects: tuple[DriveId, ...] = ()
    failures: Mapping[DriveId | str | None, Exception] = field(default_factory=dict)
    settled: Mapping[DriveId, Settled] = field(default_factory=dict)
    seen: Mapping[DriveId, DriveSeen] = field(default_factory=dict)
    started: Mapping[DriveId, int] = field(default_factory=dict)
