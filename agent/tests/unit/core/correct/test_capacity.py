"""Feedback by latency: which way it goes, how fast at most, and when it stays."""

from collections.abc import Container
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.correct.capacity import (
    CALM_RATIO,
    CREEP_RATIO,
    CREEP_TO,
    FIRST_ROOM_RATIO,
    LONGEST_S,
    SEEN_MOST,
    STEP,
    UP_RATIO,
    Unmet,
    feedback_after,
    follow,
    is_full,
    peak_after,
    room_while_idle,
)
from iokeel.core.correct.lessons import FORGET_S, SLACK
from iokeel.core.values.state import Division, Feedback, StorageState
from iokeel.core.values.storage import Load, StorageActivity, StoragePolicy

RATIOS = st.floats(0.01, 10)
STRAINS = st.floats(0.001, 1e6)
TIMES = st.floats(0.05, 2)
USED = st.floats(0, 20)


def after(
    ratio: float,
    strain: float | None,
    elapsed_s: float = 1.0,
    *,
    used: float | None = None,
    short: bool = True,
    loaded: bool = True,
    full: float = 0.0,
) -> float:
    did = ratio if used is None else used
    return follow(
        ratio, strain, used=did, short=short, loaded=loaded, elapsed_s=elapsed_s, full=full
    )


@given(RATIOS, STRAINS, TIMES, USED, st.booleans(), st.booleans())
def test_it_never_moves_faster_than_it_may(
    ratio: float, strain: float, elapsed_s: float, used: float, short: bool, loaded: bool
) -> None:
    moved = after(ratio, strain, elapsed_s, used=used, short=short, loaded=loaded) / ratio
    assert SEEN_MOST**-elapsed_s * 0.999 <= moved <= (1 + UP_RATIO) ** elapsed_s * 1.001


@given(RATIOS, STRAINS, TIMES)
def test_it_goes_up_only_where_somebody_wants_more_and_down_only_where_it_is_loaded(
    ratio: float, strain: float, elapsed_s: float
) -> None:
    assert after(ratio, strain, elapsed_s, short=False) <= ratio
    assert after(ratio, strain, elapsed_s, loaded=False) >= ratio
    assert after(ratio, strain, elapsed_s, short=False, loaded=False) == ratio


@given(RATIOS, TIMES, st.floats(CALM_RATIO, 1), st.booleans())
def test_it_stays_while_latency_is_just_below_its_target(
    ratio: float, elapsed_s: float, strain: float, short: bool
) -> None:
    assert after(ratio, strain, elapsed_s, short=short) == ratio
    assert after(ratio, None, elapsed_s) == ratio


@given(RATIOS, TIMES, STRAINS, STRAINS, RATIOS)
def test_a_higher_latency_never_lets_through_more(
    ratio: float, elapsed_s: float, one: float, other: float, full: float
) -> None:
    low, high = sorted((one, other))
    most = after(ratio, low, elapsed_s, full=full)
    assert after(ratio, high, elapsed_s, full=full) <= most * 1.000001


@given(RATIOS, TIMES, st.floats(CALM_RATIO, 0.99), RATIOS)
def test_just_below_its_target_it_creeps_to_a_little_below_where_it_was_full(
    ratio: float, elapsed_s: float, strain: float, full: float
) -> None:
    found = after(ratio, strain, elapsed_s, full=full)
    assert ratio <= found <= ratio * (1 + CREEP_RATIO) ** elapsed_s * 1.000001
    assert found <= max(ratio, CREEP_TO * full)
    assert (found > ratio) is (ratio < CREEP_TO * full)


@given(RATIOS, STRAINS, st.integers(1, 20))
def test_it_depends_on_the_time_and_not_on_how_often_it_is_asked(
    ratio: float, strain: float, times: int
) -> None:
    often = ratio
    for _ in range(times):
        often = after(often, strain, 1.0 / times)
    assert often == pytest.approx(after(ratio, strain))


@given(RATIOS, STRAINS)
def test_one_reading_after_a_long_gap_counts_for_two_seconds_at_most(
    ratio: float, strain: float
) -> None:
    assert after(ratio, strain, 3600.0) == after(ratio, strain, 2.0)


@given(st.floats(1.1, 1e6), st.floats(0.75, 0.95))
def test_the_first_step_down_is_to_a_little_below_what_was_done(strain: float, used: float) -> None:
    """A storage that is full does what it can, however wrong its capacity is."""
    found = after(1.0, strain, used=used)
    assert max(1 / SEEN_MOST, STEP * SLACK * used * 0.999) <= found <= min(1.0, SLACK * used)


def strains(
    knee: float, seconds: int, disturbed: Container[int] = ()
) -> tuple[list[float], list[float]]:
    """Return a storage's strain and ratio, each second, while it is short of capacity.

    At a ratio of 1 it has half of its target's latency; beyond, latency grows by this power. It
    has twice as much in the seconds in which something else disturbs it.
    """
    policy = StoragePolicy(10_000, 1.0, most_ratio=4)
    state = StorageState(policy, division=Division(usable=10_000, short=True))
    found = []
    for second in range(seconds):
        ratio = state.feedback.ratio
        strain = (1.0 if second in disturbed else 0.5) * ratio**knee
        found.append((strain, ratio))
        activity = StorageActivity(1.0, 10_000 * ratio, strain / 1000, 1.0, 32, 1.0, 1.0)
        load = Load(activity, 10_000 * ratio, short=True)
        feedback = feedback_after(state, load, creeps=True)
        division = Division(usable=10_000 * feedback.ratio, short=True)
        state = StorageState(
            policy, activity=activity, feedback=feedback, division=division, load=load
        )
    return tuple(map(list, zip(*found, strict=True)))  # type: ignore[return-value]


@pytest.mark.parametrize("knee", [0.5, 1, 2, 4, 8, 16])
def test_a_storage_is_used_nearly_to_its_target_and_seldom_beyond(knee: float) -> None:
    seen, ratios = strains(knee, 600)
    full = min(4, 2 ** (1 / knee))  # where it has its target's latency, or the bound
    late = ratios[120:]
    assert min(late) >= 0.92 * full
    assert sum(late) / len(late) >= 0.945 * full
    assert max(seen) < 1.5
    assert sum(strain > 1.02 for strain in seen) <= 0.02 * len(seen)


@pytest.mark.parametrize("knee", [0.5, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("lasts_s", [1, 3])
@pytest.mark.parametrize("begins_s", [2, 6, 100, 300])
def test_a_disturbance_costs_a_storage_no_more_than_a_minute(
    knee: float, lasts_s: int, begins_s: int
) -> None:
    _, ratios = strains(knee, 600, range(begins_s, begins_s + lasts_s))
    full = min(4, 2 ** (1 / knee))
    late = ratios[max(120, begins_s + lasts_s + 60) :]
    assert min(late) >= 0.92 * full


def test_where_it_was_full_is_forgotten_slowly_whatever_the_gap() -> None:
    policy = StoragePolicy(10_000, 1.0)
    feedback = Feedback(passed=(1.0, 1.2))
    state = StorageState(policy, feedback=feedback, division=Division(usable=10_000))
    for elapsed_s in (1.0, 3e6):
        load = Load(StorageActivity(elapsed_s, 10_000, 0.0005, 1.0, 32, 1.0, 1.0), 10_000)
        assert 1.2 < max(feedback_after(state, load).passed) < 1.21


@pytest.mark.parametrize("short", [False, True])
def test_a_calm_storage_is_still_full_while_a_drive_is_short(short: bool) -> None:
    """It may be calm because its drives are held."""
    policy, activity = StoragePolicy(10_000, 1.0), StorageActivity(1, 9000, 0.0003, 1, 3, 1, 1)
    feedback = Feedback(ratio=1.2, passed=(1.0, 1.1))
    division = Division(usable=12_000, short=short)
    state = StorageState(policy, feedback=feedback, division=division, activity=activity)
    found = feedback_after(state, Load(activity, 12_000))
    assert is_full(policy, found, activity) == short


@pytest.mark.parametrize("suffers", [False, True])
def test_a_reading_after_a_gap_of_days_moves_a_learnt_capacity_as_one(suffers: bool) -> None:
    before = StorageState(
        StoragePolicy(), division=Division(1000.0, short=True), feedback=Feedback(peak=1000.0)
    )
    after_gap = peak_after(before, 0.0, suffers, 1e6, shrinks=suffers)
    longest = 2.0 ** (LONGEST_S / FORGET_S)
    assert after_gap == pytest.approx(1000 / longest if suffers else 1000 * longest)


def learnt(room: float, *, short: bool = True, capacity: int | None = None) -> StorageState:
    """Return a divided storage with a peak of 1000 and this room."""
    return StorageState(
        StoragePolicy(capacity),
        division=Division(1000.0, short=short),
        feedback=Feedback(room=room, peak=1000.0),
    )


ROOMS = st.floats(0.05, 1)


@given(ROOMS, st.booleans(), st.booleans(), TIMES)
def test_a_learnt_capacity_and_the_room_never_wind_up_against_each_other(
    room: float, short: bool, suffers: bool, elapsed_s: float
) -> None:
    """The room alone goes down, and the peak goes up only once the room has."""
    before = learnt(room, short=short)
    peak = peak_after(before, 0.0, suffers, elapsed_s, shrinks=False)
    assert (peak > 1000) is (short and not suffers and room >= FIRST_ROOM_RATIO)
    assert peak >= 1000


@pytest.mark.parametrize(("suffers", "shrinks"), [(False, False), (True, False), (True, True)])
def test_one_impossible_reading_at_most_doubles_what_is_divided(
    suffers: bool, shrinks: bool
) -> None:
    before = learnt(0.5)
    for total, expected in ((1500.0, 1500), (2.0**62, 2000)):
        peak = peak_after(before, total, suffers, 1.0, shrinks=shrinks)
        assert peak == expected
    unknown = replace(before, feedback=Feedback(room=0.5))
    assert peak_after(unknown, 500.0, suffers, 1.0, shrinks=shrinks) == 500


@given(ROOMS, st.booleans(), TIMES)
def test_while_protected_drives_are_idle_the_others_regain_room_of_an_unknown_capacity(
    room: float, short: bool, elapsed_s: float
) -> None:
    assert room_while_idle(learnt(room, capacity=1000), elapsed_s) == room
    after = room_while_idle(learnt(room, short=short), elapsed_s)
    assert (after > room) is (short and room < FIRST_ROOM_RATIO)
    assert after <= max(room, min(FIRST_ROOM_RATIO, room * 2 ** (elapsed_s / FORGET_S)))


@pytest.mark.parametrize(
    ("latency_s", "strain", "least", "expected"),
    [
        (0.001, 3.0, 0.2, STEP),  # it is cut for drives that the storage holds up
        (0.001, 3.0, 0.95, 0.95),  # but not below what is owed
        (0.001, 1.0, 0.2, 1.0),  # nor raised while they have just what they want
        (0.010, 3.0, 0.95, STEP),  # its own latency has no such bound
    ],
)
def test_drives_that_are_held_up_count_as_a_latency_would(
    latency_s: float, strain: float, least: float, expected: float
) -> None:
    before = StorageState(StoragePolicy(1000, 5.0), division=Division(1000.0, short=True))
    load = Load(StorageActivity(1.0, 1000, latency_s, 1.0, 4.0), done=1000.0)
    assert feedback_after(before, load, unmet=Unmet(strain, least)).ratio == expected
