"""Block jobs: whose speed is set, and the room that a VM's cgroup has for them."""

from __future__ import annotations

import pytest

from iokeel.core.enforce.backstop import NOTHING
from iokeel.core.enforce.jobs import STILL_S, BlockJob, Followed, follow, room, speed_to_set
from iokeel.core.values.counters import NS_PER_S

MB = 1_000_000


def job(bps: int | None = None, done: int = 0) -> BlockJob:
    return BlockJob("backup-vda", "backup", bps, done)


def begun(bps: int | None = None, rate: int | None = None) -> Followed:
    return follow(None, job(bps), rate, 0)


def test_a_job_that_nobody_gave_a_speed_gets_the_rate() -> None:
    assert speed_to_set(begun(), 50 * MB) == 50 * MB


def test_a_job_keeps_going_as_it_does_if_there_is_no_rate() -> None:
    assert speed_to_set(begun(), None) is None
    assert speed_to_set(begun(7 * MB), None) is None


def test_a_speed_that_somebody_else_has_set_stays() -> None:
    assert speed_to_set(begun(7 * MB, 50 * MB), 50 * MB) is None
    ours = Followed(job(50 * MB), 50 * MB, 0)
    theirs = follow(ours, job(7 * MB), 50 * MB, 1)
    assert speed_to_set(theirs, 50 * MB) is None
    taken_away = follow(ours, job(None), 50 * MB, 1)
    assert speed_to_set(taken_away, 50 * MB) is None


def test_another_rate_replaces_ours_and_none_takes_it_back() -> None:
    ours = Followed(job(50 * MB), 50 * MB, 0)
    assert speed_to_set(ours, 50 * MB) is None
    assert speed_to_set(ours, 60 * MB) == 60 * MB
    assert speed_to_set(ours, None) == 0


def test_a_restarted_agent_takes_the_speed_of_the_one_before_for_its_own() -> None:
    found = begun(50 * MB, 50 * MB)
    assert speed_to_set(found, 50 * MB) is None
    assert speed_to_set(follow(found, job(50 * MB, 9), 60 * MB, 1), 60 * MB) == 60 * MB


def test_a_job_without_a_speed_has_no_end_of_room() -> None:
    assert room([begun()], 1.25, 0) is None
    assert room([begun(5 * MB), begun()], 1.25, 0) is None


def test_the_room_is_for_the_speed_and_for_what_a_mirror_moves_at_once() -> None:
    its = room([begun(20 * MB)], 1.25, 0)
    assert its is not None
    # 16 MiB come at once, and a guest's request behind them waits for 50 ms.
    assert its.rbps == its.wbps == pytest.approx(25 * MB + (16 << 20) * 20)
    assert its.riops * (16 << 10) == pytest.approx(its.rbps)
    both = room([begun(20 * MB), begun(20 * MB)], 1.25, 0)
    assert both == its.times(2)


@pytest.mark.parametrize("bps", [None, 20 * MB])
def test_a_job_that_hangs_takes_no_room_until_it_goes_on(bps: int | None) -> None:
    hung = begun(bps)
    for at_s in (3, 6, 9):
        hung = follow(hung, job(bps), None, at_s * NS_PER_S)
        assert room([hung], 1.0, at_s * NS_PER_S) != NOTHING
    later = (round(STILL_S) + 1) * NS_PER_S
    hung = follow(hung, job(bps), None, later)
    assert room([hung], 1.0, later) == NOTHING
    assert room([follow(hung, job(bps, 1), None, later)], 1.0, later) != NOTHING


def test_no_job_takes_no_room() -> None:
    assert room([], 1.25, 0) == NOTHING


def test_a_job_that_only_qemu_claims_takes_no_room_without_our_rate() -> None:
    for bps in (None, 1 << 60):
        claimed = job(bps)._replace(known=False)
        assert room([follow(None, claimed, 50 * MB, 0)], 1.25, 0) == NOTHING
    limited = job(50 * MB)._replace(known=False)
    ours = follow(None, limited, 50 * MB, 0)
    assert room([ours], 1.25, 0) == room([begun(50 * MB)], 1.25, 0)
