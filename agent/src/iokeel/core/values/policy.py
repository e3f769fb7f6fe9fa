"""Describes the promises to a drive, a tenant, a VM and its drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, replace
from enum import Enum, nonmember
from typing import Final, NamedTuple

from iokeel.errors import PolicyError

# No device comes near these; a figure beyond them is a slip of the pen.
MOST_IOPS = 100_000_000
MOST_WEIGHT = 10_000
MOST_BURST_SECONDS = 3_600
MOST_LATENCY_MS = 60_000
MOST_BPS = 10**12
LEAST_JOB_BPS = 1 << 16
#: What is done by a policy: its promises are kept, or the law only says what it would do.
ENFORCE, OBSERVE = "enforce", "observe"
#: Stands for a rate without an end, in whole numbers: up to it each of them is exact as a float.
ENDLESS = 2**53


@dataclass(frozen=True, slots=True)
class DrivePolicy:
    """The promise to one drive.

    Rates are normalized I/O operations a second. reservation: owed to it when it asks. limit: its
    highest rate (None: no limit). burst: its highest rate while it has credit (None: the limit).
    burst_seconds: the most credit it can save. weight: its part of the capacity that reservations
    leave. latency_target_ms: the mean latency above which it suffers (None: none).
    separate_budgets: reads and writes have a budget of `limit` each. limit_read, limit_write: a
    lower limit of one of these budgets. max_bytes: the most bytes a second, for each budget, beside
    all that; no burst exceeds it (None: no bound). start_credit_seconds: the credit that it has
    when its guest boots, no more than burst_seconds.
    """

    reservation: int = 0
    limit: int | None = None
    burst: int | None = None
    burst_seconds: int = 60
    weight: int = 100
    latency_target_ms: float | None = None
    separate_budgets: bool = False
    limit_read: int | None = None
    limit_write: int | None = None
    max_bytes: int | None = None
    start_credit_seconds: int = 0

    @property
    def has_bounds(self) -> bool:
        """Whether it has bounds beside the limit, or below it in one direction."""
        one_way = self.limit_read is not None or self.limit_write is not None
        return one_way or self.max_bytes is not None

    @property
    def parts(self) -> tuple[float, float]:
        """The parts of the limit that reads and writes may have, at most 1."""
        limit = self.limit or 1
        return (self.limit_read or limit) / limit, (self.limit_write or limit) / limit


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """The promise to a tenant, over all its drives on this host, in a drive policy's units."""

    reservation: int = 0
    limit: int | None = None
    weight: int = 100


@dataclass(frozen=True, slots=True)
class VmPolicy:
    """The promise to a VM, over all its drives together, in a drive policy's units."""

    reservation: int = 0
    limit: int | None = None
    burst: int | None = None
    burst_seconds: int = 60


@dataclass(frozen=True, slots=True)
class DomainPolicy:
    """A domain's policy: its tenant, and the promises to its drives, alone and together.

    drives: by target, those that the policy names. default: for every other drive, also one that
    is plugged in later; None if those have no promise of their own. vm: for all drives together;
    None if nothing is promised to them. job_bps: the rate of each of its block jobs, in bytes a
    second; None for the configuration's. serial: grows with each change; None if it has none.
    ceiling: the name of the host's ceiling that changes what the policy says; None if none does.
    mode: ENFORCE, OBSERVE, or None for the configuration's.
    """

    drives: Mapping[str, DrivePolicy]
    default: DrivePolicy | None = None
    tenant: str | None = None
    vm: VmPolicy | None = None
    job_bps: int | None = None
    serial: int | None = None
    ceiling: str | None = None
    mode: str | None = None

    @property
    def for_others(self) -> DrivePolicy | None:
        """The policy of the drives that aren't named; None if those are left alone."""
        if self.default is None and self.vm is not None:
            return DrivePolicy()
        return self.default

    def for_drive(self, target: str) -> DrivePolicy | None:
        """Return a drive's policy, or None if it has none."""
        return self.drives[target] if target in self.drives else self.for_others


class LastGood(NamedTuple):
    """A domain's last good policy, and its UUID, which it keeps if it is renamed.

    uuid: None if it isn't known. sources: the rule that gave a value, by the value's name
    (rules/compose.py); empty if all is its own.
    """

    policy: DomainPolicy
    uuid: str | None = None
    sources: Mapping[str, str] = {}


class UnknownPolicy(Enum):
    """Stands for a policy that can't be read now, which is not the same as none.

    A drive without a policy is released. A drive whose policy is unknown keeps the last good one.
    The policy of a drive in a domain of unknown policy is unknown, too.
    """

    UNKNOWN = "unknown"

    def for_drive(self, target: str) -> UnknownPolicy:
        """Return that a drive's policy is unknown."""
        return self

    # What else is asked of a policy isn't known either.
    tenant = vm = job_bps = ceiling = mode = nonmember(None)


UNKNOWN: Final = UnknownPolicy.UNKNOWN


@dataclass(frozen=True, slots=True)
class PolicyInPart:
    """A domain's policy that names drives that the domain doesn't have.

    A drive that it doesn't name may be the one that was meant, so the policy of that is unknown.
    kept: targets that only the last good policy tells of, and this one with it.
    """

    policy: DomainPolicy
    kept: Set[str] = frozenset()

    def for_drive(self, target: str) -> DrivePolicy | UnknownPolicy:
        """Return a drive's policy as far as it is known."""
        return UNKNOWN if target in self.kept else self.policy.drives.get(target, UNKNOWN)

    def for_new(self, target: str) -> DrivePolicy | None:
        """Return the policy of a drive that isn't named and is new, as after a start of its VM."""
        return self.policy.drives.get(target, self.policy.default)

    @property
    def tenant(self) -> str | None:
        """Its tenant."""
        return self.policy.tenant

    @property
    def vm(self) -> VmPolicy | None:
        """The promise to all drives together."""
        return self.policy.vm

    @property
    def job_bps(self) -> int | None:
        """The rate of each block job."""
        return self.policy.job_bps

    @property
    def ceiling(self) -> str | None:
        """The name of the ceiling that changes it."""
        return self.policy.ceiling

    @property
    def mode(self) -> str | None:
        """What is done by it."""
        return self.policy.mode


#: What a source tells of a domain that may have a policy.
ToldPolicy = DomainPolicy | PolicyInPart | UnknownPolicy

# Classes that are always there; configuration may add to them and override them.
BUILTIN_CLASSES: Mapping[str, DrivePolicy] = {
    "bronze": DrivePolicy(limit=1_000, burst=2_000, weight=50),
    "silver": DrivePolicy(limit=4_000, burst=8_000, weight=100),
    "gold": DrivePolicy(reservation=1_000, limit=10_000, burst=20_000, weight=200),
}


class Figure(NamedTuple):
    """What is written of a promise: its range and unit, and what tables call it."""

    least: float
    most: float
    unit: str
    called: str


#: By the field's name; a field that isn't here is a choice of two words.
FIGURES: Mapping[str, Figure] = {
    "reservation": Figure(0, MOST_IOPS, "iops", "reservation"),
    "limit": Figure(1, MOST_IOPS, "iops", "limit"),
    "burst": Figure(1, MOST_IOPS, "iops", "burst"),
    "burst_seconds": Figure(0, MOST_BURST_SECONDS, "s", "credit"),
    "weight": Figure(1, MOST_WEIGHT, "", "weight"),
    "latency_target_ms": Figure(0.001, MOST_LATENCY_MS, "ms", "latency target"),
    "limit_read": Figure(1, MOST_IOPS, "iops", "limit of reads"),
    "limit_write": Figure(1, MOST_IOPS, "iops", "limit of writes"),
    "max_bytes": Figure(1, MOST_BPS, "B/s", "max bytes"),
    "start_credit_seconds": Figure(0, MOST_BURST_SECONDS, "s", "start credit"),
}
#: Lower limits of one direction.
ONE_WAY = ("limit_read", "limit_write")


def _xml(field: str) -> str:
    return field.replace("_", "-")


def checked(
    policy: DrivePolicy | TenantPolicy | VmPolicy, where: str, spelt: Callable[[str], str] = _xml
) -> None:
    """Raise PolicyError if a policy's figures make no sense, alone or together.

    where: the policy's name in the error, such as "domain db1, drive vda". spelt: returns a field's
    name as it is written there; by default, as an XML attribute.
    """
    for field in fields(policy):
        value = getattr(policy, field.name)
        figure = FIGURES.get(field.name)
        if figure is None or value is None or figure.least <= value <= figure.most:
            continue
        # Elsewhere 0 means unlimited; here, leaving it out does.
        or_not = ", or leave it out" if field.default is None else ""
        mend = f"give {figure.least} to {figure.most}{or_not}"
        raise PolicyError(where, f"{spelt(field.name)} is {value}", mend)
    if policy.limit is not None and policy.limit < policy.reservation:
        raise PolicyError(
            where,
            f"limit {policy.limit} is below reservation {policy.reservation}",
            "raise the limit or lower the reservation",
        )
    if isinstance(policy, DrivePolicy):
        _check_one_way(policy, where, spelt)
    if isinstance(policy, TenantPolicy) or policy.burst is None:
        return
    if policy.limit is None:
        raise PolicyError(where, f"burst {policy.burst} without a limit", "give a limit")
    if policy.burst < policy.limit:
        raise PolicyError(
            where,
            f"burst {policy.burst} is below limit {policy.limit}",
            "raise the burst or leave it out",
        )


def _check_one_way(policy: DrivePolicy, where: str, spelt: Callable[[str], str]) -> None:
    """Raise PolicyError if a lower limit of one direction doesn't fit the limit or the budgets."""
    for name in ONE_WAY:
        own = getattr(policy, name)
        if own is None:
            continue
        if policy.limit is None:
            other = next(spelt(each) for each in ONE_WAY if each != name)
            what, mend = f"{spelt(name)} without a limit", f"give a limit, or {other}, too"
        elif own > policy.limit:
            what = f"{spelt(name)} {own} is above limit {policy.limit}"
            mend = "raise the limit or lower it"
        elif not policy.separate_budgets:
            what, mend = f"{spelt(name)} with a shared budget", "let the budget be separate"
        else:
            continue
        raise PolicyError(where, what, mend)


def with_implied(given: Mapping[str, object]) -> dict[str, object]:
    """Return what is given of a drive, with what lower limits of one direction imply.

    They are of budgets of their own. Both together need no limit: it is the larger one.
    """
    own = [value for name in ONE_WAY if isinstance(value := given.get(name), int)]
    implied: dict[str, object] = {"separate_budgets": True} if own else {}
    if len(own) == len(ONE_WAY):
        implied["limit"] = max(own)
    return implied | dict(given)


def override(
    base: DrivePolicy,
    given: Mapping[str, object],
    where: str,
    spelt: Callable[[str], str] = _xml,
) -> DrivePolicy:
    """Return a class's policy with a drive's own attributes put over it, checked.

    given: fields of DrivePolicy by name, already of the right types. A limit above the class's
    burst takes that burst with it unless the drive has a burst of its own. A lower limit of one
    direction that the class has goes down with the limit. It is that of a shared budget.
    """
    policy = replace(base, **given)  # type: ignore[arg-type]
    for name in ONE_WAY:
        own, limit = getattr(policy, name), policy.limit
        if name in given or own is None or limit is None:
            continue
        if policy.separate_budgets:
            policy = replace(policy, **{name: min(own, limit)})
        else:
            limit = limit if "limit" in given else min(own, limit)
            policy = replace(policy, **{name: None, "limit": limit})  # type: ignore[arg-type]
    if (
        "burst" not in given
        and policy.burst is not None
        and policy.limit is not None
        and policy.burst < policy.limit
    ):
        policy = replace(policy, burst=policy.limit)
    if "reservation" not in given and policy.limit is not None:
        policy = replace(policy, reservation=min(policy.reservation, policy.limit))
    checked(policy, where, spelt)
    return policy


def vm_policy(
    given: Mapping[str, object], where: str, spelt: Callable[[str], str] = _xml
) -> VmPolicy | None:
    """Return the promise to a VM, checked; None if nothing is promised.

    given: fields of VmPolicy by name, already of the right types.
    """
    policy = replace(VmPolicy(), **given)  # type: ignore[arg-type]
    checked(policy, where, spelt)
    return policy if policy.limit is not None or policy.reservation else None


def checked_job_bps(bps: object, where: str) -> int | None:
    """Return the rate of block jobs, in bytes a second. Raises PolicyError for a slip of the pen.

    bps: a whole number; None for no rate of their own. where: as in `checked`.
    """
    if bps is None:
        return None
    if not isinstance(bps, int) or not LEAST_JOB_BPS <= bps <= MOST_BPS:
        mend = f"give {LEAST_JOB_BPS} to {MOST_BPS} bytes a second, or leave it out"
        raise PolicyError(where, f"job-bps is {bps}", mend)
    return bps
