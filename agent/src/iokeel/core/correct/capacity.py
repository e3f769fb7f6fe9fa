"""Corrects a storage's capacity by the latency that it shows.

Two feedbacks follow one law: down fast, up slowly, within bounds. Let l be the mean latency of an
interval of t seconds, T its target, and `used` the ratio that was really used while there was work:

    l > T, while loaded:                 min(ratio, SLACK * used) * max(STEP, (T / l)**POWER)**t
    l < CALM_RATIO * T, while short:     ratio * (1 + UP_RATIO * (1 - l / (CALM_RATIO * T)))**t

One reading halves or doubles it at most, because it may be wrong. While l is below T it may creep
on, up to CREEP_TO times the ratio at which latency passed T: behind a soft knee that is much. Of
the last two times that it passed, the higher ratio counts: one may be a disturbance.

- The *ratio* corrects the configured capacity by the mean latency of the storage's own requests. A
  full storage does as much as it can, whatever it was believed to do. So the first step down goes
  to that, and the latency, which only says that it is too much, decides the small ones after it.
  And a storage that isn't strained can do what it has just done (`_shown`), so the ratio isn't
  below that if drives want as much.
- If cuts are in vain, because latency doesn't fall with the load, the ratio goes back and the
  target rises (`with_vain`).
- The *room* is the part of the capacity for drives without a latency target, while others on the
  storage have one (headroom.py). It begins at FIRST_ROOM_RATIO, and follows the worst l / T of the
  drives that have a target and were active. While those are idle it stays, and it never falls while
  nothing is left to cut.

A storage without a configured capacity has a *peak* instead, the most that it was seen to do. It
doubles or halves in FORGET_S at most. Where there is a room, the room goes down in its place, as
far as it can, and up before it: moved at once, they would wind up against each other.

docs/design/measurements.md shows the cost and gain of each constant.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from iokeel.core.correct.lessons import FORGET_S, GAIN, SLACK
from iokeel.core.measure.demand import INTERVALS_WITH_GIFTS
from iokeel.core.measure.storage import CALM_RATIO as CALM_RATIO
from iokeel.core.measure.storage import is_loaded, storage_strain
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.limits import BUCKET_S
from iokeel.core.values.state import DriveState, Feedback, StorageState
from iokeel.core.values.storage import Load, StorageActivity, StoragePolicy

POWER = 0.1
STEP = 0.9
UP_RATIO = 0.16
# Between calm and the target: at most so much a second, up to this part of the ratio at which
# latency last passed the target. That grows by so much a second, because a storage may have become
# faster.
CREEP_RATIO = 0.03
CREEP_TO = 1 / SLACK
_REGAIN_RATIO = 0.001
# The room at the start: the headroom is the rest.
FIRST_ROOM_RATIO = 0.85
# One reading moves a ratio, or the peak of a divided storage, by this factor at most: it may be
# wrong.
SEEN_MOST = 2.0
# A reading after a gap is one reading: it moves nothing by more than so many seconds' worth.
LONGEST_S = 2.0
# Latency says little about an interval that was disturbed: gifts were more than this part of the
# storage, or the ratio has just been cut by more than SLACK.
_GIFT_RATIO = 0.02
# Doubt lasts for this many intervals at most: those in which a gift still shows (`gift`). A cut has
# been in vain if it was in more than so many in a row.
_MOST_DOUBT = INTERVALS_WITH_GIFTS
# The most strain that a storage which isn't full may have, so that its ratio grows by half of
# UP_RATIO or more. One whose latency nobody tells has it, because nothing says that it is loaded.
_NOT_FULL_STRAIN = 0.5 * CALM_RATIO


def follow(
    ratio: float,
    strain: float | None,
    *,
    used: float,
    short: bool,
    loaded: bool,
    elapsed_s: float,
    full: float = 0.0,
) -> float:
    """Return a ratio after one interval.

    strain: latency over its target, > 0; None if unknown, which changes nothing. used: the ratio
    that was really used. short: somebody wants more than the ratio allows. loaded: the strain can
    be due to load. full: the ratio at which latency passed its target; 0: it doesn't creep.
    """
    if strain is None:
        return ratio
    elapsed_s = min(elapsed_s, LONGEST_S)
    if strain > 1 and loaded:
        less = min(ratio, SLACK * used) * max(STEP, strain**-POWER) ** elapsed_s
        return float(max(less, ratio * SEEN_MOST**-elapsed_s))
    if strain >= 1 or not short:
        return ratio
    up = float(ratio * (1 + max(0.0, UP_RATIO * (1 - strain / CALM_RATIO))) ** elapsed_s)
    creep = float(ratio * (1 + CREEP_RATIO * (1 - strain) / (1 - CALM_RATIO)) ** elapsed_s)
    return max(up, min(creep, CREEP_TO * full))


class Unmet(NamedTuple):
    """Drives do less than is reserved for them, because their storage holds them up (held_up.py).

    strain: the worst of theirs. least: what is owed as a ratio, below which no cut helps them.
    """

    strain: float
    least: float


def feedback_after(
    before: StorageState,
    load: Load,
    worst: float | None = None,
    unmet: Unmet | None = None,
    *,
    creeps: bool = False,
    needed: float = 0.0,
) -> Feedback:
    """Return the feedback after an interval, but for the room and the peak.

    worst: the worst strain of drives with a latency target; None if there is none. creeps: small
    changes of limits disturb no drive, as they do on stock QEMU (`gift`). needed: the capacity at
    which no drive would be short.
    """
    last = before.feedback
    if _is_doubtful(before, load, max(worst or 0.0, unmet.strain if unmet else 0.0)):
        return replace(last, fell=False, doubt=last.doubt + 1)
    crowded = load.usable_part < FIRST_ROOM_RATIO or (worst or 0.0) >= CALM_RATIO
    ratio = ratio_after(
        before,
        load.activity,
        load.total,
        load.usable_part,
        unmet,
        creeps=creeps,
        needed=needed,
        most=1.0 if load.usable_part < 1 and crowded else inf,
    )
    strain = _strain(before, load.activity, unmet)
    by_queue = before.policy.latency_target_ms is None
    over = is_loaded(load.activity) and (by_queue or (strain is not None and strain > 1))
    return replace(
        last,
        ratio=ratio,
        fell=SLACK * ratio < last.ratio,
        doubt=0,
        over=over,
        passed=_passed_after(before, ratio, load.activity, over=over),
    )


def raised(policy: StoragePolicy, before: StorageState | None) -> StoragePolicy:
    """Return a storage's policy as the law takes it: with the target that cuts can reach."""
    if before is None or before.feedback.vain == 1 or policy.latency_target_ms is None:
        return policy
    return replace(policy, latency_target_ms=policy.latency_target_ms * before.feedback.vain)


def with_vain(before: StorageState, load: Load, after: Feedback) -> Feedback:
    """Return the feedback with what cuts have taught.

    They are in vain if the queue is shorter by a fifth, and latency isn't lower by a fifth: its
    base has risen. Above the configured capacity, load alone explains it. Then the ratio goes back
    to where it was, and the target rises so that this latency is a fifth below it. It falls again
    once latency is another fifth below that, and slowly by itself. While latency still rises, it
    isn't known what a cut does.
    """
    strain, activity = storage_strain(before.policy, load.activity), load.activity
    if strain is None or activity is None or before.policy.capacity is None or after.doubt:
        return after
    vain = max(1.0, before.feedback.vain / _learn_most(activity.elapsed_s))
    after = replace(after, cut=None, vain=vain if strain >= GAIN**2 else 1.0)
    if not after.over or strain <= 1:
        return after
    queue = activity.queue
    begun = (max(before.feedback.ratio, after.ratio), queue, strain, 0)
    first, most, earlier, looks = before.feedback.cut or begun
    if strain <= GAIN * earlier or strain > SLACK * earlier:
        return replace(after, cut=(first, queue, strain, 0))
    if queue > GAIN * most or after.ratio > 1:
        return replace(after, cut=(first, most, earlier, 0))
    if looks < _MOST_DOUBT:
        return replace(after, cut=(first, most, earlier, looks + 1))
    vain = before.feedback.vain * strain / GAIN
    return replace(after, ratio=first, over=False, passed=(inf, first), vain=vain)


def _passed_after(
    before: StorageState, ratio: float, activity: StorageActivity | None, *, over: bool
) -> tuple[float, float]:
    """Return the ratios at which latency passed its target in the last two times, oldest first.

    ratio: after the interval. A time is a row of intervals above the target, and has the ratio of
    its last one. inf: not known. While a drive is short, they aren't forgotten: a storage may be
    calm only because that drive is held.
    """
    last = before.feedback
    earlier, latest = last.passed
    if over:
        return (earlier if last.over else latest), last.ratio
    if ratio > SLACK * max(last.passed) and not before.division.short:
        return inf, inf
    if activity is None:
        return last.passed
    regain = (1 + _REGAIN_RATIO) ** min(activity.elapsed_s, LONGEST_S)
    return earlier * regain, latest * regain


def _is_doubtful(before: StorageState, load: Load, worst: float) -> bool:
    """Return whether a latency above its target may be due to a disturbance, not to load.

    Disturbances are gifts; many drives that woke at once, under limits for the rates before; and a
    cut whose queue has drained, so that the reading shows the time before it.
    """
    strain = max(storage_strain(before.policy, load.activity) or 0.0, worst)
    most = before.division.usable or inf
    if strain <= 1 or before.feedback.doubt >= _MOST_DOUBT:
        return False
    if SLACK * load.done < load.usable_part * most:
        return False
    return (
        (before.feedback.fell and load.drained)
        or load.gifts > _GIFT_RATIO * most
        or load.done > SLACK * most
    )


def ratio_after(
    before: StorageState,
    activity: StorageActivity | None,
    total: float | None,
    usable_part: float = 1.0,
    unmet: Unmet | None = None,
    *,
    creeps: bool = False,
    needed: float = 0.0,
    most: float = inf,
) -> float:
    """Return the ratio after an interval.

    total: the rate of all its drives; None if unknown. usable_part: of the capacity, less than 1
    while headroom is kept for protected drives. needed: see feedback_after. most: it grows no
    further, but for what the storage has shown.
    """
    policy, ratio = before.policy, before.feedback.ratio
    if policy.capacity is None:
        return ratio
    strain = _strain(before, activity, unmet)
    shown = min(needed, _shown(activity, total, strain)) / policy.capacity
    shown = min(shown, SEEN_MOST * ratio)
    if policy.latency_target_ms is None:
        return min(policy.most_ratio, max(1.0, shown))
    elapsed_s = activity.elapsed_s if activity else 1.0
    busy_ratio = activity.busy_ratio if activity and activity.busy_ratio else 1.0
    used = ratio
    if total is not None:  # while it had work, of the part that could be used
        used = total / policy.capacity / busy_ratio / usable_part
    if before.feedback.passed[1] == inf and before.division.usable is None:
        if not is_full(policy, before.feedback, activity):
            return ratio
        ratio = max(ratio, used)  # nothing was held back, so it did what it could
    if strain is not None and strain > 1:  # it was overloaded only while it had work
        elapsed_s *= busy_ratio
    after = follow(
        ratio,
        strain,
        used=used,
        short=before.division.short,
        loaded=is_loaded(activity),
        elapsed_s=elapsed_s,
        full=max(before.feedback.passed) if creeps else 0.0,
    )
    after = max(min(after, max(most, ratio)), shown)
    if unmet is not None and (_strain(before, activity) or 0.0) <= 1:
        after = max(after, min(ratio, unmet.least))  # only drives that are held up suffer
    return min(policy.most_ratio, max(policy.least_ratio, after))


def _shown(activity: StorageActivity | None, total: float | None, strain: float | None) -> float:
    """Return the rate that a storage has shown it can do; 0 if nothing tells.

    It can do what it has just done if its latency is far below its target. Without a target, it can
    at least do what it would do one request at a time.
    """
    if activity is None or not activity.latency_s or total is None:
        return 0.0
    if strain is not None:
        return total if strain < CALM_RATIO else 0.0
    if activity.read is not None:
        return total / activity.queue
    return (activity.mean_cost or 0.0) / activity.latency_s


def is_full(policy: StoragePolicy, feedback: Feedback, activity: StorageActivity | None) -> bool:
    """Return whether a storage is full, or has been: nobody is held back for it before.

    It is full once its latency comes near its target; if it has none, once one request or more is
    in flight on average. feedback: after the interval.
    """
    if feedback.passed[1] < inf or feedback.room < FIRST_ROOM_RATIO:
        return True
    strain = storage_strain(policy, activity)
    return is_loaded(activity) and (strain is None or strain >= CALM_RATIO)


def is_calm(before: StorageState, activity: StorageActivity | None) -> bool:
    """Return whether a storage isn't loaded, by its own evidence."""
    if activity is None:
        return False
    strain = _strain(before, activity)
    return not is_loaded(activity) if strain is None else strain < CALM_RATIO


def peak_after(
    before: StorageState,
    total: float,
    suffers: bool,
    elapsed_s: float,
    *,
    shrinks: bool,
) -> float:
    """Return the capacity that a storage is taken to have if nobody has configured it.

    It is the most that was done lately, until a drive suffers from load for the first time. From
    then on the capacity is divided, so that the rate tells less. The peak grows while it isn't
    enough, nobody suffers, and the room has nothing to regain.
    """
    peak, change = before.feedback.peak, _learn_most(elapsed_s)
    if before.division.usable is not None and peak > 0:
        total = min(total, SEEN_MOST * peak)
    if before.division.usable is None or shrinks:
        return max(total, peak / change)
    grows = before.division.short and not suffers and before.feedback.room >= FIRST_ROOM_RATIO
    return max(total, peak * change if grows else peak)


def room_while_idle(before: StorageState, elapsed_s: float) -> float:
    """Return the room after an interval in which all protected drives were idle.

    It stays, but if nobody has configured the capacity, nobody knows whether what was taken helped
    them. So it slowly grows back to where it began while the others want more.
    """
    room = before.feedback.room
    if before.policy.capacity is not None or not before.division.short:
        return room
    return max(room, min(FIRST_ROOM_RATIO, room * _learn_most(elapsed_s)))


def _learn_most(elapsed_s: float) -> float:
    return float(2.0 ** (min(elapsed_s, LONGEST_S) / FORGET_S))


def gift(known: DriveState) -> float:
    """Return the rate that stock QEMU let through for nothing after a change of limits.

    In normalized I/O operations a second, over the last interval; 0 two intervals after the change.
    """
    did, counters, held = known.measured.rates, known.measured.counters, known.pricing.rate
    if did is None or counters is None or held is None:
        return 0.0
    if known.keeps_levels:
        return 0.0
    since_s = (counters.at_ns - known.sent.at_ns) / NS_PER_S
    return BUCKET_S * held / did.elapsed_s if since_s < 2 * did.elapsed_s + BUCKET_S else 0.0


def _strain(
    before: StorageState, activity: StorageActivity | None, unmet: Unmet | None = None
) -> float | None:
    """Return the strain that the ratio follows: a cautious reading of the storage's own.

    unmet: a larger one counts instead.
    """
    policy = before.policy
    strain = storage_strain(policy, activity)
    if activity is None and before.counters is None and before.division.usable is not None:
        # Nobody's latency tells, because all drives may wait for their throttles.
        strain = _NOT_FULL_STRAIN
    if strain is not None and activity is not None and not is_loaded(activity):
        strain = min(strain, _NOT_FULL_STRAIN)
    last = storage_strain(policy, before.activity)
    if strain is not None and last is not None and strain < 1:  # one calm reading may be noise
        strain = min(1.0, max(strain, last))
    if unmet is not None:
        strain = max(strain or 0.0, unmet.strain)
    return strain
