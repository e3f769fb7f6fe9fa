"""Corrects the capacity of a storage that many hosts share, by the latency that all of them see.

Each host measures its own drives: their rates, and their requests' latency without the throttle's
wait. The coordinator adds these loads up to that of the whole storage, and goes by the law of a
single host (core/correct/capacity.py). The budget to divide is then the corrected capacity, less
the rates of drives without a policy.

No host's word moves it alone, because a guest, its QEMU or the host itself may lie. The latency is
the weighted median of all hosts', as if each had the same mix. A host weighs by its requests, but
no more than its charge in the ledger lets through. Its strangers may take half of the storage.

A new coordinator goes on from the correction in the ledger. That is as old as the ledger's amount,
so both are within BAND_RATIO of the last coordinator's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import floor, inf
from typing import NamedTuple

from iokeel.core.correct.capacity import LONGEST_S, SEEN_MOST, feedback_after
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.ledger import HostName, Learnt, Ledger
from iokeel.core.measure.storage import weighted_median
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.state import Division, Feedback, StorageState
from iokeel.core.values.storage import Load, StorageActivity, StoragePolicy

#: How often hosts report their load, and how often the capacity is corrected: no single reading may
#: move it by more than so many seconds' worth.
LOAD_S = LONGEST_S
# A corrected capacity within this part of the ledger's amount is worth no change of limits.
BAND_RATIO = 0.02
# A storage counts as too small only once hosts have this part of it, because a new coordinator
# gives nothing for a term.
_GIVEN_RATIO = 0.9
# A host can't do more than this many times its charge, even if its QEMUs let some through for
# nothing, and its mean request costs no more than this. Beside others, its drives without a policy
# take this part of the capacity at most.
_MOST_COST = 1000.0
_STRANGERS_RATIO = 0.5


class Correction(NamedTuple):
    """What a coordinator knows of a storage's capacity.

    at_ns: when it was last corrected. loads: that were counted then, by host.
    """

    at_ns: int
    state: StorageState
    loads: Mapping[HostName, Load] = {}


def corrected(
    before: Correction | None,
    ledger: Ledger | None,
    claims: Mapping[HostName, HostClaim],
    policy: StoragePolicy,
    now_ns: int,
) -> Correction:
    """Return the correction after the loads that hosts have reported.

    before: None if this host hasn't coordinated it just now. claims: of hosts that report. If a
    load was counted before, its rates count again, but not its latency: the host may have died
    since. Nothing is counted before most hosts have told another one, or have had the time.
    """
    if before is None or before.state.policy != policy:
        return Correction(now_ns, _as_learnt(ledger, policy))
    elapsed_s = (now_ns - before.at_ns) / NS_PER_S
    if elapsed_s < LOAD_S:
        return before
    loads = {name: claim.load for name, claim in claims.items() if claim.load is not None}
    if loads and loads == before.loads:
        return before
    known = before.loads.items()
    fresh = sum((name, load) not in known for name, load in loads.items())
    if loads and 2 * fresh <= len(loads) and elapsed_s < 2 * LOAD_S:
        return before  # or the first host to speak would be the only one
    state = before.state
    load = together(
        [
            _bounded(
                load._replace(activity=None) if (name, load) in known else load,
                _most_done(name, ledger),
                policy.capacity if policy.capacity is not None and len(loads) > 1 else inf,
            )
            for name, load in loads.items()
        ],
        elapsed_s,
        policy.capacity or inf,
    )
    feedback = feedback_after(state, load)
    usable = _usable(policy, feedback, load)
    division = Division(usable=usable, short=load.short and _is_given(ledger, usable))
    after = StorageState(
        policy, activity=load.activity, feedback=feedback, division=division, load=load
    )
    return Correction(now_ns, after, loads)


def amount_of(now: Correction, ledger: Ledger | None, budget: Budget) -> tuple[int, Learnt | None]:
    """Return the amount to divide, and the correction by which it was made."""
    state = now.state
    usable = _usable(state.policy, state.feedback, state.load)
    if ledger is not None and ledger.learnt is not None:
        known = ledger.learnt
        is_near = abs(usable - ledger.amount) <= BAND_RATIO * ledger.amount
        if known.capacity == budget.amount and is_near:
            return ledger.amount, known
    return max(1, floor(usable)), Learnt(budget.amount, state.feedback.ratio)


def together(loads: Collection[Load], elapsed_s: float, capacity: float = inf) -> Load:
    """Return the load of a storage from those of the hosts that use it.

    elapsed_s: to now. capacity: for how long a larger request takes.
    """
    done = sum(load.done for load in loads)
    return Load(
        _activity(loads, elapsed_s, capacity),
        done,
        sum(load.strangers for load in loads),
        all(load.known for load in loads),
        sum(load.gifts for load in loads),
        all(load.drained for load in loads),
        _mean([(load.usable_part, load.done) for load in loads]) or 1.0,
        any(load.short for load in loads),
    )


def _most_done(name: HostName, ledger: Ledger | None) -> float:
    """Return the most that a host's drives with a policy can have done."""
    if ledger is None:
        return inf
    entry = ledger.entries.get(name)
    return 0.0 if entry is None else SEEN_MOST * entry.charged


def _bounded(load: Load, done: float, capacity: float) -> Load:
    """Return what a host reports, within what it can have done. capacity: shared with others."""
    activity = load.activity
    if activity is not None:
        cost, served = activity.mean_cost, activity.served_cost
        activity = replace(
            activity,
            raw_iops=min(activity.raw_iops, done),
            mean_cost=None if cost is None else min(cost, _MOST_COST),
            served_cost=None if served is None else min(served, _MOST_COST),
        )
    return load._replace(
        activity=activity,
        done=min(load.done, done),
        strangers=min(load.strangers, _STRANGERS_RATIO * capacity),
    )


def _activity(loads: Collection[Load], elapsed_s: float, capacity: float) -> StorageActivity | None:
    seen = [(load.activity, load.done) for load in loads if load.activity is not None]
    if not seen:
        return None
    mean_cost = _mean([(activity.mean_cost, activity.raw_iops) for activity, _ in seen])
    latencies = []
    for activity, _ in seen:
        if (latency_s := activity.latency_s) is not None:
            if mean_cost is not None and activity.mean_cost is not None:
                latency_s += (mean_cost - activity.mean_cost) / capacity
            latencies.append((max(0.0, latency_s), activity.raw_iops))
    return StorageActivity(
        elapsed_s,
        sum(activity.raw_iops for activity, _ in seen),
        weighted_median(latencies),
        min(1.0, sum(activity.busy_ratio for activity, _ in seen)),
        sum(activity.queue for activity, _ in seen),
        mean_cost,
        _mean([(activity.served_cost, done) for activity, done in seen]),
    )


def _mean(values: Collection[tuple[float | None, float]]) -> float | None:
    """Return the mean of values that are known, by their weights; None if there is none."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _usable(policy: StoragePolicy, feedback: Feedback, load: Load) -> float:
    assert policy.capacity is not None
    return max(0.0, policy.capacity * feedback.ratio - load.strangers)


def _is_given(ledger: Ledger | None, usable: float) -> bool:
    """Return whether hosts may use about all of a storage already, so that more is of use."""
    return ledger is None or ledger.charged >= _GIVEN_RATIO * usable


def _as_learnt(ledger: Ledger | None, policy: StoragePolicy) -> StorageState:
    """Return a storage by the ledger's correction.

    It is uncorrected if its set capacity has changed, or if it has no latency target any more.
    """
    capacity, ratio, strangers = policy.capacity or 0, 1.0, 0.0
    if ledger is not None and ledger.learnt is not None and ledger.learnt.capacity == capacity:
        learnt = min(policy.most_ratio, max(policy.least_ratio, ledger.learnt.ratio))
        strangers = max(0.0, capacity * learnt - ledger.amount)
        if policy.latency_target_ms is not None:
            ratio = learnt
    return StorageState(
        policy,
        feedback=Feedback(ratio=ratio),
        division=Division(usable=capacity * ratio - strangers),
        load=Load(strangers=strangers),
    )
