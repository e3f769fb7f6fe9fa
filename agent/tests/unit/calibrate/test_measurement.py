"""Measurements of simulated devices, and the calibrations made of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from iokeel.calibrate.fio import Fio, Job, JobResult
from iokeel.calibrate.measurement import QUICK, Plan, Series, measure
from iokeel.calibrate.output import Conditions, config_table, json_text
from iokeel.calibrate.plot import check_plot_file, draw_plot
from iokeel.calibrate.result import evaluate
from iokeel.core.values.curve import KIB
from iokeel.errors import CalibrationError

Windows = Callable[[Job, int], tuple[float, ...]]


def served(job: Job) -> float:
    """Return the rate of eight servers that take 1 ms, and 1 ms for each 64 KiB; writes twice."""
    time_s = 0.001 * (1 + job.size_bytes / (64 * KIB)) * (2 if job.write else 1)
    return min(job.depth, 8) / time_s


def steady(job: Job, time: int) -> tuple[float, ...]:
    return (served(job),) * 6


@dataclass(frozen=True, slots=True)
class SimulatedFio(Fio):
    """Serves each job at a rate that depends on the job and on how often it ran."""

    windows: Windows = steady
    jobs: list[Job] = field(default_factory=list)
    busy_ratio: float = 0.5

    def run(self, job: Job) -> JobResult:
        self.jobs.append(job)
        rates = self.windows(job, self.jobs.count(job))
        mean = sum(rates) / len(rates)
        return JobResult(job, mean, job.depth / mean, 2 * job.depth / mean, rates, self.busy_ratio)


class RunCounter:
    """Notes the number of runs left, before each run."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def run_started(self, job: Job, runs_left: int) -> None:
        self.left.append(runs_left)

    def run_finished(self, result: JobResult) -> None:
        pass


def measured(
    windows: Windows = steady, *, writes: bool = True, plan: Plan = QUICK, busy_ratio: float = 0.5
) -> list[Series]:
    return measure(device(windows, busy_ratio), plan, writes, RunCounter())


def device(windows: Windows = steady, busy_ratio: float = 0.5) -> SimulatedFio:
    return SimulatedFio("disk", (), 0, windows=windows, busy_ratio=busy_ratio)


# Measuring


def test_all_kinds_and_sizes_are_measured_and_reads_first() -> None:
    fio = device()
    series = measure(fio, Plan(), True, RunCounter())
    sizes: dict[tuple[bool, bool], list[int]] = {}
    for s in series:
        sizes.setdefault((s.job.write, s.job.sequential), []).append(s.job.size_bytes // KIB)
    random, sequential = [4 << power for power in range(9)], [4, 16, 64, 256, 1024]
    assert sizes == {
        (False, False): random,
        (False, True): sequential,
        (True, False): random,
        (True, True): sequential,
    }
    written = [job.write for job in fio.jobs]
    assert written == sorted(written)


def test_without_writes_nothing_is_written() -> None:
    fio = device()
    measure(fio, Plan(), False, RunCounter())
    assert not any(job.write for job in fio.jobs)


def test_writes_begin_only_after_a_check() -> None:
    def in_use() -> None:
        raise CalibrationError("disk", "is in use")

    fio = device()
    with pytest.raises(CalibrationError, match="is in use"):
        measure(fio, Plan(), True, RunCounter(), in_use)
    reads = len(fio.jobs)
    assert {job.write for job in fio.jobs} == {False}
    checks: list[bool] = []
    fio = device()
    measure(fio, Plan(), True, RunCounter(), lambda: checks.append(fio.jobs[-1].write))
    assert checks == [False]
    assert [job.write for job in fio.jobs[:reads]] == [False] * reads
    assert fio.jobs[reads].write
    measure(device(), Plan(), False, RunCounter(), in_use)


def test_each_series_ends_at_saturation_and_is_repeated() -> None:
    plan = Plan()
    for series in measured(plan=plan):
        assert series.job.depth == 8
        assert series.raw_iops == served(series.job)
        assert [run.job.depth for run in series.saturated] == [16] * (1 + plan.repeats)
        assert series.latency_p99_s == 2 * 8 / served(series.job)
        assert max(series.rates) <= 32


def test_a_disk_that_does_less_in_a_deep_queue_is_measured_in_one_that_isnt() -> None:
    def thrashing(job: Job, time: int) -> tuple[float, ...]:
        return (served(job) / (1 if job.depth <= 8 else 2),)

    for series in measured(thrashing):
        assert {run.job.depth for run in series.saturated} == {8}
        assert series.raw_iops == served(series.job)


def test_repeats_lie_apart() -> None:
    fio = device()
    measure(fio, Plan(), False, RunCounter())
    # The last rounds have all kinds in turn, each at its saturation.
    assert fio.jobs[-28:-14] == fio.jobs[-14:]
    assert len(set(fio.jobs[-14:])) == 14


def test_what_is_left_is_known_and_comes_to_an_end() -> None:
    counter = RunCounter()
    measure(device(), Plan(), True, counter)
    assert counter.left[-1] == 1
    assert all(left >= 1 for left in counter.left)
    # Searches take what was guessed, but for some.
    assert counter.left[0] == pytest.approx(len(counter.left), rel=0.2)


# Its result


def test_a_storage_with_dollar_signs_in_its_name_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    check_plot_file(file)
    assert not file.exists()
    draw_plot("/srv/$a_$_{", evaluate(measured(), None), file)
    assert file.exists()


def test_a_device_without_faults_gives_no_warning() -> None:
    result = evaluate(measured(), 0.0)
    assert result.warnings == []
    assert result.fit.capacity == pytest.approx(8000 / (1 + 4 / 64), rel=0.006)
    # Eight servers at 80 %, by Erlang's formula, take 1.286 times the time alone, and the target is
    # twice that: 2.125 ms for writes of 4 KiB, of which the law allows for 3 x (2 - 1) / 7530 s.
    # Two digits are given.
    assert result.latency_target_ms == 3.9
    assert result.latencies_s["random 4 KiB writes"] == pytest.approx(1.286 * 2.125e-3, rel=0.01)


def test_the_table_is_toml_with_the_curves() -> None:
    result = evaluate(measured(), None)
    table = tomllib.loads(config_table("disk", "path", '/srv/a "b"\\c', result))["storage"]["disk"]
    assert table["path"] == '/srv/a "b"\\c'
    for key, curve in (("curve_read", result.fit.read), ("curve_write", result.fit.write)):
        assert curve is not None
        assert [cost for _, cost in table[key]] == [cost for _, cost in curve.points]
    assert table["curve_read"][0] == ["4k", 1.0]
    assert table["curve_read"][-1][0] == "1m"


def test_a_name_with_dots_is_one_name() -> None:
    text = config_table("rbd.pool", "source", "rbd:pool", evaluate(measured(), None))
    assert [*tomllib.loads(text)["storage"]] == ["rbd.pool"]


def test_a_path_in_the_table_is_whole_and_never_run() -> None:
    path = "/srv/\x1b[2J\x9b\u202e\u2028\U000e0001Größe"
    text = config_table("disk", "path", path, evaluate(measured(), None))
    assert all(line.isprintable() for line in text.split("\n"))
    assert tomllib.loads(text)["storage"]["disk"]["path"] == path


def test_the_json_has_every_run_of_every_series() -> None:
    result = evaluate(measured(), None)
    conditions = Conditions.now("/dev/x", "fio-3", 1.0, None, 1)
    report = json.loads(json_text(conditions, result, "the table"))
    assert (report["storage"], report["config"]) == ("/dev/x", "the table")
    assert len(report["series"]) == len(result.series)
    first = report["series"][0]
    assert (first["kind"], first["order"], first["size_bytes"]) == ("read", "random", 4 * KIB)
    # All depths from 1 on, and one repeat at the depth of the rate.
    assert [run["depth"] for run in first["runs"]] == [1, 2, 4, 8, 16, 32, 16]
    assert len(first["runs"][0]["window_iops"]) == 6


def test_a_device_that_was_only_read_has_no_write_curve() -> None:
    result = evaluate(measured(writes=False), None)
    assert "curve_write" not in config_table("disk", "path", "/x", result)
    assert result.warnings == ["writes were not measured, so they are priced like reads"]


def two_figures(job: Job, time: int) -> tuple[float, ...]:
    """Large writes are at a third of their rate from the second run on."""
    slow = job.write and not job.sequential and job.size_bytes == 256 * KIB and time > 1
    return (served(job) / (3 if slow else 1),) * 20


def test_a_bistable_device_is_told_with_both_figures_and_the_lower_counts() -> None:
    plan = Plan(QUICK.random_kib, QUICK.sequential_kib, repeats=2)
    result = evaluate(measured(two_figures, plan=plan), None)
    (series,) = [s for s in result.series if s.steadiness.modes]
    assert str(series.job) == "random 256 KiB writes"
    # 800 a second, or a third of that for two runs of three.
    assert series.steadiness.modes == pytest.approx((800 / 3, 800))
    assert series.raw_iops == pytest.approx(800 / 3)
    assert result.warnings[0] == (
        "random 256 KiB writes are bistable: 800/s, but 267/s for 67 % of the time;"
        " the slowest run counts, 267/s"
    )


def out_of_credit(job: Job, time: int) -> tuple[float, ...]:
    """All is at a twentieth of its rate once the searches are done."""
    return (served(job) / (20 if time > 1 else 1),) * (2 if job.seconds <= 1 else 6)


@pytest.mark.parametrize("plan", [Plan(), QUICK])
def test_a_volume_that_runs_out_of_credit_is_as_slow_as_it_gets(plan: Plan) -> None:
    result = evaluate(measured(out_of_credit, plan=plan), None)
    fast = evaluate(measured(plan=plan), None)
    assert result.fit.capacity == pytest.approx(fast.fit.capacity / 20, rel=0.01)
    # The target is given with two digits.
    assert result.latency_target_ms == pytest.approx(20 * fast.latency_target_ms, rel=0.03)
    kind = "random 4 KiB reads"
    assert result.latencies_s[kind] == pytest.approx(20 * fast.latencies_s[kind])
    (warning,) = [w for w in result.warnings if w.startswith(f"{kind} are ")]
    assert warning.startswith(f"{kind} are {'unsteady: 376/s' if plan is QUICK else 'bistable'}")
    assert "; the slowest run counts" in warning


def test_an_unsteady_device_is_told() -> None:
    def unsteady(job: Job, time: int) -> tuple[float, ...]:
        return tuple(served(job) * (0.8 + 0.02 * i) for i in range(20))

    warnings = evaluate(measured(unsteady), None).warnings
    assert any(
        w.startswith("random 4 KiB reads are unsteady: 7454/s, with a spread of") for w in warnings
    )


def test_a_disk_that_likes_order_is_told() -> None:
    def arm(job: Job, time: int) -> tuple[float, ...]:
        return (served(job) * (20 if job.sequential and job.size_bytes == 4 * KIB else 1),)

    warnings = evaluate(measured(arm), None).warnings
    for kind in ("reads", "writes"):
        what = f"sequential 4 KiB {kind} are 20.0 times as fast as random ones"
        assert any(warning.startswith(what) for warning in warnings)


def test_a_processor_that_is_the_bound_is_told() -> None:
    warnings = evaluate(measured(busy_ratio=0.99), None).warnings
    assert warnings[0].startswith("random 4 KiB reads kept fio's processor 99 % busy")


def test_a_device_that_is_never_saturated_is_told() -> None:
    def endless(job: Job, time: int) -> tuple[float, ...]:
        return (100.0 * job.depth,)

    warnings = evaluate(measured(endless), None).warnings
    assert warnings[0].startswith("random 4 KiB reads were still gaining at a depth of 512")


def test_runs_too_short_for_a_deep_queue_are_told() -> None:
    def slow(job: Job, time: int) -> tuple[float, ...]:
        return (20.0 * job.depth**0.5,)

    # At depth 16 a second has 80 requests. At 32, three turns of the queue would take longer.
    warning, *_ = evaluate(measured(slow), None).warnings
    assert warning == (
        "random 4 KiB reads were still gaining at a depth of 16: give longer runs (--seconds)"
    )
    warning, *_ = evaluate(measured(slow, plan=replace(QUICK, seconds=30)), None).warnings
    assert warning.startswith("random 4 KiB reads were still gaining at a depth of 512: the")


def test_a_device_of_zeros_is_told() -> None:
    assert evaluate(measured(), 0.9).warnings[0].startswith("90 % of the storage reads as zeros")
    assert evaluate(measured(), 0.1).warnings == []


def test_a_storage_that_memory_may_have_answered_for_is_told() -> None:
    (warning,) = evaluate(measured(), None, ("the cache", "go around it")).warnings
    assert warning == (
        "reads may have come from memory, the cache, instead of the storage; go around it"
    )
