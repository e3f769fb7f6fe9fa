"""Which promises a host broke, from measurements that are none of the agent's.

The load of a part runs without iokeel, with it, and without it again. For a drive and a window of
10 s, at the same place in each part:

    did        the cost of the requests that ended in the window with iokeel, by fio's log in the
               guest and the published curve. What a drain let through before it, above the limit,
               counts as well: QEMU has charged it, and lets as much less through now
    reference  the cost of those that ended in it without iokeel, in the part that had fewer; or
               what it asks for, or its limit lets it do, if that is less (draw.py: Load.most). The
               limit also pays for its guest's discards, at 1 each, and zeroes, as for writes. Of a
               drive that asks without a pause, each second counts for the limit at most: what a
               snapshot's flush took from one, no limit lets it have in the next
    lost       1 - did / reference

A loss of more than LOST_RATIO counts as

    explained  if another drive on the storage was promised something that may take it: a latency
               target, a reservation, a part by weight. It has to be active, and the storage has to
               show that it was loaded, by the kernel's counters of its device: in more than
               LOADED_RATIO of the seconds from LOADED_BEFORE_S before the window on, a latency
               above the target with a request in flight or more, or without a target,
               LOADED_QUEUE requests in flight. The drive keeps its own reservation all the same
    unclear    if this machine was busy in the window: its hypervisor took more than STOLEN_RATIO
               of the processors' time, or they had next to no time left. Also if nothing that
               iokeel sets held the drive, and the parts without iokeel differ by as much
    harm       otherwise, with its cause: limits in QEMU that are below the drive's own, a bound of
               its cgroup that is used up, or nothing that iokeel sets, which is unexplained

- **Harm**: no drive loses more than LOST_RATIO over any 10 s.
- **Limits**: no second above `window_ratio` times a drive's limit by fio's log, without what came
  late (demo/conformance.py), or above `passed_ratio` times by QEMU's own count, if it has the
  patches, and one write of zeroes, if the guest has such: a bucket that has room lets a request
  pass as a whole. What the patched QEMU lets through as it drains a disk is excused, as in
  chaos/verdict.py. How often stock QEMU drains one isn't known, but it charges all that it lets
  through. So until that is paid, seconds don't count; but the WINDOW_S from a drain on have no more
  than `window_ratio` times the limit in all.
- **The agent's log**: no fault of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Literal

from benchmarks.chaos.journal import touch
from benchmarks.chaos.monitor import Look
from benchmarks.demo import conformance
from benchmarks.demo.fio_log import Completions, window_starts
from benchmarks.demo.limits_in_force import Sample, Throttle
from benchmarks.field.draw import Drive, Event, FieldHost, Mode
from benchmarks.field.events import DISCARDS, ZEROES_BYTES, ZEROES_S
from benchmarks.field.part import HEAD_S, Part
from benchmarks.field.watch import Moment, Said
from iokeel.core.values.curve import DEFAULT_MODEL

WINDOW_S = 10.0
LOST_RATIO = 0.05
STOLEN_RATIO = 0.05
BUSY_RATIO = 0.97
LOADED_QUEUE = 4.0
LOADED_BEFORE_S = 10.0
LOADED_RATIO = 0.1
"""Of the seconds of a window and the ones before it: the agent may hold drives a little longer."""
BOUND_USED_RATIO = 0.85
ZEROES_COST = DEFAULT_MODEL.write.cost(ZEROES_BYTES)
OWN_IOPS: dict[Event, float] = {
    "discards": float(DISCARDS),
    "zeroes": ZEROES_COST * math.ceil(WINDOW_S / ZEROES_S) / WINDOW_S,
}
_STEP_S = 1.0
_ACTIVE_IOPS = 1.0

Cause = Literal["limits", "bound", "nothing"]
Kind = Literal["harm", "explained", "unclear"]


@dataclass(frozen=True)
class Bounds:
    """How much more than its limit a drive may do in a second.

    window_ratio: by fio's log. passed_ratio: by QEMU's count; None: it doesn't count. drains: how
    often what waits may pass besides, for each drain that a second touches; None: as much as is
    paid.
    """

    window_ratio: float
    passed_ratio: float | None
    drains: int | None


BOUNDS: dict[Mode, Bounds] = {
    "stock": Bounds(1.25, None, None),
    "trixie": Bounds(1.25, None, None),
    "exact": Bounds(1.06, 1.02, 5),
}


@dataclass(frozen=True)
class Loss:
    """What a drive lost.

    begin_s, until_s: of the windows, in seconds since the head. ratio: in the worst of them.
    cause: what of iokeel's held it. words: the promise that explains it, or what the agent said.
    """

    kind: Kind
    begin_s: float
    until_s: float
    ratio: float
    cause: Cause
    words: str


@dataclass(frozen=True)
class Judged:
    """What a host's run shows of a drive.

    windows: how many; unclear: those of them in which the machine was too busy to tell. Rates are
    normalized: without iokeel in each part, and with it. harm_ratio: the worst loss of a window
    that nothing explains, or 0. worst_ratio: of a second, over the limit; None if it has none.
    """

    windows: int
    unclear: int
    without_iops: tuple[float, ...]
    with_iops: float
    limit: int | None
    harm_ratio: float
    worst_ratio: float | None
    losses: tuple[Loss, ...]
    breaches: tuple[str, ...]


def judge(
    host: FieldHost, drive: Drive, without: Sequence[Part], with_: Part, bounds: Bounds
) -> Judged:
    """Return what the parts of a host's run show of a drive."""
    starts_s = [i * _STEP_S for i in range(int((with_.seconds - WINDOW_S) / _STEP_S) + 1)]
    lost = [_loss(host, drive, without, with_, start_s) for start_s in starts_s]
    unclear = sum(loss is not None and loss.kind == "unclear" for loss in lost)
    losses = _joined([loss for loss in lost if loss is not None])
    harm = [loss for loss in losses if loss.kind == "harm"]
    breaches = [_says(loss) for loss in harm]
    worst = None
    if drive.limit is not None:
        has_zeroes = any(
            h.event == "zeroes" and host.drives[h.drive] == drive for h in host.happens
        )
        at_once = ZEROES_COST if has_zeroes else 0.0
        worst, broken = _worst_second(drive, drive.limit, with_, bounds, at_once)
        breaches += broken
    return Judged(
        len(lost),
        unclear,
        tuple(_rate(part, drive.name, 0, part.seconds) for part in without),
        _rate(with_, drive.name, 0, with_.seconds),
        drive.limit,
        max((loss.ratio for loss in harm), default=0.0),
        worst,
        tuple(losses),
        tuple(breaches),
    )


def _loss(
    host: FieldHost, drive: Drive, without: Sequence[Part], with_: Part, start_s: float
) -> Loss | None:
    """Return what was lost in a window; None if it isn't much."""
    end_s = start_s + WINDOW_S
    rates = [_rate(part, drive.name, start_s, end_s) for part in without]
    limit = math.inf
    if drive.limit is not None:
        mine = (h for h in host.happens if host.drives[h.drive] == drive)
        limit = max(1.0, drive.limit - sum(OWN_IOPS.get(h.event, 0.0) for h in mine))
    could = rates
    if drive.load.demand == "steady":
        could = [_under(limit, part, drive.name, start_s, end_s) for part in without]
    reference = min(*could, drive.load.most(limit))
    did = _rate(with_, drive.name, start_s, end_s) + _advance(drive, with_, start_s) / WINDOW_S
    lost = 1 - did / reference if reference else 0.0
    if lost <= LOST_RATIO:
        return None
    cause = _cause(drive, with_, start_s, end_s)
    if (promise := _promise(host, drive, with_, did, start_s, end_s)) is not None:
        return Loss("explained", start_s, end_s, lost, cause, promise)
    noise = max(rates) - min(rates)
    is_noise = cause == "nothing" and did >= (1 - LOST_RATIO) * reference - noise
    busy = is_busy(_within(with_, start_s, end_s))
    kind: Kind = "unclear" if busy or is_noise else "harm"
    return Loss(kind, start_s, end_s, lost, cause, _said(drive, with_, start_s, end_s))


def _rate(part: Part, name: str, start_s: float, end_s: float) -> float:
    return part.done[name].rate(part.begin_s + start_s, part.begin_s + end_s)


def _advance(drive: Drive, part: Part, until_s: float) -> float:
    """Return the cost of what a drain has let through above the drive's limit, still unpaid."""
    until, most = part.begin_s + until_s, 0.0
    for began, _ in part.drained.get(drive.name, ()):
        if drive.limit is not None and began < until:
            did = part.done[drive.name].rate(began, until)
            most = max(most, (did - drive.limit) * (until - began))
    return most


def _under(limit: float, part: Part, name: str, start_s: float, end_s: float) -> float:
    """Return what of its rate a drive would have done if no second had more than a limit."""
    seconds = range(round(end_s - start_s))
    return mean(min(limit, _rate(part, name, start_s + i, start_s + i + 1)) for i in seconds)


def _within(part: Part, start_s: float, end_s: float) -> list[Moment]:
    begin, end = part.begin_s + start_s, part.begin_s + end_s
    return [moment for moment in part.moments if begin <= moment.at_s <= end]


# What of iokeel's held the drive


def _cause(drive: Drive, part: Part, start_s: float, end_s: float) -> Cause:
    if drive.limit is None:
        return "nothing"
    if _allowed(drive, part, start_s, end_s) < (1 - LOST_RATIO) * drive.limit:
        return "limits"
    used = bound_used(_within(part, -HEAD_S, end_s), drive.name)
    return "bound" if used >= BOUND_USED_RATIO else "nothing"


def _allowed(drive: Drive, part: Part, start_s: float, end_s: float) -> float:
    """Return the rate that QEMU's limits let the drive's requests have."""
    done = part.done[drive.name].after(part.begin_s)
    throttle = Throttle(done, samples(part.looks[drive.name], drive.target, part.begin_s))
    used = throttle.used_ratio(start_s, end_s)
    return done.rate(start_s, end_s) / used if used else math.inf


def samples(looks: Sequence[Look], target: str, zero_s: float) -> list[Sample]:
    """Return a drive's limits, with times since `zero_s`."""
    return [
        Sample(look.at_s - zero_s, look.limits[target]) for look in looks if target in look.limits
    ]


def bound_used(moments: Sequence[Moment], name: str) -> float:
    """Return the share of its cgroup's bound that a guest has used, of the one used most.

    moments: up to now. It counts from the moment since when the share is highest: the kernel lets a
    large request through at once, and then nothing until its time is over.
    """
    most = 0.0
    for file in moments[-1].bounds.get(name, {}) if moments else ():
        used = allowed = 0.0
        for before, after in reversed([*pairwise(moments)]):
            if (bound := before.bounds.get(name, {}).get(file)) is None:
                break
            counts = [moment.used.get(name, {}).get(file, 0) for moment in (before, after)]
            used += counts[1] - counts[0]
            allowed += bound * (after.at_s - before.at_s)
            if allowed > bound:  # more than a second of it
                most = max(most, used / allowed)
    return most


# What explains it


def _promise(
    host: FieldHost, drive: Drive, part: Part, did: float, start_s: float, end_s: float
) -> str | None:
    """Return the promise to another drive that may have taken what was lost; None if none may."""
    begin_s = start_s - LOADED_BEFORE_S
    moments = _within(part, begin_s, end_s)
    if did < (1 - LOST_RATIO) * drive.reservation and host.capacity is not None:
        reserved = sum(each.reservation for each in host.drives)
        if reserved <= host.capacity:
            return None
    for other in host.drives:
        is_active = _rate(part, other.name, max(0.0, begin_s), end_s) >= _ACTIVE_IOPS
        if other.name == drive.name or other.limit is None or not is_active:
            continue
        target = other.latency_target_ms
        if target is not None and is_loaded(moments, target):
            return f"the latency target of {other.name}"
        if host.capacity is not None and is_loaded(moments, host.latency_target_ms):
            what = "the reservation" if other.reservation else "the weight"
            return f"{what} of {other.name}"
    return None


def is_loaded(moments: Sequence[Moment], target_ms: float | None) -> bool:
    """Return whether the storage's device was loaded for long enough, by the kernel's counters."""
    seconds = [*pairwise(moments[::2])]
    loaded = sum(_is_loaded(before, after, target_ms) for before, after in seconds)
    return loaded > LOADED_RATIO * len(seconds)


def _is_loaded(before: Moment, after: Moment, target_ms: float | None) -> bool:
    requests = after.device.requests - before.device.requests
    queue_ms = after.device.queue_ms - before.device.queue_ms
    queue = queue_ms / 1000 / (after.at_s - before.at_s)
    if target_ms is None:
        return queue >= LOADED_QUEUE
    return queue >= 1 and after.device.ms - before.device.ms > target_ms * requests


def is_busy(moments: Sequence[Moment]) -> bool:
    """Return whether this machine had no processor time left. What runs at a low priority waits."""
    if len(moments) < 2:
        return True
    first, last = moments[0], moments[-1]
    spent = max(1, last.processors.all - first.processors.all)
    busy = last.processors.busy_ratio(first.processors) - (last.nice - first.nice) / spent
    return last.processors.stolen_ratio(first.processors) > STOLEN_RATIO or busy > BUSY_RATIO


_TELLING = ("Its share", "can serve", "cgroup has", "So it may do", "Binding now")


def _said(drive: Drive, part: Part, start_s: float, end_s: float) -> str:
    """Return what the agent said of the drive at the end of a window."""
    begin_s, over_s = part.begin_s + start_s, part.begin_s + end_s
    said: Sequence[Said] = (part.said or {}).get(drive.name, ())
    last = next((each for each in reversed(said) if begin_s <= each.at_s <= over_s), None)
    if last is None:
        return "why: nothing"
    telling = [s for s in last.sentences if any(words in s for words in _TELLING)]
    return "why: " + " ".join(telling)


# A second above the limit


def _worst_second(
    drive: Drive, limit: int, part: Part, bounds: Bounds, at_once: float
) -> tuple[float, list[str]]:
    """Return the worst second over the limit, and the promises that it broke.

    at_once: the cost of the largest request beside the load.
    """
    done: Completions = part.done[drive.name].after(part.begin_s)
    looks = part.looks[drive.name]
    if not len(done.at_s):
        return 0.0, []
    zero_s = float(done.at_s[0])
    queue_cost = drive.load.depth * float(done.cost.max())  # what may wait in the throttle
    in_time = conformance.Drive(
        done.after(zero_s),
        samples(looks, drive.target, part.begin_s + zero_s),
        conformance.LATE_S + queue_cost / limit,
    )
    drained = part.drained.get(drive.name, ())

    def let_through(begin_s: float, end_s: float) -> float:
        times = (bounds.drains or 0) * sum(touch([s], begin_s, end_s) for s in drained)
        return times * queue_cost

    owing = []
    if bounds.drains is None:
        owing = [(began, _paid_s(drive, limit, part, began, over)) for began, over in drained]
    worst, broken = 0.0, []
    for start_s in window_starts(0.0, part.seconds):
        at_s = part.begin_s + start_s
        if touch(owing, at_s, at_s + 1):
            continue
        did = in_time.did_in_time(start_s - zero_s) - let_through(at_s, at_s + 1)
        worst = max(worst, did / limit)
    if worst > bounds.window_ratio:
        broken.append(f"did {worst:.3f} of its limit in a second")
    if bounds.passed_ratio is None:
        begun = [began - part.begin_s for began, _ in drained]
        rates = [
            _rate(part, drive.name, start_s, start_s + WINDOW_S)
            for start_s in begun
            if start_s + WINDOW_S <= part.seconds
        ]
        if (paid := max(rates, default=0.0) / limit) > bounds.window_ratio:
            broken.append(f"did {paid:.3f} of its limit in {WINDOW_S:.0f} s from a drain on")
        return worst, broken
    passed = max(_passed(looks, drive.target, limit, part, let_through), default=0.0)
    if passed > bounds.passed_ratio + at_once / limit:
        broken.append(f"QEMU let {passed:.3f} of its limit through in a second")
    return passed, broken


def _paid_s(drive: Drive, limit: int, part: Part, began_s: float, over_s: float) -> float:
    """Return when a drive has paid what a drain let through, but for a request."""
    done, end_s = part.done[drive.name], part.begin_s + part.seconds
    paid_s, one = over_s + conformance.LATE_S, float(done.cost.max())
    while paid_s < end_s and (done.rate(began_s, paid_s) - limit) * (paid_s - began_s) > one:
        paid_s += _STEP_S
    return paid_s


def _passed(
    looks: Sequence[Look],
    target: str,
    limit: int,
    part: Part,
    let_through: Callable[[float, float], float],
) -> Iterator[float]:
    """Yield what QEMU let through from each look to the first a second later, over the limit.

    Looks after the part don't count: QEMU drains the disk once more when a job is ended.
    """
    end_s = part.begin_s + part.seconds
    counts = [
        look for look in looks if target in look.passed and part.begin_s <= look.at_s <= end_s
    ]
    after = 0
    for before in counts:
        while after < len(counts) and counts[after].at_s - counts[after].took_s < before.at_s + 1:
            after += 1
        if after == len(counts):
            return
        then = counts[after]
        began_s = before.at_s - before.took_s
        cost = then.passed[target] - before.passed[target]
        yield (cost - let_through(began_s, then.at_s)) / (then.at_s - began_s) / limit


def _joined(losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses of windows, those of one kind that overlap as one."""
    found: list[Loss] = []
    for loss in losses:
        last = found[-1] if found else None
        if last is not None and last.kind == loss.kind and loss.begin_s <= last.until_s:
            worse = max(last, loss, key=lambda each: each.ratio)
            found[-1] = Loss(
                loss.kind, last.begin_s, loss.until_s, worse.ratio, worse.cause, worse.words
            )
        else:
            found.append(loss)
    return found


def _says(loss: Loss) -> str:
    held = {
        "limits": "by QEMU's limits",
        "bound": "by its cgroup's bound",
        "nothing": "unexplained",
    }[loss.cause]
    return (
        f"lost {loss.ratio:.0%} from {loss.begin_s:.0f} to {loss.until_s:.0f} s {held};"
        f" {loss.words}"
    )


def unclear_ratio(judged: Mapping[str, Judged]) -> float:
    """Return the share of the windows in which the machine was too busy to tell."""
    windows = sum(each.windows for each in judged.values())
    return sum(each.unclear for each in judged.values()) / windows if windows else 0.0
