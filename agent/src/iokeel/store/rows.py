"""A drive's state, a storage's and a domain's policy, as texts of the state file.

A later version may add fields, among limits too, each with a default that says what rows without it
meant. An older one ignores fields that it doesn't know, and writes rows without them. A list, such
as that of a mix, stays as long as it is: what is added to it goes into a field of its own.

If a drive would lose a limit because an older version ignores a field, its row has a later version
(`version_of`), and stands in tables that the older one doesn't know. So that one takes the limits
in force as set by hand, and they stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, NamedTuple

import msgspec

from iokeel.core.correct.headroom import LEAST_ROOM
from iokeel.core.values.counters import Mix
from iokeel.core.values.curve import CostCurve
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import (
    MOST_BURST_SECONDS,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    VmPolicy,
    checked,
    checked_job_bps,
)
from iokeel.core.values.state import (
    Credit,
    Division,
    DriveState,
    Feedback,
    Part,
    Pricing,
    Sent,
    StorageState,
    VmPart,
)
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import CurveError, PolicyError
from iokeel.host.process import Process

#: Raised by a text that the agent didn't write.
NOT_OURS = (ValueError, RecursionError, TypeError, CurveError, PolicyError)

_CURVES = {"cost_read", "cost_write"}
_PARTS = 1000  # of a number that may be a fraction, because an older version reads none
_LEAST = {"idle_credit_ms": 0}  # of any other number it is 1
_MOST_RATE = 1e15
# Credit is saved in steps of so many seconds, and what is below the first one in whole seconds.
# Each change is written, and a drive below its limit earns a second of credit each second.
_CREDIT_STEP_S = 15


class Qemu(NamedTuple):
    """A QEMU that a state is about. boot: the host's, because a later one has the same pids."""

    process: Process
    boot: str


class KeptVm(NamedTuple):
    """What is saved of a drive's part of its VM's limit. most: its part as it was divided."""

    policy: VmPolicy
    credit: Credit = Credit()
    most: int | None = None
    sustained: int | None = None

    @classmethod
    def of(cls, vm: VmPart, credit: Credit) -> KeptVm:
        """Return what is saved of a part. credit: as it is saved."""
        return cls(vm.policy, credit, None if vm.part is None else vm.part.part, vm.sustained)

    @property
    def vm(self) -> VmPart:
        """The part. All of it may be there until the first division."""
        part = None if self.most is None else Part(self.most, self.most)
        return VmPart(self.policy, self.credit, self.sustained, part)


class Kept(NamedTuple):
    """The part of a drive's state that is saved.

    qemu: None if its process isn't known. uuid: its VM's, because a name may pass to another; None
    if it has none. apart: its limits hold reads and writes apart (core/measure/zeroes.py). version:
    the row's.
    """

    policy: DrivePolicy | None
    tenant: str | None
    storage: str | None
    sent: ThrottleLimits | None
    replaced: ThrottleLimits | None
    found: ThrottleLimits | None
    credit_seconds: int
    credit_open: bool
    granted_seconds: float
    priced_for: Mix | None
    vm: KeptVm | None
    carried_out: ThrottleLimits | None  # None if it is `replaced`
    qemu: Qemu | None = None
    group: str | None = None
    uuid: str | None = None
    apart: bool = False
    version: int = 1


def version_of(last: LastGood | None) -> int:
    """Return the version of a policy's row, and of the rows of the drives that it is for.

    0.1.0 reads version 1. It ignores rules and the bounds that came after it, and would lift what
    they hold; it would enforce a policy that is only observed.
    """
    if last is None:
        return 1
    policies = (*last.policy.drives.values(), last.policy.default)
    by_rules = any(last.sources.values())
    later = by_rules or last.policy.mode or any(p and p.has_bounds for p in policies)
    return 2 if later else 1


def kept_of(
    known: DriveState,
    qemu: Qemu | None = None,
    uuid: str | None = None,
    version: int = 1,
    *,
    exact: bool = False,
) -> Kept:
    """Return the part of a drive's state that is saved. exact: credit to the second."""
    sent = known.sent
    seen = sent.carried_out
    return Kept(
        known.policy,
        known.tenant,
        known.storage,
        sent.limits,
        sent.replaced,
        sent.found,
        _credit_s(known.credit, exact),
        known.credit.open,
        sent.credit_s,
        known.pricing.mix,
        None if known.vm is None else KeptVm.of(known.vm, _saved(known.vm.credit, exact)),
        None if seen == sent.replaced else seen,
        qemu,
        sent.group,
        uuid,
        known.pricing.apart,
        version,
    )


def _credit_s(credit: Credit, exact: bool) -> int:
    """Return the seconds to save, never more than there are."""
    seconds = int(credit.seconds)
    return seconds if exact or seconds < _CREDIT_STEP_S else seconds - seconds % _CREDIT_STEP_S


def _saved(credit: Credit, exact: bool) -> Credit:
    return credit._replace(seconds=float(_credit_s(credit, exact)))


#: A curve's points, or a number.
_Value = int | list[tuple[int, float]]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_BURST_SECONDS)]


class _Row(msgspec.Struct):
    """The same as JSON: limits by field, without those that are None."""

    sent: dict[str, _Value]
    replaced: dict[str, _Value] | None
    found: dict[str, _Value] | None
    credit_seconds: _Seconds
    credit_open: bool
    granted_seconds: _Seconds
    priced_for: Mix | None
    policy: DrivePolicy | None = None  # a row of an older version has none
    tenant: str | None = None
    storage: str | None = None
    vm: KeptVm | None = None
    carried_out: dict[str, _Value] | None = None
    qemu: Qemu | None = None
    group: str | None = None
    uuid: str | None = None
    apart: bool = False


_ROWS = msgspec.json.Decoder(_Row)


def drive_text(kept: Kept) -> str:
    """Return a drive's state as a text."""
    row = _Row(
        _values(kept.sent) or {},
        _values(kept.replaced),
        _values(kept.found),
        kept.credit_seconds,
        kept.credit_open,
        kept.granted_seconds,
        kept.priced_for,
        kept.policy,
        kept.tenant,
        kept.storage,
        kept.vm,
        _values(kept.carried_out),
        kept.qemu,
        kept.group,
        kept.uuid,
        kept.apart,
    )
    return msgspec.json.encode(row).decode()


def state_of(text: str) -> DriveState:
    """Return a drive's state. Raises NOT_OURS."""
    row = _ROWS.decode(text)
    if row.policy is not None:
        checked(row.policy, "the saved policy")
    if row.vm is not None:
        checked(row.vm.policy, "the saved policy of the VM")
    return DriveState(
        policy=row.policy,
        storage=row.storage,
        tenant=row.tenant,
        credit=Credit(row.credit_seconds, row.credit_open),
        pricing=Pricing(mix=row.priced_for, apart=row.apart),
        sent=Sent(
            limits=_limits(row.sent),
            replaced=_limits(row.replaced),
            found=_limits(row.found),
            credit_s=row.granted_seconds,
            carried_out=_limits(row.carried_out or row.replaced),
            group=row.group,
        ),
        vm=None if row.vm is None else row.vm.vm,
    )


class About(msgspec.Struct):
    """What stands in a drive's row beside its state: the QEMU and the VM that it is about.

    None if it isn't known, as in a row of an older version.
    """

    qemu: Qemu | None = None
    uuid: str | None = None


_ABOUT = msgspec.json.Decoder(About)


def about_of(text: str) -> About:
    """Return what a drive's state is about. Raises NOT_OURS."""
    return _ABOUT.decode(text)


class _Storage(msgspec.Struct):
    """What a storage's latency has taught (state.Feedback), and what was divided."""

    capacity: Annotated[int, msgspec.Meta(gt=0)] | None
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    room: Annotated[float, msgspec.Meta(ge=0, le=1)]
    # An older version let it grow without end, and JSON has no number for infinity.
    peak: Annotated[float, msgspec.Meta(ge=0)] | None
    usable: Annotated[float, msgspec.Meta(ge=0, le=_MOST_RATE)] | None
    by_weight: bool = False  # a row of an older version has none


_STORAGES = msgspec.json.Decoder(_Storage)


def storage_text(known: StorageState) -> str | None:
    """Return what a storage has taught as a text; None if it is nothing.

    In two or three digits, because each change is written.
    """
    capacity, last, usable = known.policy.capacity, known.feedback, known.division.usable
    if usable is None and not known.by_weight:
        return None
    row = _Storage(
        capacity,
        round(last.ratio, 2),
        round(last.room, 2),
        0.0 if usable is None else _rounded(last.peak),
        None if usable is None else _rounded(usable),
        known.by_weight,
    )
    return msgspec.json.encode(row).decode()


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


def storage_of(text: str) -> StorageState:
    """Return a storage's state. Raises NOT_OURS."""
    row = _STORAGES.decode(text)
    ratio, room = max(row.ratio, 0.01), max(row.room, LEAST_ROOM)
    peak = 0.0 if row.peak is None else min(row.peak, _MOST_RATE)
    return StorageState(
        StoragePolicy(row.capacity),
        feedback=Feedback(ratio, room=room, peak=peak, passed=(inf, ratio)),
        division=Division(row.usable),
        weighted=row.by_weight,
        writing=0 if row.by_weight else None,
    )


class _Domain(msgspec.Struct):
    """What stands in a row beside a policy's own fields."""

    uuid: str | None = None  # a row of an older version has none of these
    sources: dict[str, str] = {}


_POLICIES = msgspec.json.Decoder(DomainPolicy)
_DOMAINS = msgspec.json.Decoder(_Domain)


def policy_text(last: LastGood) -> str:
    """Return a domain's last good policy as a text."""
    beside = {"uuid": last.uuid, "sources": dict(last.sources)}
    if not last.sources:
        del beside["sources"]
    return msgspec.json.encode({**msgspec.to_builtins(last.policy), **beside}).decode()


def policy_of(text: str) -> LastGood:
    """Return a domain's last good policy. Raises NOT_OURS."""
    policy = _POLICIES.decode(text)
    for each in (*policy.drives.values(), policy.default, policy.vm):
        if each is not None:
            checked(each, "the saved policy")
    checked_job_bps(policy.job_bps, "the saved policy")
    beside = _DOMAINS.decode(text)
    return LastGood(policy, beside.uuid, beside.sources)


def _values(limits: ThrottleLimits | None) -> dict[str, _Value] | None:
    if limits is None:
        return None
    bound = limits.max_in_flight
    whole = limits._replace(max_in_flight=bound and max(1, round(_PARTS * bound)))
    return {
        name: list(value.points) if isinstance(value, CostCurve) else int(value)
        for name, value in zip(limits._fields, whole, strict=True)
        if value is not None and value is not False
    }


def _limits(values: Mapping[str, _Value] | None) -> ThrottleLimits | None:
    if values is None:
        return None
    known = {name: value for name, value in values.items() if name in ThrottleLimits._fields}
    numbers = {name: n for name, n in known.items() if isinstance(n, int)}
    curves = {name: CostCurve(tuple(n)) for name, n in known.items() if isinstance(n, list)}
    if any(n < _LEAST.get(name, 1) for name, n in numbers.items()) or curves.keys() - _CURVES:
        raise ValueError(f"limits {values}")
    limits = UNLIMITED.with_fields(numbers)
    return limits._replace(
        cost_read=curves.get("cost_read"),
        cost_write=curves.get("cost_write"),
        max_in_flight=limits.max_in_flight and limits.max_in_flight / _PARTS,
        latency=bool(limits.latency),
    )
