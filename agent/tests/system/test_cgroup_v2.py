"""The backstop in a kernel with cgroup v2: Debian's, in a guest that this test boots."""

from __future__ import annotations

import pytest

from benchmarks.backstop.run import booted, lacking, measure
from benchmarks.backstop.told import TRAFFIC, Told
from testing.workers import Alone

if missing := lacking():
    pytest.skip(f"the guest needs {missing}", allow_module_level=True)

pytestmark = pytest.mark.alone

UNSET = {"io.max": "", "io.weight": "default 100", "io.bfq.weight": "default 100"}


@pytest.fixture(scope="module")
def told(alone: Alone) -> Told:
    """The results of the guest: it boots beside other tests, and measures alone."""
    with booted() as vm, alone():
        found = measure(vm)
    print(found)
    return found


def test_the_disk_and_the_group_are_found(told: Told) -> None:
    name, number = told.disk
    assert name == "vda"
    assert told.before == UNSET
    limits = " ".join(f"{bound}={value}" for bound, value in told.limits.items())
    assert told.set["io.max"] == f"{number} {limits}"


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_io_that_bypasses_the_throttle_is_held_to_its_bound(told: Told, traffic: str) -> None:
    assert 0.95 <= told.held[traffic] <= 1.03


def test_it_is_the_bound_that_holds_and_not_the_disk(told: Told) -> None:
    assert told.free["rios"] > 2 * told.limits["riops"]


def test_traffic_within_the_share_is_not_cut(told: Told) -> None:
    # 400 reads of 4K a second cost 400.
    assert told.within["rios"] == pytest.approx(400, rel=0.03)


def test_what_was_there_is_put_back_after_a_crash_too(told: Told) -> None:
    assert told.restored == UNSET


def test_somebody_elses_tighter_bound_stays(told: Told) -> None:
    number, limits = told.disk[1], told.limits
    assert told.set_over_anothers["io.max"] == (
        f"{number} rbps={limits['rbps']} wbps={limits['wbps']} riops=123 wiops={limits['wiops']}"
    )
    assert told.anothers_restored["io.max"] == (
        f"{number} rbps=max wbps=max riops=123 wiops=100000"
    )


def test_weights_are_set_for_what_goes_by_them_and_put_back(told: Told) -> None:
    weights = [files | {"io.max": ""} for files in (told.set, told.bfq, told.iocost)]
    assert weights == [
        UNSET,
        UNSET | {"io.bfq.weight": "default 300"},
        UNSET | {"io.weight": "default 300"},
    ]
    assert told.bfq_restored == told.iocost_restored == UNSET


def test_a_guest_that_ends_leaves_nothing(told: Told) -> None:
    assert told.errors == {}
    assert told.saved == {}
