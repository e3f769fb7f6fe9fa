"""Makes the limits that an agent leaves behind when it stops.

Nobody divides or retunes anything then, maybe for seconds, maybe for good. So every promise has to
hold by the drives' limits alone, and the next agent finds each drive about where it was. A drive is
left at the lowest of

- its policy's limit: a burst is over;
- its parts of the limits over several drives (divide/pool.py), or what it is held to if that is
  less;
- its share of its storage.

Its limits are for no mix of requests then, so that no size gets more (pricing.py). If its
share isn't known yet, it gets no more than it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import floor, inf

from iokeel.core.correct.headroom import split_size_of
from iokeel.core.enforce.bounds import bytes_alone
from iokeel.core.enforce.envelope import OVERSHOOT_RATIO
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.enforce.pricing import static_limits
from iokeel.core.values.claimant import budgets, own_most
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.observation import Reason, SetLimits
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import NOT_DIVIDED, DriveState, State


def static_orders(
    state: State, drives: Iterable[DriveId]
) -> tuple[list[SetLimits], dict[str, Exception]]:
    """Return the orders that leave some drives at their static limits.

    drives: of those in the state. Returns errors of the law as well, by domain: all drives of such
    a VM keep the limits that they have.
    """
    failures: dict[str, Exception] = {}
    most = _parts(state, failures)
    orders = []
    for drive in drives:
        known = state.drives[drive]
        if known.policy is not None and known.sent.limits is not None:
            try:
                limits = _limits(state, known, most.get(drive, inf))
            except Exception as error:
                failures[drive.domain] = error
            else:
                if limits is not None:
                    orders.append(SetLimits(drive, limits, Reason.STOPPING))
    return [order for order in orders if order.drive.domain not in failures], failures


def _parts(state: State, failures: dict[str, Exception]) -> dict[DriveId, float]:
    """Return what drives may do by the limits over several of them, over both budgets.

    It is their part of each, without a burst, and no more than they are held to now: nobody would
    hear of a raise. Drives whose parts aren't known, or add up to too much, have equal ones.
    """
    pools: dict[tuple[str, str], list[tuple[DriveId, int, int | None]]] = defaultdict(list)
    most: dict[DriveId, float] = {}
    for drive, known in state.drives.items():
        if known.policy is None:
            continue
        if known.vm is not None and (limit := known.vm.policy.limit) is not None:
            pools["vm", drive.domain].append((drive, limit, known.vm.sustained))
        promise = state.tenants.get(known.tenant or "")
        if promise is not None and promise.limit is not None:
            part = None if known.part is None else known.part.most
            pools["tenant", known.tenant or ""].append((drive, promise.limit, part))
        if known.parts:
            held = (known.part, known.storage_part)
            rates = [part.most for part in held if part is not None]
            most[drive] = min([*rates, inf if known.held is None else known.held])
    for members in pools.values():
        try:
            limit = min(limit for _, limit, _ in members)
            parts = [part for _, _, part in members if part is not None]
            if len(parts) < len(members) or sum(parts) > limit:
                parts = [limit // len(members)] * len(members)
            for (drive, _, _), each in zip(members, parts, strict=True):
                most[drive] = min(most.get(drive, inf), each)
        except Exception as error:
            failures |= {drive.domain: error for drive, _, _ in members}
    return most


def _limits(state: State, known: DriveState, part: float) -> ThrottleLimits | None:
    """Return a drive's static limits; None if nothing limits it, or nobody has limited it.

    part: see `_parts`.
    """
    policy, share, limits = _policy(known), known.share, known.sent.limits
    storage = state.storages.get(known.storage or "")
    model = state.model if storage is None else storage.policy.model or state.model
    most = min(own_most(policy, policy.limit), part)
    rates: list[float] = [most if most == inf else floor(most / budgets(policy))]
    if share is NOT_DIVIDED and known.pricing.rate is not None:
        rates.append(known.pricing.rate)
    elif share is NOT_DIVIDED:
        if limits is None:
            return None
        if (1 + OVERSHOOT_RATIO) * rate_in_force(limits, model) <= most:
            # Again, because the last order may not have been carried out.
            return limits._replace(max_in_flight=None, latency=False)
    elif share is not None:
        rates.append(known.each_of(share.most))
    rate = max(1.0, min(rates))
    if rate == inf:
        alone = bytes_alone(policy)
        return None if alone.unlimited else alone
    split_size = split_size_of(policy, known.abilities, model, storage)
    return static_limits(known.abilities, policy, model, split_size, rate)


def _policy(known: DriveState) -> DrivePolicy:
    return known.policy or DrivePolicy()
