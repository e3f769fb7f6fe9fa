"""Burst credit: how it is earned and spent, and how limits carry it.

By SolidFire's rule, a drive saves a second of credit in each second under its limit, and spends one
in each second above it. The credit lives here. QEMU holds the burst by itself: while the burst is
open, limits carry QEMU's own *_max with a length that lets the credit through. So a burst ends
even if no agent is there to end it.

Limits carry the credit that there was when the burst opened. They get all of it in the first look
at which the drive does more than its limit, if the credit has grown by GROWN_RATIO. While a drive
only saves, its limits stay; if the agent dies then, the drive keeps the burst that they carry.

A QEMU that keeps its buckets' levels keeps them in proportion: of a bucket that is a quarter full,
a quarter of all credit is used up. So there, limits get credit as it grows, before any is spent.
While it is spent, they go on to carry what they did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from iokeel.core.measure.demand import BAND_RATIO, FULL_RATIO, Use
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.limits import AVERAGES, MOST, ThrottleLimits
from iokeel.core.values.policy import MOST_BURST_SECONDS, DrivePolicy, VmPolicy
from iokeel.core.values.state import Credit, DriveState, Pricing

# The burst opens again once this much is saved, so that each opening (two changes of limits, each
# a tenth of a second for nothing) serves some seconds.
REOPEN_S = 5.0
#: How many times as long as its credit a drive waits until it may begin with that again. So boots
#: alone let it burst for a tenth of the time.
START_REST = 10
# Credit that has grown by less is not worth new limits.
GROWN_RATIO = 1.5
# QEMU doesn't hold a burst of 1 s to its rate.
_SHORTEST_S = 2
NO_CREDIT = Credit()


def credit_after(
    credit: Credit,
    policy: DrivePolicy | VmPolicy | None,
    rate: float | None,
    elapsed_s: float,
    *,
    in_vain: bool = False,
) -> Credit:
    """Return the credit of a drive, or of a VM, after an interval.

    rate: the normalized rate of the interval, the larger one of two budgets; None changes nothing.
    in_vain: its burst is open, but its limit holds it, so it spends credit at its limit too. The
    burst closes while less is left than the next interval could spend, so that credit is never
    overdrawn.
    """
    limit, burst = (None, None) if policy is None else (policy.limit, policy.burst)
    if policy is None or limit is None or burst is None or burst <= limit:
        return NO_CREDIT
    most = float(policy.burst_seconds)
    seconds = min(credit.seconds, most)
    if rate is None:
        pass
    elif rate < FULL_RATIO * limit:
        seconds = min(seconds + elapsed_s, most)
    elif in_vain or rate > (1 + BAND_RATIO) * limit:
        seconds = max(seconds - elapsed_s, 0.0)
    threshold = elapsed_s if credit.open else max(min(REOPEN_S, most), elapsed_s)
    return Credit(seconds, most > 0 and seconds >= threshold)


def credit_after_use(
    credit: Credit,
    policy: DrivePolicy | None,
    rate: float,
    elapsed_s: float,
    use: Use,
    pricing: Pricing,
    *,
    waits: bool,
) -> Credit:
    """Return a drive's credit after an interval; none if QEMU holds it to its limit already.

    pricing: of its limits. waits: for two intervals now, requests have waited for limits that
    charge by our curve. If not, a drive at its limit may just want no more, or QEMU's count of the
    burst is only an estimate, and settles nothing while the credit is worth a burst. But if its
    share makes the burst too short to be set, it spends credit at its limit: neighbours can't use
    what is set aside for the burst.
    """
    ratio = pricing.rate / pricing.base_rate if pricing.rate and pricing.base_rate else 1.0
    in_vain = use.full and credit.open and ratio > 1 and not _length_s(credit.seconds, ratio)
    after = credit_after(credit, policy, rate, elapsed_s, in_vain=in_vain)
    has_ended = waits and not in_vain
    if use.full and not use.bursting and (has_ended or not _granted_length_s(after, policy)):
        return NO_CREDIT
    return after


def carried(known: DriveState, policy: DrivePolicy, allowed: float) -> tuple[float, float, int]:
    """Return the rate that limits are made for without the burst on top, and the credit for that.

    The third is the most credit that is ever saved for it, in seconds. allowed: with the burst. Of
    a drive's burst and its VM's, the one with less credit counts.
    """
    rate, credit_s = allowed, known.credit.seconds if known.credit.open else 0.0
    most_s = policy.burst_seconds
    if policy.limit is not None:
        rate = min(float(policy.limit), allowed)
    vm = known.vm
    if vm is not None and vm.credit.open and vm.sustained is not None:
        sustained = float(known.each_budget(vm.sustained))
        if sustained < allowed:
            bursts_too = rate < allowed
            credit_s = min(credit_s, vm.credit.seconds) if bursts_too else vm.credit.seconds
            most_s = min(most_s, vm.policy.burst_seconds) if bursts_too else vm.policy.burst_seconds
            rate = min(rate, sustained)
    return rate, credit_s, most_s


def carried_on(
    known: DriveState, credit_s: float, most_s: int, in_force: ThrottleLimits | None
) -> float:
    """Return the credit that new limits carry in place of those in force.

    credit_s: what there is; most_s: what there ever is. If the last limits are in force with a
    burst, a QEMU that keeps levels has counted what is spent of the credit that they carry.
    """
    last = known.sent.limits
    if not credit_s or not known.keeps_levels:
        return credit_s
    if last is None or last != in_force or not (last.iops_total_max or last.iops_read_max):
        return credit_s
    return max(credit_s, min(known.sent.credit_s, most_s))


def with_start_credit(
    drives: Mapping[DriveId, DriveState],
    booted: Collection[str],
    started: Mapping[DriveId, int],
    now_ns: int,
) -> tuple[dict[DriveId, DriveState], dict[DriveId, int]]:
    """Return drives with the credit that they begin with, and when each has begun with some.

    booted: VMs whose guests have just booted. started: when drives have before. To boot again and
    again earns nothing: a drive has it again once START_REST times as long has passed.
    """
    after, last = dict(drives), dict(started)
    for drive, known in drives.items():
        policy = known.policy
        if drive.domain not in booted or policy is None or not policy.start_credit_seconds:
            continue
        seconds = float(policy.start_credit_seconds)
        began_ns = last.get(drive)
        if began_ns is not None and now_ns - began_ns < START_REST * seconds * NS_PER_S:
            continue
        credit = credit_after(Credit(seconds), policy, None, 0.0)
        if credit.seconds > known.credit.seconds:
            after[drive], last[drive] = known._replace(credit=credit), now_ns
    longest_ns = START_REST * MOST_BURST_SECONDS * NS_PER_S
    return after, {drive: at_ns for drive, at_ns in last.items() if now_ns - at_ns < longest_ns}


def has_grown(before: DriveState, known: DriveState, policy: DrivePolicy, now_ns: int) -> bool:
    """Return whether limits should carry more credit than they do.

    They should if the drive has begun to spend credit, or if its limit holds it although it has
    some: a drive near its limit earns credit by our count, and hardly any by QEMU's.
    """
    rate, held = known.measured.budget_rate, known.pricing.rate
    if rate is None or not held:
        return False
    if not (known.credit.open or (known.vm is not None and known.vm.credit.open)):
        return False
    limit, credit_s, _ = carried(known, policy, held)
    ratio = held / limit
    if ratio <= 1:  # its own limit or its share holds it, and no burst
        return False
    if known.demand.backlogged and rate < FULL_RATIO * held:
        if not before.demand.backlogged or now_ns - known.sent.at_ns < REOPEN_S * NS_PER_S:
            return False
        # Without a burst before and after, they would only be the same again.
        return bool(_length_s(credit_s, ratio) or _length_s(known.sent.credit_s, ratio))
    if credit_s < GROWN_RATIO * known.sent.credit_s:
        if not known.keeps_levels or rate <= limit:
            return False
        return _length_s(credit_s, ratio) > _length_s(known.sent.credit_s, ratio)
    if known.keeps_levels or rate > limit:
        return True
    return _length_s(known.sent.credit_s, ratio) == 0 < _length_s(credit_s, ratio)


def with_burst(base: ThrottleLimits, ratio: float, credit_s: float) -> ThrottleLimits:
    """Return limits that let a drive burst for as long as its credit lasts, and no longer.

    ratio: the burst over the rate of `base`. QEMU bounds the product of rate and length, so a burst
    of very many bytes ends before the credit does.
    """
    length = _length_s(credit_s, ratio) if ratio > 1 else 0
    rates = {
        name: min(max(average, round(average * ratio)), MOST)
        for name in AVERAGES
        if (average := getattr(base, name)) is not None
    }
    length = min(length, MOST // max(rates.values(), default=1))
    if length < _SHORTEST_S:
        return base
    bursts = {f"{name}_max": rate for name, rate in rates.items()}
    return base.with_fields({**bursts, **{f"{name}_max_length": length for name in rates}})


def _granted_length_s(credit: Credit, policy: DrivePolicy | None) -> int:
    """Return the length of QEMU's burst that lets the credit through; 0 if none does."""
    if policy is None or policy.limit is None or policy.burst is None:
        return 0
    return _length_s(credit.seconds, policy.burst / policy.limit)


def _length_s(credit_s: float, ratio: float) -> int:
    # QEMU's bucket of max * length fills at max - average while a drive bursts.
    length = int(credit_s * (ratio - 1) / ratio)
    return length if length >= _SHORTEST_S else 0
