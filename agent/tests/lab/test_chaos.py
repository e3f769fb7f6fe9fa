"""How a run of chaos plans its faults, and judges what it measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.chaos.faults import KINDS as MAKERS
from benchmarks.chaos.journal import RECONNECT_S, SETTLE_S, Journal
from benchmarks.chaos.monitor import Look
from benchmarks.chaos.schedule import KINDS, lanes_of, plan
from benchmarks.chaos.verdict import (
    BOUNDS,
    Breach,
    Judged,
    joined,
    judge_guest,
    judge_limits,
    judge_passed,
    judge_requests,
)
from benchmarks.demo.fio_log import Completions
from benchmarks.demo.limits_in_force import Limits
from iokeel.core.values.curve import DEFAULT_CURVE

DRIVE = ("g", "vda")
EXACT = BOUNDS["exact"]
#: No size of requests does more than 600 by this.
HELD = Limits(iops_total=600, cost_read=DEFAULT_CURVE.points, cost_write=DEFAULT_CURVE.points)


def judged(journal: Journal, *looks: tuple[float, Limits], status: str = "running") -> Judged:
    """Judge samples of one drive."""
    seen = [Look(at_s, status, {"vda": limits}) for at_s, limits in looks]
    return judge_limits(seen, DRIVE, journal, BOUNDS["exact"], 0.0)


def journal(*limits: tuple[float, int]) -> Journal:
    made = Journal()
    made.limits[DRIVE] = list(limits)
    return made


def planned(seed: int, hash_seed: int) -> str:
    """Return a plan of a process of its own: the order of a set differs from one to the next."""
    code = f"from benchmarks.chaos.schedule import plan; print(plan({seed}, 300, 2))"
    environ = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": str(hash_seed)}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout


def test_a_seed_repeats_a_plan() -> None:
    assert planned(7, hash_seed=1) == planned(7, hash_seed=2)
    assert planned(7, hash_seed=1) != planned(8, hash_seed=1)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_every_kind_and_breaks_nothing_twice_at_once(seed: int) -> None:
    faults = plan(seed, 3600, 2)
    assert {fault.kind for fault in faults} == {kind.name for kind in KINDS} == {*MAKERS}
    over_s: Mapping[str, float] = dict.fromkeys((lane for f in faults for lane in lanes_of(f)), 0)
    for fault in faults:
        assert all(over_s[lane] < fault.at_s for lane in lanes_of(fault))
        over_s = {**over_s, **dict.fromkeys(lanes_of(fault), fault.at_s + fault.hold_s)}


def test_faults_of_different_lanes_overlap() -> None:
    faults = plan(1, 300, 2)
    pairs = pairwise(faults)
    assert any(before.at_s + before.hold_s > after.at_s for before, after in pairs)


def test_a_sample_without_a_limit_breaks_a_promise() -> None:
    found = judged(journal((0, 600)), (1.0, HELD), (2.0, Limits()), (3.0, HELD))
    assert (found.samples, found.unlimited, found.too_high) == (3, 1, 0)
    assert [breach.at_s for breach in found.breaches] == [2.0]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(iops_total=600),  # a limit without the curve
        Limits(iops_read=600, cost_read=DEFAULT_CURVE.points),  # none for writes
        HELD._replace(iops_total=620),
    ],
)
def test_a_limit_that_lets_some_size_do_more_breaks_a_promise(limits: Limits) -> None:
    found = judged(journal((0, 600)), (1.0, limits))
    assert found.unlimited + found.too_high == 1


def test_a_limit_that_is_too_low_breaks_a_promise() -> None:
    low = HELD._replace(iops_total=60)
    found = judged(journal((0, 600)), (1.0, HELD), (2.0, low))
    assert (found.samples, found.too_low) == (2, 1)
    assert [breach.at_s for breach in found.breaches] == [2.0]
    lowered = journal((0, 600), (10, 60))
    assert not judged(lowered, (10.1, low), (10.1 + SETTLE_S, low)).breaches
    by_hand = journal((0, 600))
    by_hand.unsettled[DRIVE].append((10.0, 10.5))
    assert judged(by_hand, (10.2, low)).excused == 1


def test_a_restored_guest_may_have_less_until_the_agent_has_had_its_time() -> None:
    saved, low = journal((0, 600)), HELD._replace(iops_total=300)
    saved.away["g"].append((10.0, 11.0))
    assert not judged(saved, (11.5, low)).breaches
    assert judged(saved, (11.5, Limits())).unlimited == 1
    assert judged(saved, (11.1 + SETTLE_S, low)).too_low == 1


def test_the_limit_before_counts_until_the_agent_has_had_its_time() -> None:
    changed = journal((0, 600), (10, 300))
    assert not judged(changed, (10 + SETTLE_S, HELD)).breaches
    assert judged(changed, (10.1 + SETTLE_S, HELD)).breaches


def test_the_agents_time_begins_when_it_and_libvirtd_are_back() -> None:
    changed = journal((0, 600), (10, 300))
    changed.out += [(11.0, 15.0), (17.0, 20.0)]  # the second one before it was done
    assert not judged(changed, (20 + SETTLE_S, HELD)).breaches
    assert judged(changed, (20.1 + SETTLE_S, HELD)).breaches


def test_a_bad_policy_delays_the_good_one_before_but_excuses_no_hand() -> None:
    changed = journal((0, 600), (10, 300))
    changed.unreadable.append((9.0, 20.0))
    changed.unsettled[DRIVE].append((10.0, 10.5))
    assert not judged(changed, (20 + SETTLE_S, HELD)).breaches
    assert judged(changed, (19.0, Limits())).unlimited == 1


def test_an_outage_excuses_no_lifted_limit() -> None:
    broken = journal((0, 600))
    broken.out.append((5.0, 15.0 + RECONNECT_S))
    assert judged(broken, (10.0, Limits())).unlimited == 1


def test_limits_set_by_hand_are_excused_and_counted_apart() -> None:
    by_hand = journal((0, 600))
    by_hand.unsettled[DRIVE].append((10.0, 10.5))
    found = judged(by_hand, (10.2, Limits()), (10.5 + SETTLE_S, Limits()))
    assert (found.samples, found.excused, found.breaches) == (0, 2, [])
    assert found.excused_s == [(10.2, 10.2), (10.5 + SETTLE_S, 10.5 + SETTLE_S)]
    assert judged(by_hand, (10.2, HELD)).samples == 1, "a good one counts at any time"
    found = judged(by_hand, (10.2, Limits()), (10.8, HELD), (11.0, HELD))
    assert found.excused_s == [(10.2, 10.8)], "it was put right at some time before 10.8"
    assert judged(by_hand, (10.6 + SETTLE_S, Limits())).unlimited == 1


def did(known: Journal, *rates: float) -> Judged:
    """Judge reads of 4 KiB under limits of 600, by the rate of each second."""
    at_s = [i + n / rate for i, rate in enumerate(rates) for n in range(round(rate))]
    reads = len(at_s)
    done = Completions(
        np.array(at_s), np.ones(reads), np.full(reads, 4096.0), np.zeros(reads, dtype=np.bool_)
    )
    looks = [Look(float(i), "running", {"vda": HELD}) for i in range(len(rates))]
    found = Judged()
    judge_requests(found, done, looks, DRIVE, known, EXACT, 0.0)
    return found


def passed(known: Journal, *costs: float, took_s: float = 0.0) -> Judged:
    """Judge what QEMU counted up to each second, under limits of 600."""
    looks = [
        Look(float(i), "running", {"vda": HELD}, {"vda": cost}, took_s)
        for i, cost in enumerate(costs)
    ]
    found = Judged()
    judge_passed(found, looks, DRIVE, known, EXACT, 0.0)
    return found


def test_a_second_above_the_limit_breaks_a_promise() -> None:
    found = did(journal((-9, 600)), 600, 600, 660, 600)
    assert found.worst_ratio == pytest.approx(1.1, abs=0.01)
    assert [breach.seen for breach in found.breaches] == ["fio"]
    assert not did(journal((-9, 600)), 600, 600, 610, 600).breaches


def test_a_second_above_the_limit_by_qemus_count_breaks_a_promise() -> None:
    found = passed(journal((-9, 600)), 0, 600, 1260, 1860)
    assert found.passed_ratio == pytest.approx(1.1)
    assert [(breach.seen, breach.at_s) for breach in found.breaches] == [("qemu", 1.0)]
    assert not passed(journal((-9, 600)), 0, 600, 1230, 1860).breaches


def test_a_count_that_begins_again_is_not_judged() -> None:
    found = passed(journal((-9, 600)), 9000, 0, 600)
    assert (found.passed_ratio, found.breaches) == (1, [])


def test_a_count_that_took_long_to_read_is_judged_by_the_longest_time() -> None:
    found = passed(journal((-9, 600)), 0, 600, 1260, 1860, took_s=0.25)
    assert found.passed_ratio == pytest.approx(1260 / 2.25 / 600), "a second passed between the two"
    assert not found.breaches


def test_by_qemus_count_too_a_hand_and_what_waits_are_excused() -> None:
    stopped = journal((-9, 600))
    stopped.drained["g"].append((1.5, 1.6))
    assert not passed(stopped, 0, 600, 1250, 1850).breaches
    by_hand = journal((-9, 600))
    by_hand.unsettled[DRIVE].append((1.5, 1.6))
    assert not passed(by_hand, 0, 600, 9000, 9600).breaches


def test_what_waits_in_the_throttle_may_pass_when_a_guest_stops() -> None:
    stopped = journal((-9, 600))
    stopped.drained["g"].append((2.0, 3.0))
    assert not did(stopped, 600, 600, 800, 600).breaches
    assert did(stopped, 600, 600, 900, 600).breaches, "that is more than waits"


def test_what_waits_may_pass_at_each_drain_of_a_second() -> None:
    drained = journal((-9, 600))
    drained.drained["g"].append((1.2, 1.3))  # a snapshot
    assert passed(drained, 0, 600, 1500, 2100).breaches
    drained.drained["g"].append((1.8, 1.9))  # and its end
    assert not passed(drained, 0, 600, 1500, 2100).breaches
    drained.drained["g"].append((2.5, 2.6))
    assert passed(drained, 0, 600, 1700, 2300).breaches, "the third one is in another second"


def test_what_a_hand_let_through_is_not_judged() -> None:
    by_hand = journal((-9, 600))
    by_hand.unsettled[DRIVE].append((2.0, 2.9))
    assert not did(by_hand, 600, 600, 900, 600).breaches
    at_once = journal((-9, 600))
    at_once.unsettled[DRIVE].append((2.0, 2.05))  # put right before the look at 3 s
    assert not did(at_once, 600, 600, 900, 600).breaches
    assert did(by_hand, 600, 600, 600, 600, 600, 900, 600).breaches


def test_a_guest_that_nothing_stopped_has_to_run() -> None:
    known = Journal()
    known.away["g"].append((10.0, 12.0))
    words = ((9.0, "running"), (11.0, "paused"), (11.5, None), (13.0, "paused"), (14.0, None))
    looks = [Look(at_s, status, {}) for at_s, status in words]
    found = judge_guest(looks, "g", known, 0.0)
    assert [(breach.at_s, breach.what) for breach in found] == [
        (13.0, "its QEMU says paused"),
        (14.0, "its QEMU says nothing"),
    ]


def test_breaches_that_follow_each_other_are_told_as_one() -> None:
    at_s = (1.0, 1.1, 1.9, 5.0)
    breaches = [Breach.at("limits", "g vda", at, f"at {at}") for at in at_s]
    found = joined([*breaches, Breach.at("fio", "g vda", 1.2, "much")])
    assert [(breach.seen, breach.at_s, breach.until_s) for breach in found] == [
        ("limits", 1.0, 1.9),
        ("fio", 1.2, 1.2),
        ("limits", 5.0, 5.0),
    ]
