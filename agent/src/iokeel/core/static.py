"""Makes the limits that an agent leaves behind when it stops.

Nobody divides or retunes anything then, maybe for seconds, maybe for good. So every promise has to
hold by the drives' limits alone, and the next agent finds each drive about where it was. A drive is
left at the lowest of

- its policy's limit: a burst is over;
- its part of its VM's limit (sharing/vm_limit.py);
- its part of its tenant's limit, which is divided in the same way for this: parts follow demand,
  and add up to no more than the limit;
- its share of its storage;
- what the fleet lets it do, or what it is held to if that is less.

Its limits are for no mix of requests then, so that no size gets more (drive/pricing.py). If its
share isn't known yet, it gets no more than it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, inf

from iokeel.core.counters import DriveId
from iokeel.core.drive.envelope import OVERSHOOT_RATIO
from iokeel.core.drive.in_force import rate_in_force
from iokeel.core.drive.pricing import static_limits
from iokeel.core.limits import ThrottleLimits
from iokeel.core.orders import Reason, SetLimits
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.claimant import budgets, own_most, own_wants
from iokeel.core.sharing.headroom import split_size_of
from iokeel.core.sharing.vm_limit import Wish, divided, with_spare
from iokeel.core.state import NOT_DIVIDED, DriveState, State

Drives = Mapping[DriveId, DriveState]


def static_orders(
    state: State, drives: Iterable[DriveId]
) -> tuple[list[SetLimits], dict[str, Exception]]:
    """Return the orders that leave some drives at their static limits.

    drives: of those in the state. Returns errors of the law as well, by domain: all drives of such
    a VM keep the limits that they have.
    """
    failures: dict[str, Exception] = {}
    most = _most(state, failures)
    orders = []
    for drive in drives:
        known = state.drives[drive]
        if drive in most and known.sent.limits is not None:
            try:
                limits = _limits(state, known, most[drive])
            except Exception as error:
                failures[drive.domain] = error
            else:
                if limits is not None:
                    orders.append(SetLimits(drive, limits, Reason.STOPPING))
    return [order for order in orders if order.drive.domain not in failures], failures


def _most(state: State, failures: dict[str, Exception]) -> dict[DriveId, float]:
    """Return the most that drives may do by their own, their VMs' and their tenants' limits.

    Over both budgets, if reads and writes have one each; inf if none of the three limits them.
    """
    vms: dict[str, dict[DriveId, DriveState]] = {}
    for drive, known in state.drives.items():
        if known.policy is not None:
            vms.setdefault(drive.domain, {})[drive] = known
    most: dict[DriveId, float] = {}
    tenants: dict[str, dict[DriveId, DriveState]] = {}
    for domain, there in vms.items():
        try:
            most |= _most_in_vm(there)
        except Exception as error:
            failures[domain] = error
            continue
        for drive, known in there.items():
            if known.tenant is not None and known.part is None:  # else the fleet divides it
                tenants.setdefault(known.tenant, {})[drive] = known
    for tenant, there in tenants.items():
        promise = state.tenants.get(tenant)
        if promise is not None and promise.limit is not None:
            try:
                most |= _parts(promise.limit, there, most)
            except Exception as error:
                failures |= {drive.domain: error for drive in there}
    return most


def _most_in_vm(drives: Drives) -> dict[DriveId, float]:
    """Return the most that each drive of a VM may do by its own and the VM's limit."""
    most = {drive: own_most(_policy(k), _policy(k).limit) for drive, k in drives.items()}
    limits = [k.vm.policy.limit for k in drives.values() if k.vm and k.vm.policy.limit is not None]
    if not limits:
        return most
    limit = min(limits)
    parts = [k.vm.sustained for k in drives.values() if k.vm and k.vm.sustained is not None]
    if len(parts) < len(drives) or sum(parts) > limit:
        return _parts(limit, drives, most)
    return {drive: min(own, part) for (drive, own), part in zip(most.items(), parts, strict=True)}


def _parts(limit: int, drives: Drives, most: Mapping[DriveId, float]) -> dict[DriveId, float]:
    """Divide a limit among drives by what they demand of the most that they may do."""
    wishes = [
        Wish(_policy(known), own_wants(known, _policy(known), most[drive]), most[drive])
        for drive, known in drives.items()
    ]
    parts, _ = divided(limit, with_spare(limit, wishes))
    return {drive: min(most[drive], part) for drive, part in zip(drives, parts, strict=True)}


def _limits(state: State, known: DriveState, most: float) -> ThrottleLimits | None:
    """Return a drive's static limits; None if nothing limits it, or nobody has limited it."""
    policy, share, limits = _policy(known), known.share, known.sent.limits
    storage = state.storages.get(known.storage or "")
    model = state.model if storage is None else storage.policy.model or state.model
    rates: list[float] = [most if most == inf else floor(most / budgets(policy))]
    if share is NOT_DIVIDED and known.pricing.rate is not None:
        rates.append(known.pricing.rate)
    elif share is NOT_DIVIDED:
        if limits is None:
            return None
        if (1 + OVERSHOOT_RATIO) * rate_in_force(limits, model) <= most:
            # Again, because the last order may not have been carried out.
            return limits._replace(max_in_flight=None, latency=False)
    elif share is not None and share.storage is not None:
        rates.append(known.each_of_share(share))
    for part in (known.part, known.storage_part):
        if part is not None:  # what it has now: nobody would hear of a raise
            rates.append(known.each_budget(floor(min(part.most, part.held))))
    rate = max(1.0, min(rates))
    if rate == inf:
        return None
    split_size = split_size_of(policy, known.abilities, model, storage)
    return static_limits(known.abilities, policy, model, split_size, rate)


def _policy(known: DriveState) -> DrivePolicy:
    return known.policy or DrivePolicy()
