"""Divides a storage among tenants and VMs first, and what each of them gets among its drives.

The tenant has it once, for its drives on all hosts together. Each host has the part of it that its
drives get of what all of them get. The coordinator finds that out by the claims of all hosts
(core/fleet/claims.py), and hosts by the level that the ledger tells.

A drive whose tenant and VM have nothing reserved together stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from typing import NamedTuple, TypeAlias

from iokeel.core.divide.divide import divide
from iokeel.core.values.claimant import Claim, Claimant, Division, share_of
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import ENDLESS, TenantPolicy
from iokeel.core.values.wants import Layer, TenantLevel, given_at, wants_of, whole


def part_here(layers: Sequence[Layer], weight: float, told: TenantLevel | None) -> float:
    """Return the part of a tenant's weight that its drives on this host have, > 0 and <= 1.

    layers: their demands. weight: the sum of their own weights. told: by the ledger; None if all
    that the tenant's drives demand fits, because then nobody needs its weight. If that is so on
    this host only, the drives have what they would have if they wanted more.
    """
    if told is None:
        return 1.0
    used = given_at(told.level, layers)
    if used == sum(layer.wants for layer in layers):
        used = told.level * weight
        return used / max(used, told.amount) if layers else used / (used + told.amount)
    return min(1.0, used / told.amount)


class OverHosts(NamedTuple):
    """A tenant of the fleet on a storage that hosts share, and its weight on all of them."""

    name: str
    weight: int


@dataclass(frozen=True, slots=True)
class Group:
    """A tenant's or a VM's drives on a storage, with what is reserved for them together.

    weight: on this host. tenant: one whose weight is divided over hosts; None if there is none.
    """

    reservation: int
    weight: float
    members: Sequence[Member]
    tenant: OverHosts | None = None

    @property
    def promised(self) -> float:
        """The larger of what is reserved for all and for each."""
        return max(self.reservation, promised(self.members))

    @property
    def wants(self) -> float:
        """What its members demand together."""
        return fsum([member.wants for member in self.members])

    @property
    def due(self) -> float:
        """As much of what is reserved for them as they demand."""
        return min(self.claim.reservation, self.wants)

    @property
    def claim(self) -> Claim:
        """The claim of its members together."""
        owed = fsum([member.due for member in self.members])
        return Claim(max(self.reservation, owed), self.weight, self.wants)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The demands of its members on top of what they and it are owed."""
        own = wants_of(member.claim for member in self.members).layers
        more = whole(self.wants - self.due)
        demanded = min(ENDLESS, sum(layer.wants for layer in own))
        if more >= demanded:
            return own
        # What it has reserved beyond its members is owed to all of them alike.
        scaled = [Layer(layer.weight, whole(more / demanded * layer.wants)) for layer in own]
        return tuple(layer for layer in scaled if layer.wants)


Member: TypeAlias = Claimant | Group


def members_of(
    claimants: Sequence[Claimant],
    tenants: Mapping[str, TenantPolicy],
    vms: Mapping[str, int],
    levels: Mapping[str, TenantLevel | None],
) -> list[Member]:
    """Return drives, VMs and tenants among which a storage is divided.

    tenants, vms: those that have a promise, with their reservation on this storage. levels: the
    fleet's tenants, if it shares the storage, and what its ledger tells of them.
    """
    alone: list[Claimant] = []
    by_tenant: dict[str, list[Claimant]] = {}
    for claimant in claimants:
        if claimant.tenant is not None and claimant.tenant in tenants:
            by_tenant.setdefault(claimant.tenant, []).append(claimant)
        else:
            alone.append(claimant)
    groups = []
    for name, group in by_tenant.items():
        promise = tenants[name]
        member = Group(promise.reservation, promise.weight, _with_vms(group, vms))
        if name in levels:
            own = sum(claimant.policy.weight for claimant in group)
            weight = promise.weight * part_here(member.layers, own, levels[name])
            member = replace(member, weight=weight, tenant=OverHosts(name, promise.weight))
        groups.append(member)
    return [*_with_vms(alone, vms), *groups]


def _with_vms(claimants: Sequence[Claimant], vms: Mapping[str, int]) -> list[Member]:
    """Return drives, with those of a VM that has a reservation as one. It has their weight."""
    if not vms:
        return [*claimants]
    by_vm: dict[str, list[Claimant]] = {}
    for claimant in claimants:
        by_vm.setdefault(claimant.drive.domain, []).append(claimant)
    found: list[Member] = []
    for vm, group in by_vm.items():
        if vm in vms:
            found.append(Group(vms[vm], sum(c.policy.weight for c in group), group))
        else:
            found += group
    return found


def promised(members: Sequence[Member]) -> float:
    """Return the sum of what is reserved."""
    return fsum(
        member.promised if isinstance(member, Group) else float(member.policy.reservation)
        for member in members
    )


def drives_of(member: Member) -> Iterable[Claimant]:
    """Yield the drives of a member."""
    if isinstance(member, Group):
        for each in member.members:
            yield from drives_of(each)
    else:
        yield member


def promised_together(members: Iterable[Member]) -> Iterator[tuple[int, Sequence[Claimant]]]:
    """Yield drives that have a reservation together, and that, smaller groups first."""
    for member in members:
        if isinstance(member, Group):
            yield from promised_together(member.members)
            reserved = member.reservation
        else:
            reserved = member.policy.reservation
        if reserved:
            yield reserved, [*drives_of(member)]


def reserved_for_each(members: Iterable[Member]) -> dict[DriveId, float]:
    """Return the drives' reservations, with equal parts of what groups have reserved beyond."""
    reserved: dict[DriveId, float] = {}
    for member in members:
        if isinstance(member, Group):
            inside = reserved_for_each(member.members)
            more = max(0.0, member.reservation - fsum(inside.values())) / len(inside)
            reserved.update((drive, own + more) for drive, own in inside.items())
        else:
            reserved[member.drive] = float(member.policy.reservation)
    return reserved


def owed_to_unprotected(members: Iterable[Member]) -> float:
    """Return what is owed to drives without a latency target, if they get what they want."""
    owed, _ = _owed_and_wanted(members)
    return owed


def _owed_and_wanted(members: Iterable[Member]) -> tuple[float, float]:
    """Return what is owed to drives without a latency target, and what they want."""
    owed = wanted = 0.0
    for member in members:
        if isinstance(member, Group):
            owed_here, wanted_here = _owed_and_wanted(member.members)
            wants = member.wants
            part = 1.0 if wanted_here == wants else wanted_here / wants  # both may be endless
            owed += max(owed_here, min(member.reservation, wants) * part)
            wanted += wanted_here
        elif member.policy.latency_target_ms is None:
            owed += member.due
            wanted += member.wants
    return owed, wanted


def _part_owed(group: Group, amount: float) -> float:
    """Return the part of an amount that a group is owed by its own reservation."""
    return min(1.0, group.reservation / amount) if amount else 0.0


def divide_members(
    members: Sequence[Member],
    pool: float,
    storage: str,
    got: dict[DriveId, float],
    part_owed: float = 0.0,
) -> Division:
    """Set the share of each drive in a pool of a storage, and its amount in `got`.

    part_owed: of the amounts, by the reservations of groups that all of them are in.
    """
    claims = [member.claim for member in members]
    division = divide(pool, claims)
    for member, claim, amount in zip(members, claims, division.amounts, strict=True):
        if isinstance(member, Group):
            inner = _pool(member, division, claim, amount, pool)
            part = max(part_owed, _part_owed(member, amount))
            divide_members(member.members, inner, storage, got, part)
            continue
        got[member.drive] = amount
        member.owed = max(min(float(claim.reservation), amount), part_owed * amount)
        new = share_of(claim, division, amount, pool, storage)
        if member.share is None or new.most <= member.share.most:
            member.share = new
    return division


def _pool(group: Group, division: Division, claim: Claim, amount: float, pool: float) -> float:
    """Return the part of a pool that a group may divide."""
    if amount < claim.wants:  # the reservations of its idle drives are lent to the others
        return amount
    if division.level == inf:
        return pool
    return max(amount, division.kept * group.promised + group.weight * division.level)
