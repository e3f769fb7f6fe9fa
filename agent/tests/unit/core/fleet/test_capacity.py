"""A shared storage's capacity follows the latency of all hosts, by the law of a single host."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from iokeel.core.correct.capacity import feedback_after
from iokeel.core.fleet.capacity import (
    BAND_RATIO,
    LOAD_S,
    Correction,
    amount_of,
    corrected,
    together,
)
from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.coordinate import Tenure, coordinate
from iokeel.core.fleet.host import WAIT_NS
from iokeel.core.fleet.ledger import Entry, Learnt, Ledger, Stamp, first_ledger
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.state import Division, StorageState
from iokeel.core.values.storage import Load, StorageActivity
from iokeel.core.values.wants import wants_of

BUDGET = Budget(1000, 0.1, shared=Shared(10.0))
POLICY = BUDGET.storage
STEP_NS = round(LOAD_S * NS_PER_S)
assert POLICY is not None


def load(done: float, latency_ms: float, *, short: bool = True, strangers: float = 0.0) -> Load:
    """A host's load of 4 KiB reads."""
    seconds = latency_ms / 1000
    activity = StorageActivity(1.0, done, seconds, 1.0, done * seconds, 1.0, 1.0)
    return Load(activity, done, strangers, short=short)


WANTS = wants_of([(0, 100, 2000)])


def claims(*loads: Load | None) -> dict[str, HostClaim]:
    return {
        f"h{number}": HostClaim(f"i{number}", wants=WANTS, most=2000, load=each)
        for number, each in enumerate(loads)
    }


def fresh(reading: Load, number: int) -> Load:
    """Return another reading of the same load."""
    return reading._replace(done=reading.done + number * 1e-6)


def after(*steps: tuple[Load, ...], ledger: Ledger | None = None) -> Correction:
    """Return a correction after steps with some hosts' loads, one LOAD_S after another."""
    assert POLICY is not None
    now = corrected(None, ledger, {}, POLICY, 0)
    for number, loads in enumerate(steps, 1):
        told = claims(*(fresh(each, number) for each in loads))
        now = corrected(now, ledger, told, POLICY, number * STEP_NS)
    return now


def test_hosts_loads_are_those_of_one_host_with_all_drives() -> None:
    assert POLICY is not None
    alone = StorageState(POLICY, division=Division(usable=1000.0, short=True))
    for latencies in ([30.0] * 4, [3.0] * 4, [11.0, 10.5, 9.5, 11.0]):
        single = feedback_after(alone, load(900, sum(latencies) / 4))
        parts = [load(225, ms) for ms in latencies]
        whole = feedback_after(alone, together(parts, 1.0))
        assert whole.ratio == pytest.approx(single.ratio)


def test_each_host_counts_by_its_requests() -> None:
    both = together([load(900, 10.0), load(100, 30.0)], 1.0).activity
    assert both is not None
    assert both.raw_iops == 1000
    assert both.queue == pytest.approx(12.0)
    busy = together([load(100, 10.0), load(600, 20.0), load(300, 30.0)], 1.0).activity
    assert busy is not None
    assert busy.latency_s == pytest.approx(0.02)


@pytest.mark.parametrize("hosts", [1, 2, 9])
@pytest.mark.parametrize("done", [1.0, 300.0, 1e15])
def test_no_host_cuts_a_storage_by_its_word_alone(hosts: int, done: float) -> None:
    honest = [load(300, 2.0)] * hosts
    seconds = 1e15
    lie = Load(StorageActivity(1.0, done, seconds, 1.0, seconds, 1.0, 1.0), done, short=True)
    entries = {
        f"h{number}": Entry(f"i{number}", 0, 300, 300, 0, Stamp("e", 1))
        for number in range(hosts + 1)
    }
    ledger = replace(first_ledger(300 * (hosts + 1), "e"), entries=entries)
    steps = 20
    true = after(*[(*honest, honest[0])] * steps, ledger=ledger).state.feedback.ratio
    assert after(*[(*honest, lie)] * steps, ledger=ledger).state.feedback.ratio >= true
    # It may also be the only one that has told a new load by then.
    assert POLICY is not None
    now = corrected(None, ledger, {}, POLICY, 0)
    now = corrected(now, ledger, claims(*honest, lie), POLICY, STEP_NS)
    told = claims(*honest, fresh(lie, 1))
    assert corrected(now, ledger, told, POLICY, 2 * STEP_NS) is now


def test_a_host_counts_for_no_more_than_it_is_charged() -> None:
    """Hosts that the ledger doesn't know, or that it gave little, can't outweigh those it knows."""
    honest, lie = load(300, 30.0), load(1e15, 0.1, strangers=1e15)
    given = {"h0": 300, "h1": 300, "h2": 1}
    entries = {host: Entry(f"i{host[1]}", 0, n, n, 0, Stamp("e", 1)) for host, n in given.items()}
    ledger = replace(first_ledger(1000, "e"), entries=entries)
    now = after((honest, honest, lie, lie), ledger=ledger)
    assert now.state.activity is not None
    assert now.state.activity.latency_s == pytest.approx(0.03)
    assert now.state.load.done <= 2 * 601


def test_drives_without_a_policy_on_one_host_leave_the_others_half_of_a_storage() -> None:
    assert POLICY is not None
    lie = load(1, 1.0, short=False, strangers=1e15)
    quiet = load(1, 1.0, short=False)
    assert amount_of(after((quiet, lie)), None, BUDGET)[0] == BUDGET.amount // 2
    assert amount_of(after((lie,)), None, BUDGET)[0] == 1  # alone on the storage


def test_hosts_are_compared_as_if_all_had_the_same_mix() -> None:
    """The large requests of one host take longer by themselves; they tell of no overload."""
    large = Load(StorageActivity(1.0, 100, 0.031, 1.0, 3.1, 30.0, 30.0), 3000.0)
    small = Load(StorageActivity(1.0, 100, 0.002, 1.0, 0.2, 1.0, 1.0), 100.0)
    seen = together([large, small], 1.0, capacity=1000).activity
    assert seen is not None
    # 15.5 is the mean cost, so each would take 14.5 ms longer than a 4 KiB read, and 2 ms for that.
    assert seen.latency_s == pytest.approx(0.0165)


def test_large_requests_of_one_host_are_allowed_for() -> None:
    large = StorageActivity(1.0, 10, 0.05, 1.0, 0.5, 30.0, 30.0)
    small = StorageActivity(1.0, 500, 0.01, 1.0, 5.0, 1.0, 1.0)
    both = together([Load(large, 300.0), Load(small, 500.0)], 1.0).activity
    assert both is not None
    assert both.mean_cost == pytest.approx(800 / 510)
    assert both.served_cost == pytest.approx((300 * 30 + 500 * 1) / 800)


def test_an_overloaded_storage_is_cut_and_grows_back_when_it_is_calm() -> None:
    hot = (load(300, 40.0), load(300, 40.0))
    low = after(hot, hot).state.feedback.ratio
    assert low < 0.7
    calm = (load(300, 1.0), load(300, 1.0))
    ratios = [after(hot, hot, *[calm] * n).state.feedback.ratio for n in range(30)]
    assert all(one <= other for one, other in pairwise(ratios))
    assert ratios[-1] > 1.5


def test_nothing_grows_if_no_host_wants_more() -> None:
    calm = (load(300, 1.0, short=False),) * 2
    assert after(*[calm] * 5).state.feedback.ratio == 1


def test_nothing_grows_while_hosts_wait_for_what_there_is() -> None:
    calm = (load(300, 1.0),) * 2
    entries = {"h0": Entry("i0", 0, 500, 500, 0, Stamp("e", 1))}
    waits = replace(first_ledger(1000, "e"), entries=entries)
    assert after(*[calm] * 5, ledger=waits).state.feedback.ratio == 1
    entries["h0"] = replace(entries["h0"], amount=950, charged=950)
    assert after(*[calm] * 5, ledger=waits).state.feedback.ratio > 1


def test_it_is_corrected_once_in_a_while_however_often_claims_come() -> None:
    assert POLICY is not None
    hot = claims(load(900, 40.0))
    now = corrected(None, None, {}, POLICY, 0)
    first = corrected(now, None, hot, POLICY, STEP_NS)
    again = corrected(first, None, hot, POLICY, STEP_NS + STEP_NS // 2)
    assert again is first


def test_no_reading_counts_twice_if_its_host_tells_no_other() -> None:
    assert POLICY is not None
    dead, lives = load(300, 40.0), load(300, 5.0, strangers=100.0)
    now = after((dead, dead, lives))
    ratio = now.state.feedback.ratio
    assert ratio < 1
    for number in range(2, 9):
        told = claims(dead, dead, fresh(lives, number))
        now = corrected(now, None, told, POLICY, number * STEP_NS)
        assert now.state.feedback.ratio >= ratio
        assert now.state.load.done == pytest.approx(900)
    assert corrected(now, None, told, POLICY, 9 * STEP_NS) is now
    alone = corrected(now, None, claims(dead), POLICY, 10 * STEP_NS)
    assert (alone.state.load.strangers, alone.state.load.activity) == (0, None)


def test_drives_without_a_policy_are_left_their_rate() -> None:
    now = after((load(300, 5.0, short=False, strangers=200.0), load(300, 5.0, short=False)))
    assert amount_of(now, None, BUDGET) == (800, Learnt(1000, 1.0))


def test_a_small_move_changes_nothing_and_a_new_coordinator_goes_on() -> None:
    tenure, ledger = Tenure("e", 0), None
    amounts = []
    for tick in range(12):
        hot = claims(*[fresh(load(300, 14.0), tick)] * 2)
        ledger, tenure = coordinate(ledger, hot, BUDGET, tenure, WAIT_NS + tick * STEP_NS)
        amounts.append(ledger.amount)
    moves = [abs(b / a - 1) for a, b in pairwise(amounts) if a != b]
    assert moves
    assert min(moves) > 0.9 * BAND_RATIO
    assert ledger is not None
    assert ledger.learnt is not None
    calm = claims(load(300, 9.0, short=False))
    other, _ = coordinate(ledger, calm, BUDGET, Tenure("f", 0), 0)
    assert (other.amount, other.learnt) == (ledger.amount, ledger.learnt)


def test_another_capacity_is_begun_anew() -> None:
    ledger, _ = coordinate(None, {}, BUDGET, Tenure("e", 0), 0)
    ledger = replace(ledger, amount=400, learnt=Learnt(1000, 0.4))
    same, _ = coordinate(ledger, {}, BUDGET, Tenure("f", 0), 0)
    assert same.amount == 400
    other, _ = coordinate(ledger, {}, BUDGET._replace(amount=1200), Tenure("f", 0), 0)
    assert (other.amount, other.learnt) == (1200, Learnt(1200, 1.0))


def test_a_tenants_limit_is_never_corrected() -> None:
    tenure, ledger = Tenure("e", 0), None
    for tick in range(5):
        hot = claims(fresh(load(300, 40.0), tick))
        ledger, tenure = coordinate(ledger, hot, Budget(1000), tenure, WAIT_NS + tick * STEP_NS)
        assert (ledger.amount, ledger.learnt) == (1000, None)
    assert tenure.correction is None


@pytest.mark.parametrize("ratio", [0.3, 1.5])
def test_a_storage_that_has_no_target_any_more_is_not_corrected(ratio: float) -> None:
    ledger = replace(
        first_ledger(round(1000 * ratio) - 200, "e"), learnt=Learnt(BUDGET.amount, ratio)
    )
    bare = BUDGET._replace(shared=Shared(None))
    assert bare.storage is not None
    found = corrected(None, ledger, {}, bare.storage, 0)
    # 200 a second are those of drives without a policy.
    assert amount_of(found, ledger, bare) == (800, Learnt(BUDGET.amount, 1.0))
