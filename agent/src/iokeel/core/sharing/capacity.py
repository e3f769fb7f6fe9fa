"""What a storage can serve now: its capacity, corrected by the latency that it shows.

Two feedbacks by one law: down fast, up slowly, within bounds. With l the mean latency of an
interval of t seconds, T its target, and `used` the ratio that was really used while there was
something to do:

    l > T, while loaded:                 min(ratio, SLACK * used) * max(STEP, (T / l)**POWER)**t
    l < CALM_RATIO * T, while short:     ratio * (1 + UP_RATIO * (1 - l / (CALM_RATIO * T)))**t

- The *ratio* corrects what was configured or calibrated, by the mean latency of the storage's own
  requests. A storage that is full does what it can, whatever it was believed to do: so the first
  step down is to what it did, and the latency, which says no more than that it is too much, only
  decides on the small ones after it.
- The *room* is the part of the capacity that drives without a latency target may use while
  others on the storage have one. It begins at HEADROOM_RATIO, so that a burst of a drive that was
  idle finds a device that isn't full, and follows the worst of l / T over the drives that have a
  target and were active. While those are idle it stays where it is.
"""

from __future__ import annotations

from iokeel.core.counters import NS_PER_S
from iokeel.core.drive.retune import GIFT_S
from iokeel.core.sharing.latency import is_loaded, storage_strain
from iokeel.core.sharing.storage import StorageLoad
from iokeel.core.state import DriveState, StorageState

POWER = 0.1
STEP = 0.9
SLACK = 1.05
DOWN_MOST = 0.7
UP_RATIO = 0.16
CALM_RATIO = 0.7
HEADROOM_RATIO = 0.85
# A reading after a gap is one reading: it moves nothing by more than so many seconds' worth.
LONGEST_S = 2.0
# A storage whose capacity nobody knows is found to do twice as much, or half, in this time at most.
LEARN_S = 300.0


def follow(
    ratio: float,
    strain: float | None,
    *,
    used: float,
    short: bool,
    loaded: bool,
    elapsed_s: float,
) -> float:
    """Return a ratio after one interval.

    strain: latency over its target, > 0; None where it isn't known, which changes nothing. used:
    the part of what the ratio is of that was used. short: whether somebody wants more than the
    ratio lets him have. loaded: whether the strain can be due to load at all.
    """
    if strain is None:
        return ratio
    elapsed_s = min(elapsed_s, LONGEST_S)
    if strain > 1 and loaded:
        less = min(ratio, SLACK * used) * max(STEP, strain**-POWER) ** elapsed_s
        return float(max(less, ratio * DOWN_MOST**elapsed_s))
    if strain < CALM_RATIO and short:
        return float(ratio * (1 + UP_RATIO * (1 - strain / CALM_RATIO)) ** elapsed_s)
    return ratio


def ratio_after(
    was: StorageState, load: StorageLoad | None, total: float | None, let: float = 1.0
) -> float:
    """Return the ratio after an interval in which `total` was done; None: that is not known.

    let: the part of it that could be used, where headroom is kept for protected drives. Above what
    it was configured to do, it doesn't grow then: the more it can do, the more headroom there is.
    """
    policy = was.policy
    if policy.capacity is None or policy.latency_target_ms is None:
        return was.ratio
    strain = storage_strain(policy, load)
    if load is None and was.counters is None and was.usable is not None:
        strain = 0.99 * CALM_RATIO  # all drives wait for their throttles, so nobody's latency tells
    if strain is not None and load is not None and not is_loaded(load):  # it isn't full
        strain = min(strain, 0.5 * CALM_RATIO)
    before = storage_strain(policy, was.load)
    if strain is not None and before is not None and strain < 1:  # one calm reading may be noise
        strain = min(1.0, max(strain, before))
    elapsed_s = load.elapsed_s if load else 1.0
    busy = load.busy_ratio if load and load.busy_ratio else 1.0
    used = was.ratio
    if total is not None:  # what it does when it has something to do, and all of it may be used
        used = total / policy.capacity / busy / let
    if strain is not None and strain > 1:  # that was so while it had something to do
        elapsed_s *= busy
    ratio = follow(
        was.ratio,
        strain,
        used=used,
        short=was.short,
        loaded=is_loaded(load),
        elapsed_s=elapsed_s,
    )
    if let < 1:
        ratio = min(ratio, max(1.0, was.ratio))
    return min(policy.most_ratio, max(policy.least_ratio, ratio))


def peak_after(was: StorageState, total: float, suffers: bool, elapsed_s: float) -> float:
    """Return what a storage of unknown capacity is taken to be able to do.

    Before a drive has ever suffered: what was done at most, lately. Then it is put to use, so that
    what is done says less: it grows while that isn't enough and nobody suffers, and shrinks
    while somebody does.
    """
    change: float = 2.0 ** (elapsed_s / LEARN_S)
    if was.usable is None or suffers:
        return max(total, was.peak / change)
    return max(total, was.peak * change if was.short else was.peak)


def gift(known: DriveState) -> float:
    """Return what stock QEMU lets a drive do for nothing after a change of its limits.

    In normalized I/O operations a second, over the last interval; 0 two intervals after it.
    """
    if (
        known.abilities.keeps_levels
        or known.rates is None
        or known.counters is None
        or known.held is None
    ):
        return 0.0
    elapsed_s = known.rates.elapsed_s
    since_s = (known.counters.at_ns - known.sent_ns) / NS_PER_S
    return GIFT_S * known.held / elapsed_s if since_s < 2 * elapsed_s + GIFT_S else 0.0
