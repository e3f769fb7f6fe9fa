"""Every figure of the report: its formula, its unit, and which way is better.

Symbols, all of one run:

    r(t)     normalized operations of a drive in second t, from 0 on
    T        a window: as many seconds as the disk's times are stretched (`Setup.window_s`). What is
             left of the time at its end is no window
    r(T)     a drive's mean rate in it
    r        its mean rate over the measured time
    o        what it is owed: its limit, or its part by weight of the capacity
    R        its reservation
    w        its weight
    L, L99   the mean and the 99th percentile of its requests' times
    alone    the same drive with no control and no neighbours (the median of its runs, in all cases
             in which its load is the same)
    none     the same run with no control (the median of its runs)

A figure is None if the run hasn't what its formula takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from benchmarks.bench.metric import Metric, OfDrive, Seen, median_of
from benchmarks.bench.records import DriveRun, Plan, Run

#: From this second on a reservation counts, and what is known decides.
_KNOWN_S = 2
#: A drive is priced right while it is this near to what it is owed.
_RIGHT_RATIO = 0.05
#: How long the beginning and the end of a run are.
_END_S = 10
#: With fewer requests, a 99th percentile is nearly their maximum.
_P99_REQUESTS = 100
#: In words for readers.
_WINDOWS = "T: windows of slowdown x 1 s"
#: Above this a drive is in a burst.
_BURST_RATIO = 1.5


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _errors(seen: Seen, plan: Plan, drive: str) -> list[float] | None:
    rates = seen.seconds(drive)
    return [abs(rate / plan.owed - 1) for rate in rates] if rates else None


def _error(percentile: float) -> OfDrive:
    def of(seen: Seen, plan: Plan, drive: str) -> float | None:
        errors = _errors(seen, plan, drive)
        return None if errors is None else float(np.percentile(errors, percentile))

    return of


def _overspend(seen: Seen, plan: Plan, drive: str) -> float | None:
    rates = seen.seconds(drive)
    if not rates:
        return None
    return sum(max(0.0, rate - plan.owed) for rate in rates) / (plan.owed * len(rates))


def _held(seen: Seen, plan: Plan, drive: str) -> float | None:
    return seen.run.drives[drive].rate / plan.owed


def _first_seconds(seen: Seen, plan: Plan, drive: str) -> float | None:
    return _mean_of_owed((seen.run.drives[drive].by_second or [])[:_END_S], plan)


def _last_seconds(seen: Seen, plan: Plan, drive: str) -> float | None:
    return _mean_of_owed((seen.seconds(drive) or [])[-_END_S:], plan)


def _mean_of_owed(rates: Sequence[float], plan: Plan) -> float | None:
    return sum(rates) / (plan.owed * len(rates)) if rates else None


def _burst(seen: Seen, plan: Plan, drive: str) -> float | None:
    rates = seen.seconds(drive)
    if rates is None or plan.credit_s is None:
        return None
    return _ratio(sum(rate > _BURST_RATIO * plan.owed for rate in rates), plan.credit_s)


def _reprice(seen: Seen, plan: Plan, drive: str) -> float | None:
    rates = seen.run.drives[drive].by_second
    if not rates or not plan.shifts_s:
        return None
    ends = [*plan.shifts_s[1:], float(len(rates))]
    times = [
        back_s([rate / plan.owed for rate in rates[round(start) : round(end)]])
        for start, end in zip(plan.shifts_s, ends, strict=True)
    ]
    known = [one for one in times if one is not None]
    return max(known) if len(known) == len(times) else None


def back_s(ratios: Sequence[float]) -> float | None:
    """Return the seconds after which every later one is within _RIGHT_RATIO of 1; None: never."""
    wrong = [i for i, ratio in enumerate(ratios) if abs(ratio - 1) > _RIGHT_RATIO]
    if not wrong:
        return 0.0
    return None if wrong[-1] == len(ratios) - 1 else wrong[-1] + 1.0


def _isolation(seen: Seen, plan: Plan, drive: str) -> float | None:
    alone = seen.alone(drive, lambda one: one.rate)
    rates = seen.windows(drive, seen.setup.begin_s)
    if not alone or not rates:
        return None
    return float(np.percentile([min(1.0, rate / alone) for rate in rates], 1))


def _kept(seen: Seen, plan: Plan, drive: str) -> float | None:
    first = median_of([run.drives[drive].rate for run in seen.first_none])
    return _ratio(seen.run.drives[drive].rate, first)


def _kept_own(seen: Seen, plan: Plan, drive: str) -> float | None:
    first = median_of([run.drives[drive].rate for run in seen.first_own])
    return _ratio(seen.run.drives[drive].rate, first)


def _mean_ms(one: DriveRun) -> float | None:
    return one.latency_mean_ms


def _p99_ms(one: DriveRun) -> float | None:
    if one.requests is None or one.bytes_measured is None or not one.bytes:
        return None
    measured = one.requests * one.bytes_measured / one.bytes
    return one.latency_p99_ms if measured >= _P99_REQUESTS else None


def _over_alone(of: Callable[[DriveRun], float | None]) -> OfDrive:
    def ratio(seen: Seen, plan: Plan, drive: str) -> float | None:
        return _ratio(of(seen.run.drives[drive]), seen.alone(drive, of))

    return ratio


def _own_ms(of: Callable[[DriveRun], float | None]) -> OfDrive:
    def own(seen: Seen, plan: Plan, drive: str) -> float | None:
        return _ratio(of(seen.run.drives[drive]), seen.setup.slowdown)

    return own


def _attained(plan: Plan, rates: Sequence[float]) -> list[float]:
    """Return what a reservation had in each of these times: more than all of it is no better."""
    return [min(1.0, rate / plan.reservation) for rate in rates] if plan.reservation else []


def _attainment(seen: Seen, plan: Plan, drive: str) -> float | None:
    return min(_attained(plan, (seen.run.drives[drive].by_second or [])[_KNOWN_S:]), default=None)


def _attainment_window(seen: Seen, plan: Plan, drive: str) -> float | None:
    return min(_attained(plan, seen.windows(drive, _KNOWN_S)), default=None)


def _missed(seen: Seen, plan: Plan, drive: str) -> float | None:
    had = _attained(plan, (seen.run.drives[drive].by_second or [])[_KNOWN_S:])
    return sum(one < 1 - _RIGHT_RATIO for one in had) / len(had) if had else None


def _finished(seen: Seen, plan: Plan, drive: str) -> float | None:
    return seen.run.drives[drive].finished_s


def _file_s(seen: Seen, plan: Plan, drive: str) -> float | None:
    done = seen.run.drives[drive].bytes_measured
    measured_s = seen.setup.seconds - seen.setup.begin_s
    return plan.file_bytes * measured_s / done if done and plan.file_bytes else None


def _file_over_alone(seen: Seen, plan: Plan, drive: str) -> float | None:
    done = seen.run.drives[drive].bytes_measured
    return _ratio(seen.alone(drive, lambda one: one.bytes_measured), done)


def total(run: Run) -> float:
    """Return the sum of all drives' rates."""
    return sum(one.rate for one in run.drives.values())


def _work(seen: Seen) -> float | None:
    return _ratio(total(seen.run), seen.none(total))


def _of_limit(seen: Seen) -> float | None:
    return total(seen.run) / sum(plan.owed for plan in seen.case.plans.values())


def _jain(seen: Seen) -> float | None:
    weighted = [one.rate / seen.case.plans[name].weight for name, one in seen.run.drives.items()]
    squares = sum(one * one for one in weighted)
    return sum(weighted) ** 2 / (len(weighted) * squares) if squares else None


def _share(seen: Seen, plan: Plan, drive: str) -> float | None:
    weights = sum(seen.case.plans[name].weight for name in seen.run.drives)
    return _ratio(seen.run.drives[drive].rate * weights, total(seen.run) * plan.weight)


def _share_error(seen: Seen) -> float | None:
    shares = [_share(seen, seen.case.plans[name], name) for name in seen.run.drives]
    return max((abs(one - 1) for one in shares if one is not None), default=None)


def _cap_error(seen: Seen) -> float | None:
    seconds = [seen.seconds(drive) for drive in seen.run.drives]
    owed = sum(plan.owed for plan in seen.case.plans.values())
    if not all(seconds):
        return None
    totals = [sum(rates) for rates in zip(*(one or [] for one in seconds), strict=True)]
    return fmean(abs(rate / owed - 1) for rate in totals)


def _lowest_part(seen: Seen) -> float | None:
    parts = []
    plans, owed = seen.case.plans, sum(plan.owed for plan in seen.case.plans.values())
    for name, one in seen.run.drives.items():
        begin = max(plans[name].from_s, seen.setup.begin_s)
        for t, rate in enumerate(one.by_second or []):
            if t >= begin:
                weights = sum(plan.weight for plan in plans.values() if plan.from_s <= t)
                parts.append(rate / (owed * plans[name].weight / weights))
    return min(parts, default=None)


def _ends(seen: Seen) -> list[float] | None:
    ends = [one.finished_s for one in seen.run.drives.values()]
    known = [end for end in ends if end is not None]
    return known if len(known) == len(ends) else None


def _last_finished(seen: Seen) -> float | None:
    ends = _ends(seen)
    return max(ends) if ends else None


def _finish_spread(seen: Seen) -> float | None:
    ends = _ends(seen)
    return (max(ends) - min(ends)) / max(ends) if ends else None


def _control_us(seen: Seen) -> float | None:
    return _us_per_request(seen.run, seen.run.control_cpu_s)


def _fio_sys_us(seen: Seen) -> float | None:
    times = [one.fio_sys_s for one in seen.run.drives.values()]
    known = [one for one in times if one is not None]
    return _us_per_request(seen.run, sum(known) if len(known) == len(times) else None)


def _us_per_request(run: Run, cpu_s: float | None) -> float | None:
    counts = [one.requests for one in run.drives.values()]
    if cpu_s is None or None in counts:
        return None
    return _ratio(1e6 * cpu_s, sum(one or 0 for one in counts))


METRICS = {
    each.name: each
    for each in (
        Metric("held", "rate, of what is owed", "r / o", "%", "one", _held),
        Metric(
            "error_p50",
            "error of a second, median",
            "p50 of |r(t) / o - 1|",
            "%",
            "less",
            _error(50),
        ),
        Metric(
            "error_p99", "error of a second, p99", "p99 of |r(t) / o - 1|", "%", "less", _error(99)
        ),
        Metric(
            "error_worst",
            "error of a second, worst",
            "max of |r(t) / o - 1|",
            "%",
            "less",
            _error(100),
        ),
        Metric(
            "overspend", "overspend", "sum of max(0, r(t) - o) / sum of o", "%", "less", _overspend
        ),
        Metric(
            "first_10s",
            "first 10 s, of what is owed",
            "sum of r(t) / sum of o, t < 10",
            "%",
            "one",
            _first_seconds,
        ),
        Metric(
            "last_10s",
            "last 10 s, of what is owed",
            "sum of r(t) / sum of o, t in the last 10 s",
            "%",
            "one",
            _last_seconds,
        ),
        Metric(
            "burst",
            "time in a burst, of the credit",
            "seconds with r(t) / o > 1.5, over those that it has earned",
            "%",
            "one",
            _burst,
        ),
        Metric(
            "reprice_s",
            "worst time to reprice",
            "longest time after a shift until every r(t) / o up to the next one is within 5 % of 1;"
            " never if the last second isn't",
            "s",
            "less",
            _reprice,
            never="never",
        ),
        Metric(
            "isolation_p01",
            "isolation, p01",
            f"p01 of min(1, r(T) / r alone), {_WINDOWS}",
            "%",
            "more",
            _isolation,
            windows_from_s=lambda setup: setup.begin_s,
        ),
        Metric(
            "kept",
            "kept, of the first case",
            "r / r with no control in the first case",
            "%",
            "more",
            _kept,
        ),
        Metric(
            "kept_own",
            "kept, of its own first case",
            "r / r under the same controller in the first case",
            "%",
            "more",
            _kept_own,
        ),
        Metric(
            "latency_impact",
            "latency over alone, mean",
            "L / L alone",
            "x",
            "less",
            _over_alone(_mean_ms),
        ),
        Metric(
            "latency_impact_p99",
            "latency over alone, p99",
            f"L99 / L99 alone, of {_P99_REQUESTS} requests or more: of fewer it is nearly the most",
            "x",
            "less",
            _over_alone(_p99_ms),
            may_lack=True,
        ),
        Metric(
            "latency_ms",
            "mean latency, the disk's own time",
            "L / slowdown",
            "ms",
            "less",
            _own_ms(_mean_ms),
        ),
        Metric(
            "latency_max_ms",
            "worst latency, the disk's own time",
            "max of times / slowdown",
            "ms",
            "less",
            _own_ms(lambda one: one.latency_max_ms),
        ),
        Metric(
            "attainment",
            "lowest second, of the reservation",
            f"min of min(1, r(t) / R), from second {_KNOWN_S} on",
            "%",
            "more",
            _attainment,
            may_lack=True,
            of_seconds=True,
        ),
        Metric(
            "missed",
            "seconds below the reservation",
            f"part of the seconds from {_KNOWN_S} on with r(t) / R < {1 - _RIGHT_RATIO:g}",
            "%",
            "less",
            _missed,
            may_lack=True,
            of_seconds=True,
        ),
        Metric(
            "attainment_window",
            "lowest window, of the reservation",
            f"min of min(1, r(T) / R), {_WINDOWS}, from second {_KNOWN_S} on",
            "%",
            "more",
            _attainment_window,
            windows_from_s=lambda setup: _KNOWN_S,
        ),
        Metric("finished_s", "finished after", "end of its last request", "s", "less", _finished),
        Metric(
            "file_s",
            "time for the file",
            "file / bytes a second in the measured time",
            "s",
            "less",
            _file_s,
        ),
        Metric(
            "file_over_alone",
            "time for the file, over alone",
            "bytes a second alone / with the others",
            "x",
            "less",
            _file_over_alone,
        ),
        Metric(
            "work",
            "throughput, of no control",
            "sum of r / sum of r with none",
            "%",
            "more",
            of_run=_work,
        ),
        Metric(
            "of_limit",
            "all drives, of what is owed",
            "sum of r / sum of o",
            "%",
            "one",
            of_run=_of_limit,
        ),
        Metric(
            "cap_error",
            "error of a second, all drives, mean",
            "mean of |sum of r(t) / sum of o - 1|",
            "%",
            "less",
            of_run=_cap_error,
        ),
        Metric(
            "lowest_part",
            "lowest second of a drive, of its part",
            "min of r(t) / its part by weight of the sum of o, among drives whose load has begun",
            "%",
            "more",
            of_run=_lowest_part,
        ),
        Metric(
            "finish_spread",
            "first to last finished, of the last",
            "(last end - first end) / last end",
            "%",
            "less",
            of_run=_finish_spread,
        ),
        Metric(
            "jain",
            "Jain's index over weights",
            "(sum of x)^2 / (n sum of x^2), x = r / w",
            "%",
            "more",
            of_run=_jain,
        ),
        Metric(
            "share",
            "share, of its weight's",
            "(r / sum of r) / (w / sum of w)",
            "%",
            "one",
            _share,
        ),
        Metric(
            "share_error",
            "furthest share from its weight",
            "max of |(r / sum of r) / (w / sum of w) - 1|",
            "%",
            "less",
            of_run=_share_error,
        ),
        Metric(
            "all_finished_s",
            "the last finished after",
            "max of the ends of all drives",
            "s",
            "less",
            of_run=_last_finished,
        ),
        Metric(
            "control_us",
            "the control's processor time per request",
            "processor time / requests",
            "us",
            "less",
            of_run=_control_us,
            may_lack=True,
        ),
        Metric(
            "fio_sys_us",
            "fio's processor time in the kernel per request",
            "processor time in the kernel / requests",
            "us",
            "less",
            of_run=_fio_sys_us,
        ),
    )
}
