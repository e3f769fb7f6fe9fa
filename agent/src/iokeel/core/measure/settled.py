"""Tells which drives need no look, because it would find what the last one found.

A drive that has been idle for SETTLED_S, and that a look has left as it was, is *settled*. Each
rule that waits for a time (retune.py, in_flight.py, zeroes.py, burst.py) waits for less than that,
from when the drive went idle or from its last order. Credit that still
grows, or demand that still counts, changes its state, so it isn't settled yet. Its next look is
the same as the last one if what is seen of it and what the division gives it are. Then both that
and its measurements are left out. It takes part in the division all the same.

A drive with a latency target, or on a storage with one, is always looked at: how it is timed
depends on what others do.
"""

from __future__ import annotations

from typing import Final

from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.curve import CostModel
from iokeel.core.values.observation import DriveSeen
from iokeel.core.values.state import DriveState, NotDivided, Settled, Share, StorageState

SETTLED_S = 20
_SETTLED_NS: Final = SETTLED_S * NS_PER_S


def tells_nothing_new(last: Settled, before: DriveState, was: DriveSeen, now: DriveSeen) -> bool:
    """Return whether what is seen of a settled drive is what was seen at the last look.

    before: its state, which others than a look may have changed since.
    """
    then, reading = was.counters, now.counters
    if before is not last.known or then is None or reading is None:
        return False
    if now[2:] != was[2:] or now.policy != was.policy:
        return False
    earlier, later = then.throttle, reading.throttle
    if earlier is None or later is None:
        return reading[1:] == then[1:]
    same_group = later[1:] == earlier[1:]
    return same_group and reading[1:7] == then[1:7] and reading[8:] == then[8:]


def woken(last: Settled, before: DriveState, was: DriveSeen | None) -> DriveState:
    """Return the state of a drive that isn't settled any more, with the last reading that was seen.

    That is what its next reading is compared with, and not the one from before it had settled.
    """
    if was is None or was.counters is None or before.measured is not last.known.measured:
        return before
    return before._replace(measured=before.measured._replace(counters=was.counters))


def has_settled(
    before: DriveState,
    known: DriveState,
    storage: StorageState | None,
    now_ns: int,
) -> bool:
    """Return whether a look without an order has left a drive as it was, and so will the next.

    before: at the look before. known: after this one.
    """
    was, did = before.measured, known.measured
    idle_ns = did.idle_ns
    if idle_ns is None or now_ns - idle_ns < _SETTLED_NS:
        return False
    if now_ns - known.sent.at_ns < _SETTLED_NS or did.rate != 0 or was.rate != 0:
        return False
    if has_target(known, storage) or did[3:] != was[3:]:
        return False
    return known[:4] == before[:4] and known[5:] == before[5:]


def has_target(known: DriveState, storage: StorageState | None) -> bool:
    """Return whether a drive or its storage has a latency target."""
    policy = known.policy
    if policy is not None and policy.latency_target_ms is not None:
        return True
    return storage is not None and storage.policy.latency_target_ms is not None


def is_unmoved(
    last: Settled,
    known: DriveState,
    share: Share | NotDivided | None,
    model: CostModel,
    split_size: int | None,
    storage: StorageState | None,
) -> bool:
    """Return whether the division has left a settled drive as it was, so that it needs no look.

    known: after the division.
    """
    return (
        (known is last.known or known == last.known)
        and (share is known.share or share == known.share)
        and model is last.model
        and split_size == last.split_size
        and not has_target(known, storage)
    )
