"""Bounds a drive's requests in flight, and has them timed, for a latency target.

docs/design/control-law.md has the rules and the reasons: Little's law gives the bound that holds a
drive only once its requests take twice the target. A storage's target (core/values/storage.py) says
how much more time larger ones have. Limits that are sent anyway carry the present bound. By itself
it's a reason to send them once it is too low, or has been SLACK_RATIO too high for SLACK_S.
"""

from __future__ import annotations

from math import ceil, log

from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.mix import mix_cost, requests_in_pieces
from iokeel.core.values.state import DriveState, StorageState
from iokeel.core.values.storage import allowance_s

BOUND_STEP = 1.25
SLACK_RATIO = 2.0
SLACK_S = 10.0
_TARGETS = 2.0


def with_aids(
    limits: ThrottleLimits,
    known: DriveState,
    storage: StorageState | None,
    model: CostModel,
    allowed: float,
) -> ThrottleLimits:
    """Return limits with what a latency target needs of the drive's QEMU, as far as that is able.

    storage: None if it isn't known; what was asked last stays then. If the mix isn't known, and the
    limits are the last ones, then their bound stays. allowed: the rate that the limits hold the
    drive to, its burst included.
    """
    abilities, last = known.abilities, known.sent.limits
    if abilities is None or not _is_able(abilities):
        return limits
    if storage is None and known.storage is not None and last is not None:
        return limits._replace(latency=last.latency, max_in_flight=last.max_in_flight)
    target_ms = _target_ms(known, storage)
    if not target_ms:  # most often, and this is asked of each drive in each tick
        has_any = limits.latency or limits.max_in_flight is not None
        return limits._replace(latency=False, max_in_flight=None) if has_any else limits
    bound, cost = None, _mean_cost(known, model)
    if abilities.bounds_in_flight:
        bound = _bound(known, storage, cost or 1.0, target_ms / 1000, allowed)
        if cost is None and last is not None and limits.items() == last.items():
            bound = last.max_in_flight or bound
    return limits._replace(latency=abilities.measures_latency, max_in_flight=bound)


def is_off(
    known: DriveState,
    storage: StorageState | None,
    model: CostModel,
    allowed: float,
    now_ns: int,
) -> bool:
    """Return whether a drive's last limits are to be sent anew because of this alone.

    storage, allowed: as for `with_aids`.
    """
    last = known.sent.limits
    if last is None or known.abilities is None or not _is_able(known.abilities):
        return False
    wanted = with_aids(last, known, storage, model, allowed)
    bound, need = last.max_in_flight, wanted.max_in_flight
    if bound is None or need is None or wanted.latency != last.latency:
        return (bound, last.latency) != (need, wanted.latency)
    is_old = now_ns - known.sent.at_ns >= SLACK_S * NS_PER_S
    return need > bound or (is_old and bound >= SLACK_RATIO * need)


def needs_times(known: DriveState, storage: StorageState | None) -> bool:
    """Whether a latency target needs a drive timed that only its throttle group can time.

    As one of a storage daemon. It is timed without limits, too, or nobody knew that it suffers.
    """
    abilities, counters = known.abilities, known.measured.counters
    if abilities is None or not abilities.measures_latency or counters is None:
        return False
    return counters.read_time_ns is None and _target_ms(known, storage) > 0


def _target_ms(known: DriveState, storage: StorageState | None) -> float:
    """Return a drive's latency target or its storage's, whichever is longer; 0 without any."""
    own_ms = (known.policy and known.policy.latency_target_ms) or 0.0
    return max(own_ms, (storage and storage.policy.latency_target_ms) or 0.0)


def _is_able(abilities: Abilities) -> bool:
    return abilities.measures_latency or abilities.bounds_in_flight


def _mean_cost(known: DriveState, model: CostModel) -> float | None:
    """Return the mean cost of a drive's requests as its storage sees them; None if unknown."""
    mix, limits = known.measured.mix, known.sent.limits
    if mix is None:
        return None
    requests = requests_in_pieces(mix, None if limits is None else limits.split_size)
    return mix_cost(model, mix) / requests if requests else None


def _bound(
    known: DriveState, storage: StorageState | None, cost: float, target_s: float, allowed: float
) -> float:
    """Return the bound. cost: the mean cost of a request."""
    if storage is None or storage.policy.capacity is None:
        cost = 1.0  # how much longer larger ones take isn't known
    else:
        served = (storage.activity and storage.activity.served_cost) or cost
        target_s += allowance_s(cost, max(cost, served), storage.policy.capacity)
    separate = known.policy is not None and known.policy.separate_budgets
    need = _TARGETS * (2 if separate else 1) * allowed / cost * target_s
    # Rounded, because a power that is the same again mustn't be another number.
    return round(BOUND_STEP ** ceil(log(max(1.0, need), BOUND_STEP) - 1e-9), 3)
