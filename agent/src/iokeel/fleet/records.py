"""The fleet's values in etcd, as JSON. Each has its schema's version.

A malformed value ends nothing: the host doesn't go by it, keeps what it knows, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import astuple

from iokeel.core.fleet.claims import EVEN_RATIO, Budget, HostClaim, Shared
from iokeel.core.fleet.ledger import Entry, Learnt, Ledger, Span, Stamp, Word
from iokeel.core.values.policy import ENDLESS, MOST_IOPS, MOST_LATENCY_MS, MOST_WEIGHT
from iokeel.core.values.storage import Load, StorageActivity
from iokeel.core.values.wants import Layer, TenantLevel, TenantWants, Wants, wants_of
from iokeel.errors import FleetRefused, NewerSchema
from iokeel.words.quoting import shown

# Not MOST_IOPS, because what is in force may be more than any figure that may be set.
_Iops = Annotated[int, msgspec.Meta(ge=0, le=ENDLESS)]
# The sum over a host.
_Weight = Annotated[int, msgspec.Meta(ge=1, le=MOST_WEIGHT * 10_000)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=ENDLESS)]
# Below ENDLESS, because others follow it.
_Sequence = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
# Above any rate, time or load that a host may measure.
_Figure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
# Not so little that a division by it, or a weight times it, is lost.
_LEAST_LEVEL = 1e-12
_Level = Annotated[float, msgspec.Meta(ge=_LEAST_LEVEL, le=1e16)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_CONTRADICTS = "has figures that contradict each other"
# A new kind of value in a key of its own is better: hosts with an older agent can't read any that
# has a higher version.
VERSION = 1


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """A value. v: its schema's version."""

    v: int = VERSION


class Format(Record):
    """What the prefix holds."""

    holds: str = "iokeel fleet"


class HostRecord(Record, kw_only=True):
    """A host that is there."""

    instance: _Name


class RulesRecord(Record, kw_only=True):
    """A digest of a host's rules; "" without rules."""

    digest: Annotated[str, msgspec.Meta(max_length=64)]


class LeaderRecord(Record, kw_only=True):
    """The coordinator of a budget."""

    host: _Name


class _SharedRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    latency_target_ms: Annotated[float, msgspec.Meta(ge=0.001, le=MOST_LATENCY_MS)] | None = None
    least_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = Shared().least_ratio
    most_ratio: Annotated[float, msgspec.Meta(ge=1, le=100)] = Shared().most_ratio


# Tenants' values leave out the fields of storages, so that older agents can read them.


class BudgetRecord(Record, kw_only=True):
    """A budget as an operator has set it. amount: None if it was removed on purpose."""

    amount: Annotated[int, msgspec.Meta(ge=1, le=MOST_IOPS)] | None
    even_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = EVEN_RATIO
    reservation: Annotated[int, msgspec.Meta(ge=0, le=MOST_IOPS)] = 0
    weight: Annotated[int, msgspec.Meta(ge=1, le=MOST_WEIGHT)] = 100
    shared: _SharedRecord | msgspec.UnsetType = msgspec.UNSET


class ChangeRecord(Record, kw_only=True):
    """A change that an operator made. at: by the operator's wall clock, ISO 8601."""

    at: _Text
    by: _Text
    what: _Text


class _StampRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    epoch: _Name
    sequence: _Sequence


class _ActivityRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    elapsed_s: _Figure
    raw_iops: _Figure
    latency_s: _Figure | None
    busy_ratio: _Figure
    queue: _Figure
    mean_cost: _Figure | None
    served_cost: _Figure | None


class _LoadRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    activity: _ActivityRecord | None
    done: _Figure
    strangers: _Figure
    known: bool
    gifts: _Figure
    drained: bool
    usable_part: Annotated[float, msgspec.Meta(gt=0, le=1)]
    short: bool


class _LayerRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    weight: _Weight
    wants: _Iops


_Layers = Annotated[list[_LayerRecord], msgspec.Meta(max_length=1000)]


class _TenantRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    weight: _Weight
    layers: _Layers


class WantsRecord(Record, kw_only=True):
    """The demands of a claim, if its sums don't tell them."""

    owed: _Iops
    layers: _Layers
    tenants: dict[str, _TenantRecord]


class ClaimRecord(Record, kw_only=True):
    """A host's claim."""

    instance: _Name
    reservation: _Iops
    weight: _Weight
    wants: _Iops
    most: _Iops
    held: _Iops
    applied: _StampRecord | None = None
    load: _LoadRecord | msgspec.UnsetType = msgspec.UNSET


class _EntryRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    instance: _Name
    floor: _Iops
    amount: _Iops
    charged: _Iops
    lasting: _Iops
    stamp: _StampRecord
    word: Word | None = None


class _SpanRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    epoch: _Name
    first: _Sequence
    last: _Sequence


class _LearntRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    capacity: _Number
    ratio: Annotated[float, msgspec.Meta(gt=0, le=100)]


class _LevelRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    level: _Level
    amount: _Level


class LevelsRecord(Record, kw_only=True):
    """The levels of tenants on a storage, as the ledger with this stamp has them."""

    stamp: _StampRecord
    levels: dict[str, _LevelRecord]


class LedgerRecord(Record, kw_only=True):
    """A budget's ledger, without the levels."""

    amount: _Iops
    spans: Annotated[list[_SpanRecord], msgspec.Meta(min_length=1)]
    hosts: dict[str, _EntryRecord]
    before: Annotated[int, msgspec.Meta(ge=0)] = 0
    learnt: _LearntRecord | msgspec.UnsetType = msgspec.UNSET


class _Version(msgspec.Struct):
    v: int


T = TypeVar("T", bound=Record)
_VERSION = msgspec.json.Decoder(_Version)


def decoded(kind: type[T], key: str, raw: bytes) -> T:
    """Return a value as a record. Raises NewerSchema or FleetRefused."""
    try:
        version = _VERSION.decode(raw).v
        if version > VERSION:
            raise NewerSchema(f"etcd {key}", version, VERSION)
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise FleetRefused(
            f"etcd {key}",
            f"isn't what iokeel has written there: {shown(str(error))}",
            "see what else writes below [fleet] prefix",
        ) from None


def encoded(record: Record) -> bytes:
    """Return a record as a value. Raises FleetRefused if nobody could read it."""
    raw = msgspec.json.encode(record)
    try:
        msgspec.json.decode(raw, type=type(record))
    except ValueError as error:
        raise FleetRefused(
            type(record).__name__,
            f"isn't written to etcd, because no host could read it: {shown(str(error))}",
            "please report it",
        ) from None
    return raw


def ledger_of(key: str, raw: bytes) -> Ledger:
    """Return a ledger. Raises NewerSchema or FleetRefused."""
    record = decoded(LedgerRecord, key, raw)
    entries = {
        name: Entry(e.instance, e.floor, e.amount, e.charged, e.lasting, _stamp_of(e.stamp), e.word)
        for name, e in record.hosts.items()
    }
    spans = tuple(Span(s.epoch, s.first, s.last) for s in record.spans)
    if _contradicts(entries, spans):
        mend = "see what else writes below [fleet] prefix"
        raise FleetRefused(f"etcd {key}", _CONTRADICTS, mend)
    learnt = Learnt(record.learnt.capacity, record.learnt.ratio) if record.learnt else None
    return Ledger(record.amount, spans, entries, record.before, learnt)


def _contradicts(entries: Mapping[str, Entry], spans: Sequence[Span]) -> bool:
    return any(not e.floor <= e.amount <= e.charged >= e.lasting for e in entries.values()) or any(
        not span.first <= span.last <= spans[-1].last for span in spans
    )


def with_levels(ledger: Ledger, key: str, raw: bytes) -> Ledger:
    """Return a ledger with its levels from a value. Raises NewerSchema or FleetRefused.

    Levels of another ledger don't count: an older agent has written this one.
    """
    record = decoded(LevelsRecord, key, raw)
    if _stamp_of(record.stamp) != ledger.stamp:
        return ledger
    levels = {name: TenantLevel(e.level, e.amount) for name, e in record.levels.items()}
    return replace(ledger, levels=levels)


def levels_value(ledger: Ledger) -> bytes | None:
    """Return a ledger's levels as a value; None if there are none."""
    if not ledger.levels:
        return None
    levels = {
        name: _LevelRecord(*(max(_LEAST_LEVEL, figure) for figure in level))
        for name, level in ledger.levels.items()
    }
    return encoded(LevelsRecord(stamp=_StampRecord(*ledger.stamp), levels=levels))


def ledger_value(ledger: Ledger) -> bytes:
    """Return a ledger as a value, without its levels. Raises FleetRefused as `encoded`."""
    if _contradicts(ledger.entries, ledger.spans):
        raise FleetRefused(
            "a ledger", f"isn't written, because it {_CONTRADICTS}", "please report it"
        )
    hosts = {
        name: _EntryRecord(
            e.instance, e.floor, e.amount, e.charged, e.lasting, _StampRecord(*e.stamp), e.word
        )
        for name, e in ledger.entries.items()
    }
    spans = [_SpanRecord(*span) for span in ledger.spans]
    return encoded(
        LedgerRecord(
            amount=ledger.amount,
            spans=spans,
            hosts=hosts,
            before=ledger.before,
            learnt=_LearntRecord(*ledger.learnt) if ledger.learnt is not None else msgspec.UNSET,
        )
    )


def stamp_value(ledger: Ledger) -> bytes:
    """Return a ledger's stamp as a value: two ledgers with one stamp are the same."""
    return msgspec.json.encode(ledger.stamp)


def claim_of(key: str, raw: bytes) -> HostClaim:
    """Return a claim, with demands by its sums. Raises NewerSchema or FleetRefused."""
    r = decoded(ClaimRecord, key, raw)
    applied = _stamp_of(r.applied) if r.applied is not None else None
    load = _load_of(r.load) if r.load else None
    wants = _by_sums(r.reservation, r.weight, r.wants)
    return HostClaim(r.instance, r.reservation, r.weight, wants, r.most, r.held, applied, load)


def wants_in(key: str, raw: bytes) -> Wants:
    """Return the demands of a claim. Raises NewerSchema or FleetRefused."""
    r = decoded(WantsRecord, key, raw)
    tenants = {
        name: TenantWants(tenant.weight, _layers_of(tenant.layers))
        for name, tenant in r.tenants.items()
    }
    return Wants(r.owed, _layers_of(r.layers), tenants)


def wants_value(claim: HostClaim) -> bytes | None:
    """Return a claim's demands as a value; None if its sums tell them."""
    wants = claim.wants
    if wants == _by_sums(claim.reservation, claim.weight, wants.total):
        return None
    tenants = {
        name: _TenantRecord(tenant.weight, _layer_records(tenant.layers))
        for name, tenant in wants.tenants.items()
    }
    layers = _layer_records(wants.layers)
    return encoded(WantsRecord(owed=wants.owed, layers=layers, tenants=tenants))


def _by_sums(reservation: int, weight: int, wants: int) -> Wants:
    return wants_of([(reservation, weight, wants)])


def claim_value(claim: HostClaim) -> bytes:
    """Return a claim as a value, with the sums of its demands."""
    applied = _StampRecord(*claim.applied) if claim.applied is not None else None
    return encoded(
        ClaimRecord(
            instance=claim.instance,
            reservation=claim.reservation,
            weight=claim.weight,
            wants=claim.wants.total,
            most=claim.most,
            held=claim.held,
            applied=applied,
            load=_load_record(claim.load) if claim.load is not None else msgspec.UNSET,
        )
    )


def _layers_of(records: Sequence[_LayerRecord]) -> tuple[Layer, ...]:
    return tuple(Layer(record.weight, record.wants) for record in records)


def _layer_records(layers: Sequence[Layer]) -> list[_LayerRecord]:
    return [_LayerRecord(round(layer.weight), layer.wants) for layer in layers]


def _load_of(r: _LoadRecord) -> Load:
    activity = None if r.activity is None else StorageActivity(*astuple(r.activity))
    return Load(activity, *astuple(r)[1:])


def _load_record(load: Load) -> _LoadRecord:
    a = load.activity
    told = _ActivityRecord.__struct_fields__
    activity = None if a is None else _ActivityRecord(*(getattr(a, name) for name in told))
    return _LoadRecord(activity, *load[1:])


def budget_of(key: str, raw: bytes) -> Budget | None:
    """Return a budget, or None if it was removed. Raises NewerSchema or FleetRefused."""
    r = decoded(BudgetRecord, key, raw)
    if r.amount is None:
        return None
    shared = None
    if r.shared:
        shared = Shared(r.shared.latency_target_ms, r.shared.least_ratio, r.shared.most_ratio)
    return Budget(r.amount, r.even_ratio, r.reservation, r.weight, shared)


def budget_value(budget: Budget | None) -> bytes:
    """Return a budget as a value; None: one that is removed."""
    if budget is None:
        return encoded(BudgetRecord(amount=None))
    amount, even_ratio, reservation, weight, shared = budget
    return encoded(
        BudgetRecord(
            amount=amount,
            even_ratio=even_ratio,
            reservation=reservation,
            weight=weight,
            shared=_SharedRecord(*shared) if shared is not None else msgspec.UNSET,
        )
    )


def _stamp_of(record: _StampRecord) -> Stamp:
    return Stamp(record.epoch, record.sequence)
