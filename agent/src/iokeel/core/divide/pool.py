"""Divides a limit over several drives into parts that never add up to more.

The limit is a VM's, a tenant's on this host, or what the fleet grants a tenant or a storage here. A
drive's limits are at its *part*, whether it uses that or not. So the limit holds while no agent
runs, while an order fails or a drive can't be read, and when all drives wake at once.

A drive only shows that it wants more while it has more than it uses. So

- it needs its demand, or a step more than it does if its limits hold it (claimant.py);
- it wants SPARE_RATIO times that, and its *foothold*: by weight, its part of FOOTHOLD_RATIO of the
  limit. An idle drive begins with that, and has more a tick later;
- what nobody wants is added by weight.

*Held* is the most that a drive's QEMU may be held to now (claimant.py). A smaller part takes effect
at once. A larger one waits until what all drives are held to has made room for it. That one rule is
for a drive that is new, whose order fails, that can't be read, or on which the law fails. Where no
other host counts on the sum, what is reserved for a drive doesn't wait.

Parts stay as they are until a drive needs more than OUTGROWN_RATIO times its own, because on stock
QEMU each change lets a tenth of a second through for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, fsum, inf
from typing import NamedTuple

from iokeel.core.divide.divide import divide
from iokeel.core.values.claimant import FOOTHOLD_RATIO, Claim, budgets
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Part

SPARE_RATIO = 1.15
OUTGROWN_RATIO = 1.02


class Wish(NamedTuple):
    """What a drive needs of a limit, and the most that it may do but for that limit."""

    policy: DrivePolicy
    needs: float
    most: float


def parts_of(
    limit: int,
    wishes: Sequence[Wish],
    held: Sequence[float],
    before: Sequence[Part | None],
    others: float = 0.0,
    *,
    anew: bool = True,
    spare: bool = True,
    strict: bool = True,
) -> list[Part]:
    """Return the parts of drives of a limit, in their order.

    held: what each is held to; inf if that has no end. before: their parts until now. others: what
    further drives are held to, of which no more is known. anew: parts follow demand; else only the
    room that others have made since is handed out, if that can be. spare: what they need has no
    spare in it yet. strict: what a drive is owed by its reservation waits for room, too.
    """
    rest = max(0, floor(limit - others))
    wanted = with_spare(limit, wishes) if spare else wishes
    old = [None if part is None else part.part for part in before]
    parts = whole_parts(rest, wanted, old, anew=anew)
    # Any part lowers a drive that has no limits yet; it counts as one to raise from 0.
    base = [0.0 if now == inf else now for now in held]
    more = divide(
        max(0.0, rest - fsum(base)),
        [
            Claim(0, max(1, part), max(0.0, part - now))
            for part, now in zip(parts, base, strict=True)
        ],
    )
    free = []
    for wish, part, now, extra in zip(wishes, parts, base, more.amounts, strict=True):
        owed = 0.0 if strict else min(float(wish.policy.reservation), wish.needs)
        most = floor(min(part, max(now + extra, owed)))
        free.append(Part(part, max(budgets(wish.policy), most)))
    return free


def kept(policies: Sequence[DrivePolicy], held: Sequence[float]) -> list[Part]:
    """Return the parts of drives that keep what they have, while the limit isn't known."""
    most = [
        max(budgets(policy), 0 if now == inf else ceil(now))
        for policy, now in zip(policies, held, strict=True)
    ]
    return [Part(each, each) for each in most]


def whole_parts(
    limit: int, wishes: Sequence[Wish], before: Sequence[int | None], *, anew: bool = True
) -> list[int]:
    """Return the parts of a limit as it is divided, whatever drives are held to.

    wishes: with what is to spare. before: their parts until now. anew: see `parts_of`.
    """
    known = [part for part in before if part is not None]
    if not anew and len(known) == len(before) and sum(known) <= limit:
        return known
    parts, least = divided(limit, wishes)
    return known if _still_fit(limit, before, parts, least) else parts


def with_spare(limit: int, wishes: Sequence[Wish]) -> list[Wish]:
    """Return wishes with the spare and the foothold that drives need of a limit."""
    foothold = FOOTHOLD_RATIO * limit / sum(wish.policy.weight for wish in wishes)
    return [
        Wish(policy, min(most, SPARE_RATIO * needs + foothold * policy.weight), most)
        for policy, needs, most in wishes
    ]


def divided(limit: int, wishes: Sequence[Wish]) -> tuple[list[int], tuple[float, ...]]:
    """Return the parts of a limit, and the least of them that its drives need.

    Parts are whole numbers, at least 1 for each budget, and together no more than the limit.
    """
    claims = [Claim(wish.policy.reservation, wish.policy.weight, wish.needs) for wish in wishes]
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


def _still_fit(
    limit: int, old: Sequence[int | None], parts: Sequence[int], least: Sequence[float]
) -> bool:
    """Return whether parts may stay: they are all there is, and each drive has what it needs.

    parts, least: as `divided` returned them.
    """
    known = [part for part in old if part is not None]
    if len(known) < len(old) or sum(known) > limit or sum(known) < sum(parts) - len(parts):
        return False
    return all(need <= OUTGROWN_RATIO * part for need, part in zip(least, known, strict=True))
