"""The benchmarks' figures, by cases calculated by hand, and the static limits that they compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.bench.controllers import CONTROLLERS
from benchmarks.bench.controllers.average_size import limit
from benchmarks.bench.controllers.static import Static, bytes_, requests, tuned
from benchmarks.bench.metrics import METRICS, back_s
from benchmarks.bench.records import Case, DriveRun, Plan, Run, Setup
from benchmarks.bench.running.one_run import fio_sys_s
from benchmarks.bench.running.requests import Done, drive_run
from benchmarks.bench.scenario import Drive, Stream, load
from benchmarks.bench.shown import Shown
from iokeel.core.values.curve import DEFAULT_MODEL

SETUP = Setup("s", "disk", slowdown=10, seconds=10, begin_s=2)
# Two seconds before the measured time, in which nothing counts but the first 10 s.
SECONDS = [300.0, 0.0, 100.0, 150.0, 50.0, 100.0, 100.0, 100.0, 104.0, 96.0]


def drive(rate: float = 100.0, **values: object) -> DriveRun:
    return DriveRun(rate, 1000, **values)  # type: ignore[arg-type]


def figure(
    words: str, run: Run, plans: dict[str, Plan], setup: Setup = SETUP, **others: list[Run]
) -> float | None:
    """Return a figure of a run, in a case that has the `others` too."""
    case = Case(plans, {"this": [run], **others})
    found = Shown.of(words).values(setup, case, "this", case)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("held a", 1.0),
        # Errors of the measured seconds: 0, 0.5, 0.5, 0, 0, 0, 0.04, 0.04.
        ("error_p50 a", 0.02),
        ("error_worst a", 0.5),
        ("overspend a", (0.5 + 0.04) / 8),
        ("first_10s a", 1.1),
        ("reprice_s a", 3.0),  # the shift is at 2 s, the last wrong second begins at 4 s
        ("latency_ms a", 0.5),
        ("latency_max_ms a", 2.0),
        ("file_s a", 5.0),
    ],
)
def test_figure_of_a_drive_is_that_of_its_formula(words: str, value: float) -> None:
    one = drive(
        by_second=SECONDS, latency_mean_ms=5.0, latency_max_ms=20.0, bytes_measured=8 * 2**20
    )
    plan = Plan(100, reservation=80, shifts_s=[2.0], file_bytes=5 * 2**20)
    assert figure(words, Run({"a": one}), {"a": plan}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("latency_impact a", 3.0),
        ("latency_impact_p99 a", 4.0),
        ("file_over_alone a", 2.5),
        ("kept a", 0.25),
        ("work", 90 / 150),
        ("of_limit", 90 / 300),
        # x = r / w: 0.5 and 0.2.
        ("jain", 0.7**2 / (2 * (0.25 + 0.04))),
        # Shares 50 / 90 and 40 / 90, where 1 / 3 and 2 / 3 are due.
        ("share a", 50 / 90 * 3),
        ("share_error", 50 / 90 * 3 - 1),
        ("control_us", 1e6 * 3 / 60_000),
        ("fio_sys_us", 1e6 * (2 + 4) / 60_000),
    ],
)
def test_figure_beside_other_runs_is_that_of_its_formula(words: str, value: float) -> None:
    a = {"latency_mean_ms": 6.0, "latency_p99_ms": 20.0, "bytes_measured": 400}
    b = drive(40, requests=40_000, fio_sys_s=4.0)
    run = Run({"a": drive(50, requests=20_000, fio_sys_s=2.0, **a), "b": b}, control_cpu_s=3.0)
    alone = {**a, "requests": 200, "latency_mean_ms": 2.0, "latency_p99_ms": 5.0}
    alone["bytes_measured"] = 1000
    plans = {"a": Plan(100, weight=100), "b": Plan(200, weight=200)}
    found = figure(
        words,
        run,
        plans,
        none=[Run({"a": drive(200), "b": drive(total)}) for total in (-90, -50, -40)],
        alone=[Run({"a": drive(400, **alone)})],
    )
    assert found == pytest.approx(value)


def test_p99_is_of_a_hundred_requests_or_more() -> None:
    plans = {"a": Plan(100)}

    def requests(measured: int) -> Run:
        """Return a run with twice as many, half of them in the measured time."""
        return Run({"a": drive(requests=2 * measured, bytes_measured=500, latency_p99_ms=8.0)})

    enough, too_few = requests(100), requests(99)
    words = "latency_impact_p99 a"
    assert figure(words, enough, plans, alone=[enough]) == 1
    assert figure(words, too_few, plans, alone=[enough]) is None
    assert figure(words, enough, plans, alone=[too_few]) is None


def test_rate_is_kept_of_that_of_the_same_controller_in_the_first_case() -> None:
    first = Case({}, {"none": [Run({"a": drive(10)})], "this": [Run({"a": drive(80)})]})
    last = Case({"a": Plan(100)}, {"none": [], "this": [Run({"a": drive(20)})]})
    assert Shown.of("kept_own a").values(SETUP, last, "this", first) == [0.25]
    assert Shown.of("kept a").values(SETUP, last, "this", first) == [2.0]


def test_burst_is_the_time_above_what_is_owed_over_the_credit() -> None:
    run = Run({"a": drive(by_second=[200, 200, 160, 150, 200, *[100.0] * 5])})
    assert figure("burst a", run, {"a": Plan(100, credit_s=4.0)}) == 2 / 4
    assert METRICS["burst"].distance(1.8) > METRICS["burst"].distance(0.9)


def test_isolation_is_the_lowest_percent_of_seconds_and_never_above_alone() -> None:
    alone = [Run({"a": drive(100)})]
    plans = {"a": Plan(100)}
    setup = replace(SETUP, slowdown=1)
    quick = Run({"a": drive(by_second=[0, 0, *[200.0] * 8])})
    assert figure("isolation_p01 a", quick, plans, setup, alone=alone) == 1
    # Of eight seconds the lowest percentile lies 7 % of the way from the lowest to the next.
    slow = Run({"a": drive(by_second=[0, 0, 20.0, *[100.0] * 7])})
    found = figure("isolation_p01 a", slow, plans, setup, alone=alone)
    assert found == pytest.approx(0.2 + 0.07 * 0.8)


@pytest.mark.parametrize(
    ("slowdown", "windows", "lowest", "p01"),
    # From second 2 on it does 0, 0, 0, 90, 90, 90, 120 and 120 of 100.
    [
        (0.5, 8, 0.0, 0.0),
        (1, 8, 0.0, 0.0),
        (1.5, 4, 0.0, 0.03 * 0.45),
        (3, 2, 0.0, 0.01 * 0.9),
        (4, 2, 0.225, 0.225 + 0.01 * 0.775),
        (8, 1, 0.6375, 0.6375),
    ],
)
def test_windows_are_as_long_as_a_second_of_the_disk(
    slowdown: float, windows: int, lowest: float, p01: float
) -> None:
    run = Run({"a": drive(by_second=[9, 9, 0, 0, 0, 90, 90, 90, 120, 120])})
    plans, setup = {"a": Plan(100, reservation=100)}, replace(SETUP, slowdown=slowdown)
    assert METRICS["attainment_window"].windows(setup) == windows
    assert figure("attainment_window a", run, plans, setup) == pytest.approx(lowest)
    alone = [Run({"a": drive(100)})]
    assert figure("isolation_p01 a", run, plans, setup, alone=alone) == pytest.approx(p01)


def test_a_run_that_is_shorter_than_a_window_has_no_figure_of_windows() -> None:
    run = Run({"a": drive(by_second=SECONDS)})
    assert figure("attainment_window a", run, {"a": Plan(100, reservation=100)}) is None  # of 10 s


def test_reservation_is_judged_by_seconds_and_more_than_it_is_no_better() -> None:
    plans = {"a": Plan(100, reservation=100)}
    run = Run({"a": drive(by_second=[0, 0, 96, 94, 200, 130])})
    assert figure("attainment a", run, plans) == pytest.approx(0.94)
    assert figure("missed a", run, plans) == pytest.approx(1 / 4)
    always_more = Run({"a": drive(by_second=[0, 0, 120, 110])})
    assert figure("attainment a", always_more, plans) == 1.0
    assert figure("missed a", always_more, plans) == 0.0


def test_last_to_finish_counts_only_if_all_have() -> None:
    done, not_done = drive(finished_s=4.0), drive()
    plans = {"a": Plan(1), "b": Plan(1)}
    assert figure("all_finished_s", Run({"a": done, "b": done}), plans) == 4
    early = drive(finished_s=3.0)
    assert figure("finish_spread", Run({"a": done, "b": early}), plans) == pytest.approx(0.25)
    assert figure("all_finished_s", Run({"a": done, "b": not_done}), plans) is None


def test_error_of_a_cap_is_that_of_all_its_drives_in_each_second() -> None:
    plans = {"a": Plan(100), "b": Plan(100)}
    a, b = drive(by_second=[0, 0, 200.0, 150.0]), drive(by_second=[0, 0, 0.0, 150.0])
    # Together 200 and 300 of 200.
    assert figure("cap_error", Run({"a": a, "b": b}), plans) == pytest.approx(0.25)


def test_lowest_part_is_that_of_the_drives_whose_load_has_begun() -> None:
    plans = {"a": Plan(100, weight=300), "b": Plan(100, weight=100, from_s=3.0)}
    a, b = drive(by_second=[9, 9, 180, 135, 150]), drive(by_second=[0, 0, 0, 25, 50])
    # a's part is 200, then 150; b's is 50 from second 3 on.
    assert figure("lowest_part", Run({"a": a, "b": b}), plans) == 0.5
    idle = drive(by_second=[0, 0, 0, 0, 50])
    assert figure("lowest_part", Run({"a": a, "b": idle}), plans) == 0
    later = {**plans, "b": Plan(100, weight=100, from_s=4.0)}
    assert figure("lowest_part", Run({"a": a, "b": idle}), later) == 135 / 200


def test_time_to_reprice_ends_when_every_later_second_is_right() -> None:
    assert back_s([1.0, 1.04, 0.96]) == 0
    assert back_s([2.0, 1.0, 1.06, 1.0]) == 3
    assert back_s([0.5, 1.0]) == 1


def test_drive_that_is_wrong_when_the_next_shift_comes_is_never_repriced() -> None:
    assert back_s([1.0, 0.5]) is None
    run = Run({"a": drive(by_second=[2.0, *[1.0] * 9])})
    for shifts_s, value in (([0.0, 5.0], 1.0), ([0.0, 1.0], None)):
        assert figure("reprice_s a", run, {"a": Plan(1, shifts_s=shifts_s)}) == value


@pytest.mark.parametrize("name", METRICS)
def test_figure_is_unknown_if_the_run_has_nothing_of_it(name: str) -> None:
    metric = METRICS[name]
    # These take the rate alone, which every run has.
    known = {"held", "kept_own", "of_limit", "jain", "share", "share_error"}
    words = f"{name} a" if metric.of_drive else name
    assert (figure(words, Run({"a": drive()}), {"a": Plan(100)}) is None) == (name not in known)


def test_retuner_by_average_size_sets_the_published_limits() -> None:
    kib = 1 << 10
    assert limit(DEFAULT_MODEL, 40_000, "read", 25_000, 25_000 * 8 * kib) == 25_000
    assert limit(DEFAULT_MODEL, 40_000, "read", 4_000, 4_000 * 64 * kib) == 4_000
    assert limit(DEFAULT_MODEL, 40_000, "write", 8_000, 8_000 * 32 * kib) == 8_000
    assert limit(DEFAULT_MODEL, 40_000, "write", 0, 0) == 40_000


def test_static_limits_are_what_is_owed_at_the_sizes_they_are_priced_for() -> None:
    assert requests(2000, DEFAULT_MODEL) == 2000
    assert bytes_(1500, DEFAULT_MODEL) == 10 << 20  # 1 MiB costs 150


def test_static_limits_carry_the_burst_of_the_policy() -> None:
    policy = {"limit": 1000, "burst": 2000, "burst_seconds": 60}
    controller = CONTROLLERS["static-iops"]
    assert isinstance(controller, Static)
    # QEMU's bucket fills at the difference, 1000 a second: 30 times 2000 lasts for 60 s.
    assert controller.burst(policy, DEFAULT_MODEL) == {
        "iops-total-max": 2000,
        "iops-total-max-length": 30,
    }
    assert controller.burst({"limit": 1000}, DEFAULT_MODEL) == {}


def test_tuned_iops_size_is_near_the_published_curve_at_every_size_of_it() -> None:
    iops_size, unit = tuned(DEFAULT_MODEL)
    published = {4: 1.0, 8: 1.6, 16: 2.7, 32: 5, 64: 10, 128: 19.5, 256: 39, 512: 76, 1024: 150}
    charged = {kib: unit * max(1, kib * 1024 / iops_size) for kib in published}
    worst = max(max(charged[kib] / cost, cost / charged[kib]) for kib, cost in published.items())
    assert worst < 1.26


def test_drive_is_that_of_all_its_logs_on_our_clock(tmp_path: Path) -> None:
    """Log lines are: milliseconds of the epoch, nanoseconds, direction (0 read), bytes."""
    one, other, empty = (tmp_path / name for name in ("a", "b", "c"))
    one.write_text("11500, 2000000, 0, 4096, 0\n13999, 4000000, 0, 8192, 0\n")
    # A flush doesn't count, and what ends after the run isn't measured.
    other.write_text(
        "12500, 1000000, 1, 65536, 0\n12600, 9, 2, 0, 0\n15500, 900000000, 0, 4096, 0\n"
    )
    empty.write_text("")
    done = Done.read("db", [one, other, empty], DEFAULT_MODEL, ahead_s=1.0)
    scenario = load("first-seconds").cases[0]
    scenario = dataclasses.replace(scenario, seconds=4.0, begin_s=1.0)
    stream = Stream("io", {"io_size": "40k", "numjobs": 2})
    found = drive_run(scenario, Drive("db", "db", {}, (stream,)), done, 10.0, 0.25)
    # Completions at 0.5, 1.5, 2.999 and 4.5 s of costs 1, 10, 1.6 and 1.
    assert found.by_second == pytest.approx([1, 10, 1.6, 0])
    assert found.rate == pytest.approx(11.6 / 3)
    assert (found.requests, found.bytes) == (4, 81920)
    assert found.bytes_measured == 65536 + 8192
    assert found.latency_mean_ms == pytest.approx(2.5)
    assert found.latency_max_ms == pytest.approx(4)
    assert found.finished_s == pytest.approx(4.5)


def test_drive_that_has_not_done_its_amount_has_not_finished(tmp_path: Path) -> None:
    log = tmp_path / "a"
    log.write_text("10500, 2000000, 0, 4096, 0\n")
    done = Done.read("db", [log], DEFAULT_MODEL)
    scenario = load("first-seconds").cases[0]
    for size, finished in (("4k", 0.5), ("8k", None)):
        drive_ = Drive("db", "db", {}, (Stream("io", {"io_size": size}),))
        assert drive_run(scenario, drive_, done, 10.0, None).finished_s == finished
    with pytest.raises(RuntimeError, match="db: fio logged no request"):
        Done.read("db", [], DEFAULT_MODEL)


def test_processor_time_of_fio_is_the_sum_of_a_drives_jobs() -> None:
    """Its streams run for different times, and fio tells percents of each."""
    names = [("db-small", 10.0, 31_000), ("db-large", 5.0, 30_000), ("db2-io", 50.0, 1000)]
    report = [{"jobname": name, "sys_cpu": cpu, "job_runtime": ms} for name, cpu, ms in names]
    assert fio_sys_s(report, Drive("db", "db", {}, ())) == pytest.approx(3.1 + 1.5)
