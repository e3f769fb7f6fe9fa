"""How the demo tells what iokeel did to a drive from what the machine did."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.demo.broken_agent import break_agent
from benchmarks.demo.conformance import LATE_S, Conformance, Drive, Span
from benchmarks.demo.fio_log import Completions, GuestClock
from benchmarks.demo.limits_in_force import Limits, Sample, Throttle, most_passed
from benchmarks.demo.scenario import Bounds, load_scenario
from benchmarks.demo.spans import spans
from benchmarks.demo.stage import LimitChange
from benchmarks.demo.summary import lines
from benchmarks.demo.verdict import Outcome, Verdict
from iokeel.core.values.policy import DomainPolicy, DrivePolicy

BOUNDS = Bounds(within_ratio=0.05, settled_s=3.0, mean_ratio=0.03, window_ratio=1.25)
SIZE = 8192
COST = 1.6  # of a read of 8 KiB, in the published table
PER_SECOND = 200
LIMIT = PER_SECOND * COST
LENGTH_S = 10


def limits(ratio: float) -> Limits:
    """Limits under which reads of 8 KiB get `ratio` times the policy's limit."""
    return Limits(bps_total=round(ratio * PER_SECOND * SIZE))


def requests(at_s: Sequence[float]) -> Completions:
    """Reads of 8 KiB that end at some times."""
    count = len(at_s)
    return Completions(
        np.sort(np.array(at_s, dtype=float)),
        np.full(count, COST),
        np.full(count, float(SIZE)),
        np.zeros(count, dtype=np.bool_),
    )


def steady(*rates: tuple[float, float]) -> list[float]:
    """When reads end at a constant rate each: (until when, over the limit)."""
    ends = [0.0, *(end for end, _ in rates)]
    return [
        float(at)
        for (begin, end), (_, ratio) in zip(pairwise(ends), rates, strict=True)
        for at in np.linspace(begin, end, round((end - begin) * ratio * PER_SECOND), endpoint=False)
    ]


def judged(
    at_s: Sequence[float],
    *in_force: tuple[float, Limits],
    most_late_s: float = LATE_S,
    unanswered: tuple[float, float] = (0, 0),
) -> Conformance:
    """Judge a phase of ten seconds.

    in_force: from when on which limits held. unanswered: from when to when nobody could read them.
    """
    samples = [
        Sample(now, [limits for begin, limits in in_force if begin <= now][-1])
        for now in np.arange(0, LENGTH_S, 0.2).round(1).tolist()
        if not unanswered[0] < now < unanswered[1]
    ]
    drive = Drive(requests(at_s), samples, most_late_s)
    return drive.judge(Span("8K", 0.0, LENGTH_S, LIMIT, 0.0), BOUNDS)


RIGHT = (0.0, limits(1))


def test_a_drive_at_its_limit_is_kept() -> None:
    found = judged(steady((LENGTH_S, 1)), RIGHT)
    assert (found.verdict, found.back_s) == ("kept", 0)
    assert found.held_up_s == pytest.approx(0, abs=0.05)
    assert found.mean_ratio == pytest.approx(1, abs=0.01)


def test_too_little_under_right_limits_is_the_machines() -> None:
    found = judged(steady((6, 1), (7, 0.91), (LENGTH_S, 1)), RIGHT)
    assert found.verdict == "kept"
    assert found.held_up_s == pytest.approx(0.09, abs=0.02)
    assert found.did_mean_ratio == pytest.approx(0.987, abs=0.005)
    assert found.mean_ratio == pytest.approx(1, abs=0.005)


def test_too_little_under_limits_that_allow_no_more_is_iokeels() -> None:
    low = [(6.0, limits(0.91)), (7.0, limits(1))]
    found = judged(steady((6, 1), (7, 0.91), (LENGTH_S, 1)), RIGHT, *low)
    assert found.misses == ("still off after 6 s",)
    assert found.held_up_s == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("ratio", [0.9, 1.1])
@pytest.mark.parametrize("asked", [0.85, 0.95, 1, 1.2])
def test_limits_that_are_off_are_missed_however_busy_the_machine_is(
    ratio: float, asked: float
) -> None:
    found = judged(steady((LENGTH_S, min(ratio, asked))), (0.0, limits(ratio)))
    assert found.verdict == "missed"
    assert found.mean_ratio == pytest.approx(ratio, abs=0.01)


def test_too_much_is_missed_whatever_the_limits_allow() -> None:
    assert judged(steady((LENGTH_S, 1.1)), RIGHT).verdict == "missed"
    assert judged(steady((LENGTH_S, 1.1)), (0.0, Limits())).verdict == "missed"


def test_requests_that_the_machine_held_up_may_end_late() -> None:
    at_s = [6.0 if 5.9 <= at < 6 else at for at in steady((LENGTH_S, 1))]
    found = judged(at_s, RIGHT)
    assert [second.did_ratio for second in found.seconds[5:7]] == pytest.approx(
        [0.9, 1.1], abs=0.01
    )
    assert (found.verdict, found.back_s) == ("kept", 0)
    assert found.did_worst_ratio == pytest.approx(1.1, abs=0.01)
    assert found.worst_ratio == pytest.approx(1, abs=0.02)


def test_what_ends_late_is_not_too_much_on_average() -> None:
    at_s = [6.0 if 5.7 <= at < 6 else at for at in steady((LENGTH_S, 1))]
    found = judged(at_s, RIGHT, most_late_s=0.3)
    assert found.seconds[5].counts_ratio is None
    assert found.seconds[6].did_ratio == pytest.approx(1.3, abs=0.01)
    assert found.misses == ()


def test_too_much_before_the_machine_held_requests_up_is_missed() -> None:
    found = judged(steady((5, 1), (6, 1.1), (7, 0.9), (LENGTH_S, 1)), RIGHT)
    assert found.misses == ("still off after 5 s",)


def test_no_more_comes_late_than_qemu_lets_through() -> None:
    at_s = steady((5, 1), (5.5, 0), (6, 1), (7, 1.5), (LENGTH_S, 1))
    found = judged(at_s, RIGHT)
    assert found.seconds[6].counts_ratio == pytest.approx(1.4, abs=0.02)
    assert found.verdict == "missed"


def test_what_was_left_over_long_ago_does_not_excuse_too_much() -> None:
    found = judged(steady((4, 1), (5, 0.8), (8, 1), (9, 1.1), (LENGTH_S, 1)), RIGHT)
    assert found.misses == ("still off after 8 s",)


@pytest.mark.parametrize(("retuned_s", "verdict"), [(2.0, "kept"), (6.0, "missed")])
def test_a_retune_has_to_come_in_time(retuned_s: float, verdict: str) -> None:
    low = (0.0, limits(0.67))
    at_s = steady((retuned_s, 0.67), (LENGTH_S, 1))
    found = judged(at_s, low, (retuned_s, limits(1)))
    assert (found.verdict, found.back_s) == (verdict, retuned_s)


def test_iokeels_time_starts_when_the_drive_asks() -> None:
    at_s = steady((4, 0.3), (6, 0.67), (LENGTH_S, 1))
    found = judged(at_s, (0.0, limits(0.67)), (6.0, limits(1)))
    assert (found.verdict, found.back_s) == ("kept", 2)


def test_iokeels_time_starts_when_the_drive_asks_all_the_time() -> None:
    choppy = [
        second + (at if at < 0.4 else 0.8 + (at - 0.4) / 3)
        for second in range(4)
        for at in np.linspace(0, 1, round(0.67 * PER_SECOND), endpoint=False)
    ]
    at_s = [*choppy, *(4 + at for at in steady((2, 0.67), (6, 1)))]
    found = judged(at_s, (0.0, limits(0.67)), (6.0, limits(1)))
    assert (found.verdict, found.back_s) == ("kept", 2)


def test_iokeels_time_starts_when_qemu_answers() -> None:
    at_s = steady((6, 0.67), (LENGTH_S, 1))
    in_force = [(0.0, limits(0.67)), (6.0, limits(1))]
    assert judged(at_s, *in_force).verdict == "missed"
    assert judged(at_s, *in_force, unanswered=(2.0, 3.9)).verdict == "kept"


def test_a_drive_that_hardly_asks_decides_nothing() -> None:
    found = judged(steady((LENGTH_S, 0.3)), (0.0, limits(0.67)))
    assert (found.verdict, found.mean_ratio) == ("unclear", None)
    assert judged(steady((4, 1), (LENGTH_S, 0)), RIGHT).verdict == "unclear"


def test_a_window_far_above_the_limit_is_missed_at_once() -> None:
    at_s = steady((0.5, 1), (1.5, 1.405), (LENGTH_S, 1))
    found = judged(at_s, RIGHT)
    assert found.misses == ("140% in a second",)


@pytest.mark.parametrize(
    ("in_force", "used"),
    [
        (Limits(bps_total=100 * SIZE), 1.0),
        (Limits(bps_read=50 * SIZE, bps_write=100 * SIZE), 1.5),
        (Limits(iops_total=200), 0.5),
        (Limits(iops_total=200, iops_size=4096), 1.0),
        (Limits(iops_total=200, iops_size=65536), 0.5),
        (Limits(iops_total=200, iops_size=4096, bps_total=50 * SIZE), 2.0),
        (Limits(iops_total=160, cost_read=((4096, 1), (12288, 2.2)), cost_write=((1, 1.6),)), 1.0),
        (Limits(), 0.0),
    ],
)
def test_requests_are_charged_by_qemus_rule(in_force: Limits, used: float) -> None:
    """100 requests of 8 KiB in a second, of which 75 are reads."""
    done = requests(list(np.arange(100) / 100))
    is_write = np.arange(100) % 4 == 0
    done = Completions(done.at_s, done.cost, done.size, is_write)
    throttle = Throttle(done, [Sample(0.0, in_force), Sample(0.5, in_force)])
    assert throttle.used_ratio(0, 1) == pytest.approx(used)


def test_each_limit_is_filled_for_itself_before_and_after_a_change() -> None:
    done = requests(list(np.arange(100) / 100))
    samples = [Sample(0.0, Limits(iops_total=100)), Sample(0.5, Limits(bps_total=100 * SIZE))]
    assert Throttle(done, samples).used_ratio(0, 1) == pytest.approx(1)


def test_a_guests_clock_that_is_fast_is_put_right() -> None:
    clock = GuestClock(((1000.0, 5.0), (1010.0, 10.0)))  # 15 s of the guest's in 10 s
    log = b"1005000, 1, 0, 8192, 0\n1020000, 1, 1, 65536, 0\n"
    done = Completions.parse(log, clock)
    assert done.at_s == pytest.approx([1000, 1010])
    assert done.cost == pytest.approx([1.6, 10])
    assert Completions.parse(log).at_s == pytest.approx([0, 15])


def test_phases_begin_with_the_drives_own_shifts() -> None:
    scenario = load_scenario()
    guest = next(guest for guest in scenario.guests if guest.change)
    small_s = [*np.arange(0, 24.6, 0.1), *np.arange(33, 54, 0.1)]
    large_s = [*np.arange(15, 44.2, 0.1)]
    rows = sorted([(at, 8192.0) for at in small_s] + [(at, 65536.0) for at in large_s])
    at_s, size = np.array(rows).T
    done = Completions(at_s, size / 4096, size, np.zeros(len(size), dtype=np.bool_))
    found = spans(scenario, guest, done, LimitChange(7.0, 7.5))
    assert [(span.phase, span.limit) for span in found[:3]] == [
        ("8K", 2000),
        ("8K, new limit", 1000),
        ("8K + 64K", 1000),
    ]
    assert [span.start_s for span in found] == pytest.approx([0, 7.5, 15, 24.5, 33, 44.1], abs=0.01)
    assert [span.end_s for span in found] == pytest.approx([7, 15, 24.5, 33, 44.1, 54], abs=0.01)
    assert found[1].windows_from_s == 8.5


def test_a_change_of_policy_that_did_not_come_is_no_verdict() -> None:
    scenario = load_scenario()
    guest = next(guest for guest in scenario.guests if guest.change)
    with pytest.raises(RuntimeError, match="its limit has not been changed"):
        spans(scenario, guest, requests([0.0]), None)


def test_a_run_needs_one_miss_to_be_missed_and_a_clear_phase_of_each_drive_to_be_kept() -> None:
    kept = judged(steady((LENGTH_S, 1)), RIGHT)
    missed = judged(steady((LENGTH_S, 1.1)), RIGHT)
    unclear = judged(steady((LENGTH_S, 0.3)), RIGHT)
    for rows, outcome, says in (
        ([kept, kept], Outcome.KEPT, "kept every limit."),
        ([kept, unclear], Outcome.KEPT, "kept every limit that could be judged"),
        ([kept, unclear, unclear], Outcome.KEPT, "kept every limit that could be judged"),
        ([unclear, unclear], Outcome.UNCLEAR, "No verdict"),
        ([missed, unclear, unclear], Outcome.MISSED, "missed a limit"),
    ):
        verdict = Verdict.on({"db1": rows, "web1": [kept]})
        assert verdict.outcome is outcome
        assert says in list(lines(verdict, {}))[-1]


@pytest.mark.parametrize(("how", "limit"), [("high", 1100), ("low", 900)])
def test_a_broken_agent_takes_limits_for_others(
    how: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DomainPolicy, "for_drive", DomainPolicy.for_drive)  # put back at the end
    break_agent("high" if how == "high" else "low")
    policy = DomainPolicy({"vda": DrivePolicy(limit=1000)}, default=DrivePolicy())
    assert policy.for_drive("vda") == DrivePolicy(limit=limit)
    assert policy.for_drive("vdb") == DrivePolicy()


def test_most_passed_is_the_highest_rate_of_a_second_over_its_limit() -> None:
    limit = Limits(iops_total=100)
    passed = [0, 20, 40, 60, 80, 100, 130, 150, 170, 190, 210]  # one fifth of a second is 30
    samples = [Sample(i / 5, limit, float(cost)) for i, cost in enumerate(passed)]
    assert most_passed(samples) == pytest.approx(1.1)


def test_most_passed_goes_by_the_limit_in_force() -> None:
    """A second in which a limit is halved counts against the higher one."""
    costs = [0, 100, 200, 250, 300]
    samples = [
        Sample(float(i), Limits(iops_total=100 if i <= 2 else 50), float(cost))
        for i, cost in enumerate(costs)
    ]
    assert most_passed(samples) == 1


def test_most_passed_goes_on_past_a_sample_without_a_count() -> None:
    limit = Limits(iops_total=100)
    counts = [0.0, 60.0, None, 180.0, 240.0, 300.0]
    samples = [Sample(i / 2, limit, cost) for i, cost in enumerate(counts)]
    assert most_passed(samples) == pytest.approx(1.2)
    assert most_passed(samples[:3]) is None


def test_nothing_passed_is_known_of_a_qemu_that_does_not_count() -> None:
    assert most_passed([Sample(float(i), Limits(iops_total=100)) for i in range(5)]) is None
