"""What cuts teach: when they were in vain, and when they are tried again."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.correct.capacity import FIRST_ROOM_RATIO, follow
from iokeel.core.correct.headroom import least_useful_room
from iokeel.core.correct.lessons import FORGET_S, least_useful, lessons_after
from iokeel.core.values.claimant import claimant_of
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, Lessons

USABLE = 10_000
TARGET_S = 0.001


def learned(*seen: tuple[float | None, float | None], lowest_s: float | None = None) -> Lessons:
    """Return the lessons of some seconds: the others' rates and the drive's latencies.

    lowest_s: its latency in a last one, with the others cut as far as possible.
    """
    lessons = Lessons()
    for used, latency_s in seen:
        lessons = lessons_after(lessons, used, latency_s, 1.0, exhausted=False)
    if lowest_s is not None:
        lessons = lessons_after(lessons, 500, lowest_s, 1.0, exhausted=True)
    return lessons


@pytest.mark.parametrize(
    ("lowest_s", "least"),
    [(0.0041, 8000), (0.0039, 4000), (0.0019, 500), (0.0012, 0)],
)
def test_cuts_that_lower_latency_by_less_than_a_fifth_are_in_vain(
    lowest_s: float, least: float
) -> None:
    lessons = learned((8000, 0.005), (4000, 0.0045), (2000, 0.004), lowest_s=lowest_s)
    lessons = lessons_after(lessons, 2000, None, 1.0, exhausted=False)
    assert 0.79 * least <= least_useful(lessons, TARGET_S) <= 1.1 * least


def test_nothing_is_in_vain_before_all_was_tried() -> None:
    assert least_useful(learned((8000, 0.005), (1000, 0.005)), TARGET_S) == 0


def test_a_raised_target_counts_at_once() -> None:
    lessons = learned((8000, 0.005), lowest_s=0.0049)
    assert least_useful(lessons, TARGET_S) > 0
    assert least_useful(lessons, 0.004) == 0


def test_a_latency_far_below_the_lowest_shows_another_load() -> None:
    lessons = learned((8000, 0.005), lowest_s=0.005)
    after = lessons_after(lessons, 4000, 0.0039, 1.0, exhausted=False)
    assert after.lowest_s is None
    assert list(after.latencies.values()) == [0.0039]


def test_a_higher_latency_corrects_what_is_remembered() -> None:
    lessons = learned((8000, 0.005), lowest_s=0.0049)
    for _ in range(3):
        lessons = lessons_after(lessons, 8000, 0.009, 1.0, exhausted=False)
    assert least_useful(lessons, TARGET_S) < 1000


def test_idle_drives_teach_nothing_but_time_passes() -> None:
    lessons = learned((8000, 0.005), lowest_s=0.005)
    for _ in range(int(FORGET_S) - 1):
        lessons = lessons_after(lessons, 8000, None, 1.0, exhausted=True)
    assert least_useful(lessons, TARGET_S) > 6300
    assert lessons_after(lessons, 8000, None, 1.0, exhausted=True) == Lessons()
    assert learned((8000, None), (None, 0.005)) == Lessons()


RATES = st.floats(0, 1e9) | st.none()
LATENCIES = st.floats(1e-9, 1e6) | st.none()


@given(st.lists(st.tuples(RATES, LATENCIES, st.booleans()), max_size=50))
def test_the_least_useful_rate_is_at_most_one_level_above_those_seen(
    seen: list[tuple[float | None, float | None, bool]],
) -> None:
    lessons = Lessons()
    for used, latency_s, exhausted in seen:
        lessons = lessons_after(lessons, used, latency_s, 1.0, exhausted=exhausted)
    most = max((used or 0.0 for used, _, _ in seen), default=0.0)
    assert 0 <= least_useful(lessons, TARGET_S) <= 1.35 * max(1.0, most)


def rooms(
    latency: Callable[[float, int], float],
    seed: int,
    seconds: int = 1200,
    most: float = 1.0,
    idle_s: int = 0,
) -> list[float]:
    """Return the rooms on a storage whose latency, in ms, follows its use and the time, noisily.

    most: the part of its capacity that it can really do. idle_s: for how long the others do next to
    nothing at first.
    """
    room, lessons, noise, seen = FIRST_ROOM_RATIO, Lessons(), Random(seed), []
    for second in range(seconds):
        used = min(most, room) if second >= idle_s else 0.001
        latency_s = latency(used, second) / 1000 * exp(noise.gauss(0, 0.1))
        lessons = lessons_after(lessons, used * USABLE, latency_s, 1.0, exhausted=room <= 0.05)
        strain = latency_s / TARGET_S
        room = follow(room, strain, used=used, short=True, loaded=True, elapsed_s=1.0)
        least = min(FIRST_ROOM_RATIO, least_useful(lessons, TARGET_S) / USABLE)
        room = min(1.0, max(0.05, room, least))
        seen.append(room)
    return seen[60:]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def queue(used: float, least_ms: float) -> float:
    """Return the latency of a queue with one server and random arrivals."""
    return least_ms / (1 - min(used, 0.98))


def test_where_no_higher_rate_was_seen_it_is_tried() -> None:
    lessons = learned((500, 0.005), lowest_s=0.005)
    assert 500 < least_useful(lessons, TARGET_S) < 800


seeds = pytest.mark.parametrize("seed", range(5))


def test_a_latency_that_nobody_else_causes_costs_the_others_little() -> None:
    for idle_s in (0, 40):
        runs = [rooms(lambda _, __: 3.0, seed, idle_s=idle_s) for seed in range(10)]
        assert mean([mean(seen) for seen in runs]) > 0.6


@seeds
def test_a_target_is_reached_where_cuts_help(seed: int) -> None:
    seen = rooms(lambda used, _: queue(used, 0.7), seed)
    assert mean([queue(room, 0.7) for room in seen]) < 1
    assert mean(seen) > 0.15


@seeds
def test_it_is_reached_after_a_single_long_reading(seed: int) -> None:
    seen = rooms(lambda used, second: queue(used, 0.7) * (3 if second == 60 else 1), seed)
    assert mean([queue(room, 0.7) for room in seen]) < 1


@seeds
def test_it_is_reached_beyond_a_plateau(seed: int) -> None:
    assert mean(rooms(lambda used, _: 10 if used > 0.2 else 0.8, seed)) < 0.21


@seeds
def test_it_is_reached_where_the_first_cuts_hold_nobody(seed: int) -> None:
    assert mean(rooms(lambda used, _: 12 * used, seed, most=0.2)) < 1 / 12


@seeds
def test_it_is_reached_again_after_an_outage_of_the_storage(seed: int) -> None:
    seen = rooms(lambda used, s: queue(used, 5 if 100 < s < 600 else 0.7), seed, seconds=2400)
    assert mean([queue(room, 0.7) for room in seen[1200:]]) < 1


@pytest.mark.parametrize("lowest_s", [None, 0.0005])
@pytest.mark.parametrize(("latency_s", "counts"), [(0.00079, False), (0.00081, True)])
def test_a_drive_well_within_its_target_is_no_reason_to_cut_others(
    lowest_s: float | None, latency_s: float, counts: bool
) -> None:
    policy = DrivePolicy(latency_target_ms=TARGET_S * 1000)
    vain, met = (
        claimant_of(DriveId(name, "vda"), DriveState(policy=policy), policy)
        for name in ("vain", "met")
    )
    lessons = {
        vain.drive: learned((8000, 0.005), (4000, 0.005), lowest_s=0.005),
        met.drive: learned((8000, latency_s), (4000, 0.0006), lowest_s=lowest_s),
    }
    least = least_useful_room(USABLE, [vain], lessons)
    assert least > 0.5
    assert least_useful_room(USABLE, [vain, met], lessons) == (0 if counts else least)
    assert least_useful_room(USABLE, [met], lessons) == 0


def test_a_drive_that_is_idle_is_no_reason_to_cut_others() -> None:
    policy = DrivePolicy(latency_target_ms=TARGET_S * 1000)
    busy, idle = (
        claimant_of(DriveId(name, "vda"), DriveState(policy=policy), policy)
        for name in ("busy", "idle")
    )
    lessons = {busy.drive: learned((8000, 0.005), lowest_s=0.005), idle.drive: Lessons()}
    least = least_useful_room(USABLE, [busy], lessons)
    assert least > 0.5
    assert least_useful_room(USABLE, [busy, idle], lessons) == least
    assert least_useful_room(USABLE, [idle], lessons) == 0
