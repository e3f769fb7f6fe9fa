"""The figures of hosts that share a disk, by cases calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet import parda
from benchmarks.fleet.array.disk_load import Drive, Reading, entitled, parts, taken_over_s
from benchmarks.fleet.array.hosts import Phase
from benchmarks.spread import Spread

# From 10 to 12 s, a's device ended 4 requests that took 40 ms, and b's 2 that took 80 ms.
READINGS = [
    Reading(10.0, {"a": (100, 1000), "b": (50, 500)}),
    Reading(12.0, {"a": (104, 1040), "b": (52, 580)}),
]
DONE = {
    "a": [(9.9, 7.0), (10.0, 12.0), (10.5, 10.0), (11.0, 8.0), (11.9, 10.0), (12.0, 5.0)],
    "b": [(10.1, 50.0), (11.1, 70.0)],
}
DRIVES = {"a": Drive(), "b": Drive(bs="64k")}
COSTS = {"16k": 1.0, "64k": 4.0}


def phase(of_share: float, worst_ratio: float | None = 1.0) -> Phase:
    hosts = parts(READINGS, DONE, DRIVES, COSTS)
    hosts["a"] = replace(hosts["a"], of_share=Spread.of([of_share]))
    hosts["b"] = replace(hosts["b"], of_share=Spread.of([1.0]))
    return Phase("e", 30, (), hosts, 0.5, worst_ratio, None)


def test_reservations_come_first_and_weights_divide_the_rest() -> None:
    drives = {"a": Drive(100, reservation=600), "b": Drive(200)}
    assert entitled(900, drives) == {"a": 700, "b": 200}


def test_a_window_has_the_requests_that_ended_in_it() -> None:
    found = parts(READINGS, DONE, DRIVES, COSTS)
    assert {name: part.iops.median for name, part in found.items()} == {"a": 2, "b": 1, "all": 3}


def test_latency_at_the_disk_is_the_devices_and_waiting_is_fios() -> None:
    found = parts(READINGS, DONE, DRIVES, COSTS)
    latencies = {name: part.latency_ms.median for name, part in found.items() if part.latency_ms}
    assert latencies == {"a": 10, "b": 40, "all": 20}
    waits = {name: part.waited_ms.median for name, part in found.items() if part.waited_ms}
    assert waits == {"a": 10, "b": 60, "all": pytest.approx(160 / 6)}


def test_shares_are_of_cost() -> None:
    # a did 2 a second at a cost of 1, and b 1 at a cost of 4: of 6, each is entitled to 3.
    found = parts(READINGS, DONE, DRIVES, COSTS)
    assert found["a"].of_share == Spread.of([2 / 3])
    assert found["b"].of_share == Spread.of([4 / 3])
    assert found["all"].of_share is None


def test_figures_are_of_all_windows() -> None:
    later = Reading(14.0, {"a": (104, 1040), "b": (60, 740)})
    done = {**DONE, "b": [*DONE["b"], *[(13.0, 20.0)] * 8]}
    found = parts([*READINGS, later], done, DRIVES, COSTS)
    assert found["b"].iops == Spread(2.5, 1, 4)
    assert found["b"].latency_ms == Spread(30, 20, 40)
    assert found["a"].iops == Spread(1.25, 0.5, 2)
    assert found["a"].latency_ms is None  # no request in the second window


def test_others_have_taken_over_in_the_first_second_at_95_per_cent_of_the_rate() -> None:
    # 10 a second until 103, and 20 a second from then on.
    done = [(100 + i / 10, 1.0) for i in range(30)] + [(103 + i / 20, 1.0) for i in range(100)]
    assert taken_over_s(100, done, 20, until_s=108) == pytest.approx(4.0, abs=0.15)
    assert taken_over_s(100, done, 25, until_s=108) is None


def test_a_share_that_is_off_or_limits_above_the_capacity_break_the_promise() -> None:
    assert parda.kept(phase(1.02), DRIVES)
    assert not parda.kept(phase(0.96), DRIVES)
    assert not parda.kept(phase(1.0, worst_ratio=1.02), DRIVES)


def test_a_host_that_does_less_than_its_reservation_breaks_the_promise() -> None:
    assert parda.kept(phase(0.96), {**DRIVES, "a": Drive(reservation=2)})
    assert not parda.kept(phase(1.0), {**DRIVES, "a": Drive(reservation=3)})


def test_published_figures_stand_beside_ours_while_all_hosts_run() -> None:
    shown = parda.table("equal", phase(1.0))
    assert "730/s 34 ms" in shown
    assert "730/s 34 ms" not in parda.table("equal", replace(phase(1.0), stopped=["d"]))
