"""The fleet's values in etcd, as JSON. Each has its schema's version.

A value that is not as it should be ends nothing: the host doesn't go by it, keeps what it knows,
and says so.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from iokeel.core.fleet.claims import EVEN_RATIO, Budget, HostClaim
from iokeel.core.fleet.ledger import Entry, Ledger, Span, Stamp, Word
from iokeel.core.policy import MOST_IOPS, MOST_WEIGHT
from iokeel.errors import FleetRefused, NewerSchema
from iokeel.words.quoting import shown

#: The version of all schemas. A change that an older agent would misread takes the next one.
VERSION = 1

# Above any figure that may be set, because what is in force may be more.
_MOST = 2**53
_Iops = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """A value. v: its schema's version."""

    v: int = VERSION


class Format(Record):
    """What the prefix holds."""

    holds: str = "iokeel fleet"


class HostRecord(Record, kw_only=True):
    """A host that is there."""

    instance: _Name


class LeaderRecord(Record, kw_only=True):
    """The coordinator of a budget."""

    host: _Name


class BudgetRecord(Record, kw_only=True):
    """A budget as an operator has set it. amount: None if it was removed on purpose."""

    amount: Annotated[int, msgspec.Meta(ge=1, le=MOST_IOPS)] | None
    even_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = EVEN_RATIO
    reservation: Annotated[int, msgspec.Meta(ge=0, le=MOST_IOPS)] = 0
    weight: Annotated[int, msgspec.Meta(ge=1, le=MOST_WEIGHT)] = 100


class ChangeRecord(Record, kw_only=True):
    """A change that an operator made. at: by the operator's wall clock, ISO 8601."""

    at: _Text
    by: _Text
    what: _Text


class _StampRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    epoch: _Name
    sequence: _Number


class ClaimRecord(Record, kw_only=True):
    """A host's claim."""

    instance: _Name
    reservation: _Iops
    weight: Annotated[int, msgspec.Meta(ge=1, le=MOST_WEIGHT * 10_000)]
    wants: _Iops
    most: _Iops
    held: _Iops
    applied: _StampRecord | None = None


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
    first: _Number
    last: _Number


class LedgerRecord(Record, kw_only=True):
    """A budget's ledger."""

    amount: _Iops
    spans: Annotated[list[_SpanRecord], msgspec.Meta(min_length=1)]
    hosts: dict[str, _EntryRecord]
    before: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Version(msgspec.Struct):
    v: int


T = TypeVar("T", bound=Record)
_VERSION = msgspec.json.Decoder(_Version)


def decoded(kind: type[T], key: str, raw: bytes) -> T:
    """Return a value as a record. Raises NewerSchema or FleetRefused."""
    try:
        version = _VERSION.decode(raw).v
        if version > VERSION:
            raise NewerSchema(
                f"etcd {key}",
                f"was written by a newer iokeel, schema {version}",
                f"upgrade this agent, which knows schema {VERSION}",
            )
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FleetRefused(
            f"etcd {key}",
            f"isn't what iokeel has written there: {shown(str(error))}",
            "see what else writes below [fleet] prefix",
        ) from None


def encoded(record: Record) -> bytes:
    """Return a record as a value."""
    return msgspec.json.encode(record)


def ledger_of(key: str, raw: bytes) -> Ledger:
    """Return a ledger. Raises NewerSchema or FleetRefused."""
    record = decoded(LedgerRecord, key, raw)
    entries = {
        name: Entry(e.instance, e.floor, e.amount, e.charged, e.lasting, _stamp_of(e.stamp), e.word)
        for name, e in record.hosts.items()
    }
    spans = tuple(Span(s.epoch, s.first, s.last) for s in record.spans)
    if any(not e.floor <= e.amount <= e.charged >= e.lasting for e in entries.values()) or any(
        not span.first <= span.last <= spans[-1].last for span in spans
    ):
        raise FleetRefused(
            f"etcd {key}",
            "has figures that contradict each other",
            "see what else writes below [fleet] prefix",
        )
    return Ledger(record.amount, spans, entries, record.before)


def ledger_value(ledger: Ledger) -> bytes:
    """Return a ledger as a value."""
    hosts = {
        name: _EntryRecord(
            e.instance, e.floor, e.amount, e.charged, e.lasting, _StampRecord(*e.stamp), e.word
        )
        for name, e in ledger.entries.items()
    }
    spans = [_SpanRecord(*span) for span in ledger.spans]
    return encoded(
        LedgerRecord(amount=ledger.amount, spans=spans, hosts=hosts, before=ledger.before)
    )


def stamp_value(ledger: Ledger) -> bytes:
    """Return a ledger's stamp as a value: two ledgers with one stamp are the same."""
    return msgspec.json.encode(ledger.stamp)


def claim_of(key: str, raw: bytes) -> HostClaim:
    """Return a claim. Raises NewerSchema or FleetRefused."""
    r = decoded(ClaimRecord, key, raw)
    applied = _stamp_of(r.applied) if r.applied is not None else None
    return HostClaim(r.instance, r.reservation, r.weight, r.wants, r.most, r.held, applied)


def claim_value(claim: HostClaim) -> bytes:
    """Return a claim as a value."""
    applied = _StampRecord(*claim.applied) if claim.applied is not None else None
    return encoded(
        ClaimRecord(
            instance=claim.instance,
            reservation=claim.reservation,
            weight=claim.weight,
            wants=claim.wants,
            most=claim.most,
            held=claim.held,
            applied=applied,
        )
    )


def budget_of(key: str, raw: bytes) -> Budget | None:
    """Return a budget, or None if it was removed. Raises NewerSchema or FleetRefused."""
    r = decoded(BudgetRecord, key, raw)
    return None if r.amount is None else Budget(r.amount, r.even_ratio, r.reservation, r.weight)


def budget_value(budget: Budget | None) -> bytes:
    """Return a budget as a value; None: one that is removed."""
    if budget is None:
        return encoded(BudgetRecord(amount=None))
    amount, even_ratio, reservation, weight = budget
    return encoded(
        BudgetRecord(amount=amount, even_ratio=even_ratio, reservation=reservation, weight=weight)
    )


def _stamp_of(record: _StampRecord) -> Stamp:
    return Stamp(record.epoch, record.sequence)
