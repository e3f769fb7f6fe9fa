"""Divides a VM's limit among its drives, so that their limits never add up to more.

While the VM's burst is open, the burst is divided in its place. Its credit is earned and spent by
the VM as a whole (drive/burst.py).

Each drive has a *part*. Its limits are at the part, whether the drive uses that or not. So the VM's
limit holds also while no agent runs, and when all drives wake at once. But a drive only shows that
it wants more while it has more than it uses. So

- a drive needs its demand, or a step more than it does if its limits hold it (claimant.py);
- it wants SPARE_RATIO times that, and its *foothold*: by weight, its part of FOOTHOLD_RATIO of the
  limit. An idle drive begins with that, and has more a tick later;
- what nobody wants is added by weight.

A drive whose orders fail keeps the limits that it has. If they are above its part, the others
divide the rest, so that nobody is raised by what it was to give up. It is at least what they are
owed.

Parts stay as they are until a drive gets more than OUTGROWN_RATIO times its own, because on stock
QEMU each change lets a tenth of a second through for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, fsum, inf
from typing import NamedTuple

from iokeel.core.counters import DriveId
from iokeel.core.drive.burst import NO_CREDIT, credit_after
from iokeel.core.policy import DrivePolicy, VmPolicy
from iokeel.core.sharing.claimant import budgets, next_step, own_most, own_wants
from iokeel.core.sharing.divide import Claim, divide
from iokeel.core.state import Credit, DriveState, Share, VmPart

SPARE_RATIO = 1.15
FOOTHOLD_RATIO = 0.05
OUTGROWN_RATIO = 1.02


def with_vm_parts(
    drives: Mapping[DriveId, DriveState],
    held: Mapping[str, float] | None = None,
    stuck: Mapping[DriveId, float] | None = None,
) -> Mapping[DriveId, DriveState]:
    """Return drives with their VMs' credit and their parts of their VMs' limits after a tick.

    drives: all drives of each VM on which the law doesn't fail, with the tick's rates. held: the
    rates that a VM's others keep, by VM; they are taken from its limit first. stuck: the rates that
    drives are held to whose orders fail.
    """
    vms: dict[str, list[DriveId]] = {}
    for drive, known in drives.items():
        if known.vm is not None and known.vm.policy.limit is not None:
            vms.setdefault(drive.domain, []).append(drive)
    if not vms:
        return drives
    after = dict(drives)
    for vm, there in vms.items():
        states = [drives[drive] for drive in there]
        by_others = (held or {}).get(vm)
        parts = _parts(states, by_others)
        if stuck:
            parts = _beside_stuck(
                states, parts, [stuck.get(drive, 0.0) for drive in there], by_others or 0.0
            )
        for drive, known, part in zip(there, states, parts, strict=True):
            after[drive] = known._replace(vm=part)
    return after


class Wish(NamedTuple):
    """The rate that a drive wants of its VM's limit, and the most that its own policy allows."""

    policy: DrivePolicy
    wants: float
    most: float


def _parts(drives: Sequence[DriveState], held: float | None) -> list[VmPart]:
    """Return the parts of a VM's drives after a tick.

    held: the rate that others keep, with their burst; None if there are none. The same fraction of
    the limit without the burst is theirs.
    """
    before = [known.vm for known in drives if known.vm is not None]
    # They may know different limits of it.
    tightest = min(before, key=lambda part: part.policy.limit or inf)
    credit = _credit(drives, before, tightest.policy, complete=held is None)
    return _divided_beside(held or 0.0, tightest._replace(credit=credit), drives, 0.0)


def _beside_stuck(
    drives: Sequence[DriveState],
    parts: Sequence[VmPart],
    stuck: Sequence[float],
    held: float,
) -> list[VmPart]:
    """Return the parts of a VM's drives if those that are stuck above theirs keep what they have.

    parts: as if none were stuck. stuck: 0 for a drive that isn't. held: by drives without a part.
    """
    now = [
        _as_ordered(known, part) if rate else part
        for known, part, rate in zip(drives, parts, stuck, strict=True)
    ]
    above = [rate > (part.most or 0) for part, rate in zip(now, stuck, strict=True)]
    others = [known for known, is_above in zip(drives, above, strict=True) if not is_above]
    if not any(above):
        return [*parts]
    if not others:
        return now
    held += fsum(rate for rate, is_above in zip(stuck, above, strict=True) if is_above)
    policies = [known.policy or DrivePolicy() for known in others]
    weight = sum((known.policy or DrivePolicy()).weight for known in drives)
    foothold = FOOTHOLD_RATIO * (now[0].policy.limit or 0) / weight
    owed = fsum(
        min(float(policy.reservation), own_wants(known, policy, own_most(policy, known.ceiling)))
        for policy, known in zip(policies, others, strict=True)
    )
    least = max(owed, foothold * sum(policy.weight for policy in policies) / OUTGROWN_RATIO)
    rest = iter(_divided_beside(held, parts[0], others, least))
    return [part if is_above else next(rest) for part, is_above in zip(now, above, strict=True)]


def _as_ordered(known: DriveState, part: VmPart) -> VmPart:
    """Return the part that a stuck drive's last order was for, unless it is owed more now.

    To order ever new ones would be of no use.
    """
    last = known.vm
    if last is None or last.most is None or part.most is None:
        return part
    fits = part.most <= OUTGROWN_RATIO * last.most and last.most <= (part.ceiling or 0)
    return part._replace(most=last.most, sustained=last.sustained) if fits else part


def _divided_beside(
    held: float, now: VmPart, drives: Sequence[DriveState], owed: float
) -> list[VmPart]:
    """Return the parts of drives of what is left of a VM's limit, and at least of what is owed.

    now: with the VM's policy and credit.
    """
    before = [known.vm for known in drives if known.vm is not None]
    limit, ceiling = now.policy.limit, now.ceiling
    assert limit is not None
    assert ceiling is not None
    if held:
        left = max(0.0, 1 - held / ceiling)
        limit, ceiling = (
            max(1, floor(max(left * most, min(most, owed)))) for most in (limit, ceiling)
        )
    wishes = _wishes(drives, limit)
    sustained, least = divided(limit, wishes)
    most, least_most = (sustained, least) if ceiling == limit else divided(ceiling, wishes)
    if still_fit(limit, [part.sustained for part in before], sustained, least) and still_fit(
        ceiling, [part.most for part in before], most, least_most
    ):
        return [part._replace(policy=now.policy, credit=now.credit) for part in before]
    return [
        now._replace(most=most, sustained=min(most, part))
        for most, part in zip(most, sustained, strict=True)
    ]


def _credit(
    drives: Sequence[DriveState], before: Sequence[VmPart], policy: VmPolicy, *, complete: bool
) -> Credit:
    """Return a VM's burst credit after a tick. A drive that is new doesn't know it yet.

    complete: these are all drives of the VM. If not, its rate may be higher than their sum, so that
    credit is spent and not earned.
    """
    credit = min((part.credit for part in before if part.most is not None), default=NO_CREDIT)
    rates = [drive.measured.rate for drive in drives]
    total = None if None in rates else fsum(rate or 0.0 for rate in rates)
    if total is not None and not complete:
        assert policy.limit is not None
        total = max(total, float(policy.limit))
    elapsed_s = max((did.elapsed_s for d in drives if (did := d.measured.rates)), default=0.0)
    return credit_after(credit, policy, total, elapsed_s)


def _wishes(drives: Sequence[DriveState], limit: int) -> list[Wish]:
    wishes = []
    for known in drives:
        policy = known.policy or DrivePolicy()
        most = own_most(policy, known.ceiling)
        wants = next_step(known, policy, own_wants(known, policy, most))
        if isinstance(known.share, Share):  # more would be of no use
            wants = min(wants, known.share.most)
        wishes.append(Wish(policy, wants, most))
    return with_spare(limit, wishes)


def with_spare(limit: int, wishes: Sequence[Wish]) -> list[Wish]:
    """Return wishes with the spare and the foothold that drives need of a limit."""
    foothold = FOOTHOLD_RATIO * limit / sum(wish.policy.weight for wish in wishes)
    return [
        Wish(policy, min(most, SPARE_RATIO * wants + foothold * policy.weight), most)
        for policy, wants, most in wishes
    ]


def divided(limit: int, wishes: Sequence[Wish]) -> tuple[list[int], tuple[float, ...]]:
    """Return the parts of a limit, and the least of them that its drives need.

    Parts are whole numbers, at least 1 for each budget, and together no more than the limit.
    """
    claims = [Claim(wish.policy.reservation, wish.policy.weight, wish.wants) for wish in wishes]
    amounts = divide(limit, claims).amounts
    rest = [
        Claim(0, wish.policy.weight, max(0.0, wish.most - amount))
        for wish, amount in zip(wishes, amounts, strict=True)
    ]
    extra = divide(max(0.0, limit - fsum(amounts)), rest).amounts
    least = [budgets(wish.policy) for wish in wishes]
    parts = [max(low, floor(a + b)) for low, a, b in zip(least, amounts, extra, strict=True)]
    for _ in range(sum(parts) - limit):
        parts[parts.index(max(parts))] -= 1
    return [max(low, part) for low, part in zip(least, parts, strict=True)], amounts


def still_fit(
    limit: int, held: Sequence[int | None], parts: Sequence[int], least: Sequence[float]
) -> bool:
    """Return whether parts may stay: they are all there is, and each drive has what it needs.

    parts, least: as `divided` returned them.
    """
    known = [part for part in held if part is not None]
    if len(known) < len(held) or sum(known) > limit or sum(known) < sum(parts) - len(parts):
        return False
    return all(need <= OUTGROWN_RATIO * part for need, part in zip(least, known, strict=True))
