"""Divides a tenant's allowance on this host, as the fleet grants it, among its drives.

A tenant's limit on one host is divided into shares: a drive that wakes up may use its own at once,
and the others' are lowered a tick later (allocate.py). In the fleet that isn't good enough, because
the QEMUs of all hosts together must never be held to more than the tenant's limit. So each drive
has a *part*, as of a VM's limit (vm_limit.py), and the same steps as between hosts keep the sum:

- *held* is the highest rate in force or on its way, even if a lower one has been decided since. A
  drive that can't be read still counts;
- a smaller part takes effect at once. A larger one waits until other drives' limits have made room
  for it.

While the grant isn't known yet, as after a start, every drive keeps what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, fsum, inf

from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.drive.in_force import rate_in_force
from iokeel.core.observation import DriveSeen, Observation
from iokeel.core.orders import SetLimits
from iokeel.core.policy import DrivePolicy, TenantPolicy
from iokeel.core.sharing.claimant import budgets, claimant_of, next_step
from iokeel.core.sharing.divide import Claim, divide
from iokeel.core.sharing.vm_limit import Wish, divided, still_fit, with_spare
from iokeel.core.state import DriveState, FleetPart, Share, State


def with_granted(
    configured: Mapping[str, TenantPolicy], granted: Mapping[str, TenantPolicy]
) -> Mapping[str, TenantPolicy]:
    """Return tenants' policies here: of the configured and the granted limit, the lower one."""
    if not granted:
        return configured
    tenants = dict(configured)
    for name, grant in granted.items():
        own = configured.get(name)
        if own is None:
            tenants[name] = grant
            continue
        limits = [limit for limit in (own.limit, grant.limit) if limit is not None]
        reservation = max(own.reservation, grant.reservation)
        tenants[name] = replace(own, limit=min(limits, default=None), reservation=reservation)
    return tenants


def with_tenant_parts(
    drives: Mapping[DriveId, DriveState],
    seen: Observation,
    policies: Mapping[str, TenantPolicy],
    models: Mapping[str | None, CostModel],
) -> dict[DriveId, DriveState]:
    """Return all known drives, with their parts of their tenants' grants.

    drives: with the tick's rates and parts of VMs' limits, those that are seen. policies: tenants',
    from with_granted.
    """
    after, granted = dict(drives), seen.granted
    tenants: dict[str, list[DriveId]] = {}
    for drive, known in drives.items():
        if known.policy is not None and known.tenant is not None and known.tenant in granted:
            tenants.setdefault(known.tenant, []).append(drive)
        elif known.part is not None:
            after[drive] = known._replace(part=None)
    for tenant, there in tenants.items():
        states = [drives[drive] for drive in there]
        held = [
            held_by(known, seen.drives.get(drive), models[known.storage])
            for drive, known in zip(there, states, strict=True)
        ]
        limit = policies[tenant].limit
        if limit is None or granted[tenant].limit is None:
            parts = kept(states, held)
        else:
            before = [known.part for known in states]
            parts = parts_of(limit, before, states, held, _wishes(limit, states))
        for drive, known, part in zip(there, states, parts, strict=True):
            after[drive] = known._replace(part=part)
    return after


def with_outcome(state: State, order: SetLimits) -> State:
    """Return the state once QEMU has said that limits are in force, unless others were sent since.

    Freed rate can then be used before the next look. order: the last one that was on its way to its
    drive.
    """
    known = state.drives.get(order.drive)
    if known is None or held_in(known) is None or known.sent.limits != order.limits:
        return state
    if (ours := rate_of_ours(known)) is None:
        return state
    after = _with_held(known, ours)
    return replace(state, drives={**state.drives, order.drive: after})


def with_order(after: DriveState) -> DriveState:
    """Return a drive's state after an order: it may be held to the old or the new limits."""
    held = held_in(after)
    if held is None:
        return after
    ours = rate_of_ours(after)
    return _with_held(after, max(held, inf if ours is None else ours))


def held_in(known: DriveState) -> float | None:
    """Return the held rate in a drive's parts, or None if it has no part.

    It is the same in both parts.
    """
    part = known.part if known.part is not None else known.storage_part
    return None if part is None else part.held


def _with_held(known: DriveState, held: float) -> DriveState:
    part, storage_part = known.part, known.storage_part
    return known._replace(
        part=None if part is None else part._replace(held=held),
        storage_part=None if storage_part is None else storage_part._replace(held=held),
    )


def held_by(known: DriveState, seen: DriveSeen | None, model: CostModel) -> float:
    """Return the most that a drive's QEMU may be held to now, over both budgets."""
    sent, ours = known.sent, rate_of_ours(known)
    in_force = None if seen is None else seen.in_force
    if in_force is None:
        if (held := held_in(known)) is not None:
            return held
        # The last orders may not have been carried out.
        return max((rate_in_force(limits, model) for limits in sent.ours), default=inf)
    if ours is None and known.abilities is None and sent.limits is not None:
        # An earlier agent's may still be in force, with a curve that libvirt doesn't tell.
        return max(rate_in_force(limits, model) for limits in (in_force, *sent.ours))
    if ours is None:
        return rate_in_force(in_force, model)
    # Until the last order is seen in force, it may be on its way.
    return ours if in_force == sent.limits else max(ours, rate_in_force(in_force, model))


def rate_of_ours(known: DriveState) -> float | None:
    """Return the rate of a drive's last order, over both budgets; None if that isn't known.

    It has the budgets of the policy that it was made for, which may be another one now.
    """
    rate, limits = known.pricing.rate, known.sent.limits
    return None if rate is None or limits is None else rate * limits.budgets


def kept(states: Sequence[DriveState], held: Sequence[float]) -> list[FleetPart]:
    """Return the parts of drives that keep what they have."""
    parts = []
    for known, now in zip(states, held, strict=True):
        most = max(_budgets(known), 0 if now == inf else ceil(now))
        parts.append(FleetPart(most, most, now))
    return parts


def parts_of(
    limit: int,
    before: Sequence[FleetPart | None],
    states: Sequence[DriveState],
    held: Sequence[float],
    wishes: Sequence[Wish],
) -> list[FleetPart]:
    """Return the parts of a limit after a tick, and how much of them may be in force."""
    parts, least = divided(limit, wishes)
    old_parts = [None if part is None else part.part for part in before]
    if still_fit(limit, old_parts, parts, least):
        parts = [part for part in old_parts if part is not None]
    # Any part lowers a drive that has no limits yet; it counts as one to raise from 0.
    base = [0.0 if now == inf else now for now in held]
    wanted = [max(0.0, part - now) for part, now in zip(parts, base, strict=True)]
    more = divide(
        max(0.0, limit - fsum(base)),
        [Claim(0, max(1, p), w) for p, w in zip(parts, wanted, strict=True)],
    )
    return [
        FleetPart(part, max(_budgets(known), floor(min(part, old + extra))), now)
        for known, part, old, extra, now in zip(
            states, parts, base, more.amounts, held, strict=True
        )
    ]


def _wishes(limit: int, states: Sequence[DriveState]) -> list[Wish]:
    wishes = []
    for known in states:
        policy = known.policy or DrivePolicy()
        most, wants = most_and_wants(known, policy)
        wishes.append(Wish(policy, next_step(known, policy, wants), most))
    return with_spare(limit, wishes)


def most_and_wants(known: DriveState, policy: DrivePolicy) -> tuple[float, float]:
    """Return the most that a drive may do but for its tenant, and its demand within that."""
    claimant = claimant_of(DriveId("", ""), known, policy)
    wants = claimant.wants
    share = known.share
    if isinstance(share, Share) and share.storage is not None:  # more would be of no use
        wants = min(wants, share.most)
    return claimant.most, wants


def _budgets(known: DriveState) -> int:
    return 1 if known.policy is None else budgets(known.policy)
