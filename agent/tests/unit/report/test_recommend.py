"""What is recommended is what a rerun of the same load with that limit shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pytest

from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import KIB
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import BUILTIN_CLASSES, DrivePolicy
from iokeel.core.values.state import DriveState, Measured, State, StorageState
from iokeel.core.values.storage import StoragePolicy
from iokeel.report.recommend import limits_of, recommend
from iokeel.report.records import RecommendReport
from iokeel.report.weeks import weeks_report
from iokeel.store.weeks import HOUR_S
from testing.sim.loads import DAY_S, Load
from testing.sim.recording import FIRST, Recording
from testing.sim.week import NOISY, record_week

A_POINT = 0.01


def rerun(demands: Mapping[DriveId, Sequence[float]], limit: int, step_s: float) -> list[float]:
    """Return for which part of the time the law holds each drive to a limit, by its own count.

    Guests read 4 KiB, and don't ask later for what their limits didn't let through.
    """
    state, done = State(), dict.fromkeys(demands, 0.0)
    in_force: dict[DriveId, ThrottleLimits] = dict.fromkeys(demands, UNLIMITED)
    count = len(next(iter(demands.values())))
    for number in range(count + 1):
        now_ns = round((1000 + number * step_s) * NS_PER_S)
        seen = {}
        for drive, its in demands.items():
            if number:
                done[drive] += step_s * min(its[number - 1], held_to(in_force[drive]))
            reads = round(done[drive])
            counters = Counters(now_ns, reads, reads * 4 * KIB, 0, 0, 0, 0)
            policy = DrivePolicy(limit=limit)
            seen[drive] = DriveSeen(policy, counters, in_force[drive], abilities=STOCK)
        state, orders = decide(state, Observation(seen), now_ns)
        in_force |= {order.drive: order.limits for order in orders}
    return [state.drives[drive].demand.throttled_s / (count * step_s) for drive in demands]


def held_to(limits: ThrottleLimits) -> float:
    """Return how many reads of 4 KiB a second limits let through."""
    iops, bps = limits.iops_total, limits.bps_total
    return min(iops or float("inf"), (bps or float("inf")) / (4 * KIB))


def record(recording: Recording, demands: Mapping[DriveId, Iterable[float]], step_s: float) -> None:
    """Record drives that do all that they ask for."""
    for rates in zip(*demands.values(), strict=True):
        drives = {
            drive: DriveState(storage="ssd", measured=Measured(rate=rate))
            for drive, rate in zip(demands, rates, strict=True)
        }
        recording.sample(drives, step_s)
    recording.stop()


def recommended(recording: Recording, **limits: int) -> RecommendReport:
    return recommend(recording.recorder.hours(0, 10**9), limits)


@pytest.mark.parametrize("limit", [100, 250, 400, 700])
def test_a_rerun_with_the_limit_is_held_as_long(tmp_path: Path, limit: int) -> None:
    made = {
        DriveId(f"vm{n}", "vda"): [*islice(Load(n, 200, spread=0.2 + 0.2 * n).demands(4), 2000)]
        for n in range(4)
    }
    recording = Recording(tmp_path)
    record(recording, made, 4.0)
    found = recommended(recording, tried=limit)
    would = [use.would_hold["tried"] for use in found.drives]
    assert would == pytest.approx(rerun(made, limit, 4.0), abs=A_POINT)
    assert any(0.005 < part < 0.995 for part in would)


def test_quantiles_and_peak_are_those_of_the_load(tmp_path: Path) -> None:
    drive, made = DriveId("a", "vda"), [*islice(Load(7, 500).demands(4), 2000)]
    recording = Recording(tmp_path)
    record(recording, {drive: made}, 4.0)
    (use,) = recommended(recording).drives
    exact = sorted(made)
    for part, told in ((0.5, use.p50_iops), (0.95, use.p95_iops), (0.99, use.p99_iops)):
        assert told == pytest.approx(exact[round(part * len(exact))], rel=0.06)
    assert use.peak_iops == pytest.approx(exact[-1], rel=0.01)


def test_no_quantile_is_above_the_peak(tmp_path: Path) -> None:
    """A load that doesn't change is somewhere within its bucket."""
    drive = DriveId("a", "vda")
    recording = Recording(tmp_path)
    record(recording, {drive: [849.0] * 2000}, 4.0)
    (use,) = recommended(recording).drives
    assert use.p50_iops == use.p99_iops == use.peak_iops == pytest.approx(849, rel=0.01)


def test_a_drive_that_has_gone_says_until_when_it_was_here(tmp_path: Path) -> None:
    gone, here = DriveId("gone", "vda"), DriveId("here", "vda")
    recording = Recording(tmp_path)
    recording.run(HOUR_S - 60, {gone: 10.0, here: 10.0}, step_s=20)
    recording.run(HOUR_S, {here: 10.0}, step_s=20)
    recording.stop()
    until = {use.domain: use.until_s for use in recommended(recording).drives}
    assert until == {"gone": (FIRST + 1) * HOUR_S, "here": None}


def test_more_can_be_promised_by_what_was_used_at_once(tmp_path: Path) -> None:
    storage = StorageState(StoragePolicy(capacity=10_000), promised=6000.0)
    recording = Recording(tmp_path)
    for number in range(1000):
        rate = 4000.0 if number % 50 == 0 else 1000.0  # 2 % of the time
        drive = DriveState(storage="ssd", measured=Measured(rate=rate))
        drives = {DriveId(name, "vda"): drive for name in "ab"}
        recording.sample(drives, 20.0, {"ssd": storage})
    recording.stop()
    (ssd,) = recommended(recording).storages
    assert (ssd.usable_iops, ssd.reserved_iops) == (10_000, 6000)
    assert ssd.p50_iops == pytest.approx(2000, rel=0.03)
    assert ssd.more_iops == pytest.approx(10_000 - 8000, abs=300)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_week_of_200_drives(tmp_path: Path) -> None:
    """Daily shifts, a noisy neighbour, and a drive that was sold too little."""
    recording, step_s = Recording(tmp_path), 60.0
    week = record_week(recording, step_s)
    steps = len(week.noisy)
    hours = [*recording.recorder.hours(0, 10**9)]
    limits = limits_of(BUILTIN_CLASSES) | {"300": 300, "600": 600}
    found = recommend(iter(hours), limits)
    assert found.seconds == pytest.approx(7 * DAY_S, rel=0.001)

    # Each drive and limit, by the load itself.
    uses = {DriveId(use.domain, use.target): use for use in found.drives}
    for drive, its in {**week.demands, NOISY: week.noisy}.items():
        for name, limit in limits.items():
            exact = sum(rate >= 0.95 * limit for rate in its) / steps
            assert uses[drive].would_hold[name] == pytest.approx(exact, abs=A_POINT)

    # The drive that was sold too little, and the noisy neighbour.
    most_held = max(found.drives, key=lambda use: use.held_ratio)
    assert most_held.domain == "small"
    assert most_held.held_ratio == pytest.approx(week.throttled_s / (7 * DAY_S), abs=A_POINT)
    takers: dict[tuple[str, str], float] = {}
    for hour in hours:
        for taker, operations in hour.storages["ssd"].takers.items():
            takers[taker] = takers.get(taker, 0.0) + operations
    assert max(takers, key=lambda drive: takers[drive]) == NOISY
    assert takers[NOISY] == pytest.approx(week.took, rel=0.01)
    assert sum(hour.storages["ssd"].missed_s for hour in hours) == pytest.approx(
        week.missed_s, rel=0.01
    )

    # The report begins with both.
    until = FIRST + len(hours)
    neighbours, at_limit, *_ = weeks_report(iter(hours), FIRST, until).sections
    assert neighbours.finding.startswith("noisy/vda took most above what it was owed in ")
    assert at_limit.finding.startswith("small/vda was sold too little: ")

    # A rerun of five drives with a limit that holds them for some percent of the time.
    chosen = [drive for drive in week.demands if 0.01 < uses[drive].would_hold["600"] < 0.1][:5]
    again = rerun({drive: week.demands[drive] for drive in chosen}, 600, step_s)
    assert len(chosen) == 5
    assert [uses[drive].would_hold["600"] for drive in chosen] == pytest.approx(again, abs=A_POINT)
