"""Gives drives their parts of the limits over several of them (pool.py).

A VM's limit comes first, because a part of it bounds what a drive may have of its tenant's. What
the fleet grants on a storage comes after the storage's division, which says what each drive gets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, fsum, inf
from typing import NamedTuple

from iokeel.core.divide.held import held_by
from iokeel.core.divide.pool import Wish, kept, parts_of, whole_parts, with_spare
from iokeel.core.measure.burst import NO_CREDIT, credit_after
from iokeel.core.values.claimant import claimant_of, next_step, own_most, own_wants
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import CostModel
from iokeel.core.values.observation import Observation
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import Credit, DriveState, Part, Share, StorageState, VmPart

Drives = Mapping[DriveId, DriveState]


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


def limits_of(
    tenants: Mapping[str, TenantPolicy], granted: Mapping[str, TenantPolicy]
) -> Mapping[str, int | None]:
    """Return the limits that tenants have here; None for one that isn't known yet.

    tenants: from with_granted.
    """
    limits = {name: tenant.limit for name, tenant in tenants.items() if tenant.limit is not None}
    return limits | {name: None for name, grant in granted.items() if grant.limit is None}


def with_held(
    drives: Drives,
    seen: Observation,
    limits: Mapping[str, int | None],
    models: Mapping[str | None, CostModel],
    aside: Collection[DriveId],
) -> Drives:
    """Return drives with what they are held to, for those in a pool, and no parts of any other.

    drives: all that are known, with the tick's rates. limits: from limits_of. aside: those on which
    the law fails; they keep what they have.
    """
    after: dict[DriveId, DriveState] = {}
    for drive, known in drives.items():
        if drive in aside:
            if known.held is None and known.is_held:
                after[drive] = known._replace(held=held_by(known, None, models[known.storage]))
            continue
        has_vm = _has_limit(known.vm)
        has_tenant = known.tenant is not None and known.tenant in limits
        has_storage = known.storage is not None and known.storage in seen.granted_storages
        if known.policy is not None and (has_vm or has_tenant or has_storage):
            after[drive] = known._replace(
                held=held_by(known, seen.drives.get(drive), models[known.storage]),
                part=known.part if has_tenant else None,
                storage_part=known.storage_part if has_storage else None,
            )
        elif known.held is not None:
            after[drive] = known._replace(held=None, part=None, storage_part=None)
    return {**drives, **after} if after else drives


def with_vm_parts(
    drives: Drives, seen: Collection[DriveId], aside: Collection[DriveId], *, anew: bool = True
) -> Drives:
    """Return drives with their VMs' credit, and their parts of their VMs' limits.

    drives: from with_held. seen: those that were read. aside: those on which the law fails. anew:
    see pool.py.
    """
    after: dict[DriveId, DriveState] = {}
    for pool in _pools(
        drives,
        aside,
        lambda drive, known: drive.domain if drive in aside or _has_limit(known.vm) else None,
    ):
        read = [drives[drive] for drive in pool.drives if drive in seen]
        if read:
            vm = _vm(read, complete=pool.is_whole and len(read) == len(pool.drives))
            states = _with_parts_of_vm(pool, vm, anew=anew)
            after.update(zip(pool.drives, states, strict=True))
    return {**drives, **after} if after else drives


def with_tenant_parts(
    drives: Drives,
    limits: Mapping[str, int | None],
    granted: Collection[str],
    aside: Collection[DriveId],
    *,
    anew: bool = True,
) -> Drives:
    """Return drives with their parts of their tenants' limits.

    drives: with their parts of VMs' limits. limits: from limits_of. granted: tenants of the fleet.
    aside, anew: as for with_vm_parts.
    """
    after: dict[DriveId, DriveState] = {}
    for pool in _pools(
        drives, aside, lambda _, known: known.tenant if known.tenant in limits else None
    ):
        wishes, strict = [*map(_wish_of_tenant, pool.states)], pool.name in granted
        before = [known.part for known in pool.states]
        used = pool if strict else pool._replace(states=[*map(_as_used, pool.states)])
        parts = _parts(limits[pool.name], used, wishes, before, anew=anew, strict=strict)
        for drive, known, part in zip(pool.drives, pool.states, parts, strict=True):
            after[drive] = known._replace(part=part._replace(halved=strict))
    return {**drives, **after} if after else drives


def with_storage_parts(
    drives: Drives,
    granted: Mapping[str, int | None],
    storages: Mapping[str, StorageState],
    aside: Collection[DriveId],
    *,
    anew: bool = True,
) -> Drives:
    """Return drives with their parts of what the fleet grants on their storages.

    drives: with their parts of tenants' limits. granted: None for a grant that isn't known.
    storages: with their last divisions. aside, anew: as for with_vm_parts.
    """
    after: dict[DriveId, DriveState] = {}
    for pool in _pools(
        drives, aside, lambda _, known: known.storage if known.storage in granted else None
    ):
        storage = storages.get(pool.name)
        amounts: Mapping[DriveId, float] = {} if storage is None else storage.amounts
        wishes = [
            _wish_of_storage(known, amounts.get(drive, 0.0))
            for drive, known in zip(pool.drives, pool.states, strict=True)
        ]
        before = [known.storage_part for known in pool.states]
        parts = _parts(granted[pool.name], pool, wishes, before, anew=anew, spare=False)
        for drive, known, part in zip(pool.drives, pool.states, parts, strict=True):
            after[drive] = known._replace(storage_part=part)
    return {**drives, **after} if after else drives


class _Pool(NamedTuple):
    """The drives that have a limit together. others: what those are held to that are set aside.

    is_whole: there are none of these.
    """

    name: str
    drives: Sequence[DriveId]
    states: Sequence[DriveState]
    others: float
    is_whole: bool


def _pools(
    drives: Drives,
    aside: Collection[DriveId],
    name_of: Callable[[DriveId, DriveState], str | None],
) -> Iterator[_Pool]:
    """Yield the pools of one kind. name_of: returns the name of a drive's pool; None without."""
    members: dict[str, list[DriveId]] = defaultdict(list)
    for drive, known in drives.items():
        if known.held is not None and (name := name_of(drive, known)) is not None:
            members[name].append(drive)
    for name, there in members.items():
        fine = [drive for drive in there if drive not in aside]
        out = [drives[drive] for drive in there if drive in aside]
        others = fsum(known.held for known in out if known.held is not None and known.is_held)
        yield _Pool(name, fine, [drives[drive] for drive in fine], others, not out)


def _has_limit(vm: VmPart | None) -> bool:
    return vm is not None and vm.policy.limit is not None


def _parts(
    limit: int | None,
    pool: _Pool,
    wishes: Sequence[Wish],
    before: Sequence[Part | None],
    *,
    anew: bool,
    spare: bool = True,
    strict: bool = True,
) -> list[Part]:
    """Return the parts of a pool's drives; those that they have of a limit that isn't known."""
    held = [inf if known.held is None else known.held for known in pool.states]
    if limit is None:
        return kept([wish.policy for wish in wishes], held)
    if not wishes:
        return []
    return parts_of(limit, wishes, held, before, pool.others, anew=anew, spare=spare, strict=strict)


def _as_used(known: DriveState) -> DriveState:
    """Return a drive as held to what its reads and writes can do together in their proportion."""
    if known.held is None or known.policy is None or not known.policy.separate_budgets:
        return known
    return known._replace(held=known.held / (2 * known.each_of(1.0, 0.0)))


def _vm(drives: Sequence[DriveState], *, complete: bool) -> VmPart:
    """Return the strictest policy of a VM that its drives know, with its credit after a tick.

    drives: those that were read. complete: these are all drives of the VM. If not, its rate may be
    higher than their sum, so that credit is spent and not earned.
    """
    before = [known.vm for known in drives if known.vm is not None]
    tightest = min(before, key=lambda part: part.policy.limit or inf)
    credit = min((part.credit for part in before if part.part is not None), default=NO_CREDIT)
    return tightest._replace(credit=_credit(drives, credit, tightest.policy, complete=complete))


def _credit(
    drives: Sequence[DriveState], credit: Credit, policy: VmPolicy, *, complete: bool
) -> Credit:
    rates = [drive.measured.rate for drive in drives]
    total = None if None in rates else fsum(rate or 0.0 for rate in rates)
    if total is not None and not complete:
        assert policy.limit is not None
        total = max(total, float(policy.limit))
    elapsed_s = max((did.elapsed_s for d in drives if (did := d.measured.rates)), default=0.0)
    return credit_after(credit, policy, total, elapsed_s)


def _with_parts_of_vm(pool: _Pool, vm: VmPart, *, anew: bool) -> Iterator[DriveState]:
    """Yield a VM's drives with their parts of its limit."""
    limit, ceiling = vm.policy.limit, vm.ceiling
    assert limit is not None
    wishes = [*map(_wish_of_vm, pool.states)]
    before = [known.vm and known.vm.part for known in pool.states]
    parts = _parts(ceiling, pool, wishes, before, anew=anew, strict=False)
    sustained = [part.part for part in parts]
    if ceiling != limit:
        earlier = [known.vm and known.vm.sustained for known in pool.states]
        rest = max(0, floor(limit - pool.others))
        sustained = whole_parts(rest, with_spare(limit, wishes), earlier, anew=anew)
    for known, part, base in zip(pool.states, parts, sustained, strict=True):
        yield known._replace(vm=VmPart(vm.policy, vm.credit, min(base, part.part), part))


def _wish_of_vm(known: DriveState) -> Wish:
    policy = known.policy or DrivePolicy()
    most = own_most(policy, known.ceiling)
    needs = next_step(known, policy, own_wants(known, policy, most))
    return Wish(policy, min(needs, _share(known)), most)


def _wish_of_tenant(known: DriveState) -> Wish:
    policy = known.policy or DrivePolicy()
    most, wants = most_and_wants(known, policy)
    return Wish(policy, next_step(known, policy, wants), most)


def _wish_of_storage(known: DriveState, amount: float) -> Wish:
    """Return what a drive gets in any case, and the most that it could use."""
    policy = known.policy or DrivePolicy()
    most, _ = most_and_wants(known, policy)
    if known.part is not None:
        most = min(most, known.part.part)
    return Wish(replace(policy, reservation=floor(amount)), amount, max(amount, most))


def most_and_wants(known: DriveState, policy: DrivePolicy) -> tuple[float, float]:
    """Return the most that a drive may do but for its tenant, and its demand within that."""
    claimant = claimant_of(DriveId("", ""), known, policy)
    return claimant.most, min(claimant.wants, _share(known))


def _share(known: DriveState) -> float:
    """Return a drive's share of its storage: more of a limit would be of no use."""
    return known.share.most if isinstance(known.share, Share) else inf
