"""Runs in virtual time: throttles and loads are as QEMU's and fio's, and nothing varies."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.bench.errors import BenchError
from benchmarks.bench.scenario import CALIBRATED, Drive, Scenario, load
from benchmarks.bench.scenario import names as scenario_names
from benchmarks.bench.virtual.calibrate import calibrated, text
from benchmarks.bench.virtual.controllers import VIRTUAL, chosen
from benchmarks.bench.virtual.host import BYTE_NS, EXPORT_NS, LATE_NS, Host, Load
from benchmarks.bench.virtual.one_run import run
from benchmarks.bench.virtual.result import FILE, Values, VirtualResult, compare, model, read, write
from benchmarks.bench.virtual.runner import measure
from benchmarks.result_file import RESULTS
from iokeel.core.values.curve import KIB, CostCurve
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from testing.bench_program import ENVIRON, PROJECT

NS_PER_S = 1_000_000_000
NVME = "nvme-970-pro"
CURVE = CostCurve(((4 * KIB, 1.0), (64 * KIB, 9.0)))


class Guest:
    """One drive with one load, and its throttle group."""

    def __init__(self, host: Host, *, keeps_levels: bool = False, **changed: object) -> None:
        self.host, self.group = host, host.group(keeps_levels=keeps_levels)
        self.number = host.drive(self.group, 0)
        one = Load(
            depth=16,
            random=True,
            read_part=1.0,
            sizes=([(4 * KIB, 1.0)], [(4 * KIB, 1.0)]),
            offset=0,
            bytes=1 << 30,
            start_s=0.0,
            end_s=1000.0,
        )
        host.load(self.number, replace(one, **changed), 0, 0)  # type: ignore[arg-type]

    def limit(self, limits: ThrottleLimits) -> None:
        self.host.set_limits(self.group, limits)

    def passed(self, from_s: float, to_s: float) -> int:
        """Return how many requests the throttle lets pass from now, at from_s, to to_s."""
        assert self.host.now_ns == round(from_s * NS_PER_S)
        before = self.counts()
        self.host.run(round(to_s * NS_PER_S))
        return self.counts() - before

    def counts(self) -> int:
        found = self.host.counters(self.number, guest=False, counts=True, times=False)
        return found.read_requests + found.write_requests


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(NVME, 1, 1) as made:
        yield made


def test_limit_of_stock_qemu_holds_after_a_tenth_of_a_second_for_nothing(host: Host) -> None:
    guest = Guest(host)
    guest.limit(UNLIMITED.with_fields({"iops_total": 1000}))
    assert guest.passed(0, 1) == pytest.approx(1100, abs=2)
    assert guest.passed(1, 11) == pytest.approx(10_000, abs=2)


@pytest.mark.parametrize(("iops_size", "size", "expected"), [(8, 32, 250), (8, 4, 1000)])
def test_stock_qemu_counts_large_requests_as_several(
    host: Host, iops_size: int, size: int, expected: int
) -> None:
    guest = Guest(host, sizes=([(size * KIB, 1.0)], []))
    guest.limit(UNLIMITED.with_fields({"iops_total": 1000, "iops_size": iops_size * KIB}))
    guest.passed(0, 1)
    assert guest.passed(1, 11) == pytest.approx(10 * expected, rel=0.002)


def test_limit_on_bytes_of_writes_leaves_reads_alone(host: Host) -> None:
    reader, writer = Guest(host, read_part=1.0), Guest(host, read_part=0.0)
    for guest in (reader, writer):
        guest.limit(UNLIMITED.with_fields({"bps_write": 4096 * 100}))
    host.run(NS_PER_S)
    assert writer.passed(1, 6) == pytest.approx(500, abs=2)
    assert reader.counts() > 100_000


def test_burst_lasts_as_long_as_its_bucket(host: Host) -> None:
    """QEMU: max * length of room; it fills at what is above the average."""
    guest = Guest(host)
    burst = {"iops_total": 1000, "iops_total_max": 3000, "iops_total_max_length": 4}
    guest.limit(UNLIMITED.with_fields(burst))
    assert guest.passed(0, 6) == pytest.approx(6 * 3000, rel=0.02)
    assert guest.passed(6, 16) == pytest.approx(10 * 1000, rel=0.02)


@pytest.mark.parametrize(("keeps", "ratio"), [(False, 2.0), (True, 1.0)])
def test_stock_qemu_gives_a_tenth_of_a_second_with_each_change(
    host: Host, keeps: bool, ratio: float
) -> None:
    """qemu.json: limits set anew ten times a second let 2.01 times as much through."""
    guest = Guest(host, keeps_levels=keeps)
    guest.limit(UNLIMITED.with_fields({"iops_total": 1000}))
    guest.passed(0, 1)
    before = guest.counts()
    for i in range(100):
        guest.limit(UNLIMITED.with_fields({"iops_total": 1000}))
        host.run(round((1.1 + i / 10) * NS_PER_S))
    assert guest.counts() - before == pytest.approx(10_000 * ratio, rel=0.005)


def test_curve_prices_each_request(host: Host) -> None:
    guest = Guest(host, keeps_levels=True, sizes=([(64 * KIB, 1.0)], []))
    guest.limit(UNLIMITED._replace(iops_total=900, cost_read=CURVE))
    guest.passed(0, 1)
    assert guest.passed(1, 11) == pytest.approx(1000, abs=2)
    found = host.counters(guest.number, guest=False, counts=True, times=False).throttle
    assert found is not None
    assert found.read.cost == pytest.approx(9.0 * found.read.requests)


@pytest.mark.parametrize(("credit_ms", "after"), [(100, 100), (10, 10)])
def test_idle_credit_is_what_passes_at_once(host: Host, credit_ms: int, after: int) -> None:
    guest = Guest(host, keeps_levels=True, depth=512, busy_s=1.0, pause_s=1.0)
    limits = UNLIMITED._replace(iops_total=1000, cost_read=CURVE, idle_credit_ms=credit_ms)
    guest.limit(limits)
    host.run(2 * NS_PER_S - 1)
    before = guest.counts()
    host.run(2 * NS_PER_S + 1_000_000)
    assert guest.counts() - before == pytest.approx(after, abs=3)


@pytest.mark.parametrize("bound", [1, 2.5, 7])
def test_bound_in_flight_holds_on_average(host: Host, bound: float) -> None:
    """Little's law: the mean number below the throttle is the rate times the time there."""
    guest = Guest(host, depth=64, sizes=([(256 * KIB, 1.0)], []))
    guest.limit(UNLIMITED._replace(max_in_flight=bound))
    host.run(NS_PER_S)
    before = host.disk_counters()
    host.run(6 * NS_PER_S)
    after = host.disk_counters()
    in_flight = (after.read_time_ns - before.read_time_ns) / (after.at_ns - before.at_ns)
    assert in_flight == pytest.approx(bound, rel=0.01)


def test_large_reads_go_in_parts_of_which_sixteen_are_under_way(host: Host) -> None:
    guest = Guest(host, depth=1, sizes=([(1024 * KIB, 1.0)], []))
    guest.limit(UNLIMITED._replace(split_size=16 * KIB))
    host.run(NS_PER_S // 100_000)
    assert host.disk_counters().in_flight == 16
    host.run(NS_PER_S)
    found = host.disk_counters()
    assert found.read_bytes == 16 * KIB * found.read_requests
    counts = host.counters(guest.number, guest=True, counts=True, times=True)
    assert counts.throttle is not None
    assert counts.throttle.read.sizes == ((1024 * KIB, counts.throttle.read.requests),)
    assert counts.throttle.read.took is not None
    assert counts.throttle.read.took.requests == found.read_requests


def test_request_alone_takes_what_the_disk_and_the_way_to_it_take(host: Host) -> None:
    """nvme-970-pro.conf: controller, unit, link and latency, one after the other."""
    guest = Guest(host, depth=1)
    host.run(NS_PER_S)
    way_ns = EXPORT_NS + 4096 * BYTE_NS
    own_ns = 1000 * (2.7 + 48 + 14.8) + 4096 / 3.5
    assert host.ended(guest.number).latency_ns.mean() == pytest.approx(own_ns + way_ns, rel=0.01)


def test_writers_that_sync_share_flushes(host: Host) -> None:
    """One flush is under way; those that ask meanwhile have the next one together."""
    writers = [Guest(host, depth=1, read_part=0.0, syncs=True) for _ in range(8)]
    host.run(NS_PER_S)
    rates = [writer.counts() for writer in writers]
    program_ns = 456_000
    assert min(rates) == pytest.approx(max(rates), rel=0.05)
    assert max(rates) < NS_PER_S / program_ns


def test_amount_rate_and_pauses_are_as_the_job_says(host: Host) -> None:
    amount = Guest(host, amount_bytes=400 * KIB)
    paced = Guest(host, rate=500.0)
    paused = Guest(host, depth=1, busy_s=0.5, pause_s=1.5)
    host.run(4 * NS_PER_S)
    assert amount.counts() == 100
    assert paced.counts() == pytest.approx(2000, abs=20)
    ends = host.ended(paused.number).at_ns % (2 * NS_PER_S)
    assert ends.max() < 0.5 * NS_PER_S + 10 * EXPORT_NS
    assert ends.max() > 0.49 * NS_PER_S


def test_timers_are_late_by_as_much_as_said(host: Host) -> None:
    guest = Guest(host, depth=1)
    guest.limit(UNLIMITED._replace(iops_total=100, idle_credit_ms=0))
    host.run(20 * NS_PER_S)
    gaps = host.ended(guest.number).latency_ns[20:]
    assert gaps.mean() == pytest.approx(10_000_000 + LATE_NS, rel=0.02)


@pytest.mark.parametrize("controller", ["none", "average-size", "iokeel-retune", "iokeel-exact"])
def test_same_run_has_the_same_figures(controller: str) -> None:
    scenario = load("backup-window").cases[0]
    one, other, another = (run(scenario, VIRTUAL[controller], seed) for seed in (3, 3, 4))
    assert one == other
    assert one != another


def _scenario(policy: Mapping[str, float], bs: str) -> Scenario:
    whole = load("shift-8k-64k").cases[0]
    drive: Drive = whole.drives[0]
    stream = replace(drive.streams[0], job={"rw": "randread", "bs": bs, "iodepth": 16}, end_s=None)
    one = replace(drive, policy=policy, streams=(stream,))
    return replace(whole, drives=(one,), seconds=30, begin_s=12)


@pytest.mark.parametrize("controller", ["iokeel-retune", "iokeel-exact"])
@pytest.mark.parametrize("bs", ["4k", "16k", "128k"])
def test_law_holds_a_drive_to_its_limit(controller: str, bs: str) -> None:
    held = run(_scenario({"limit": 2000}, bs), VIRTUAL[controller], 1).drives["db"]
    assert held.rate == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("seed", [3, 8])
def test_limits_that_keep_a_reservation_are_not_lifted_because_they_work(seed: int) -> None:
    case = load("reservation").cases[0]
    victim = run(case, VIRTUAL["iokeel-exact"], seed).drives["victim"]
    assert victim.by_second is not None
    assert min(victim.by_second[12:]) > 0.9 * case.owed(case.drives[0])


def test_published_rule_holds_a_limit_of_one_size() -> None:
    held = run(_scenario({"limit": 2000}, "16k"), VIRTUAL["average-size"], 1).drives["db"]
    assert held.rate == pytest.approx(2000, rel=0.02)


def test_calibrate_finds_what_is_committed() -> None:
    """The smallest of the disks; the disk's own times say that it serves 1 s / 46.5 us reads."""
    found = text([("network-ceph-rbd", 4.0, calibrated("network-ceph-rbd", 4.0))])
    ours = tomllib.loads(found)["network-ceph-rbd"]["4"]
    assert ours == tomllib.loads(CALIBRATED.read_text())["network-ceph-rbd"]["4"]
    assert ours["capacity"] == pytest.approx(1e6 / 46.5 / 4, rel=0.01)


# Errors


def test_unknown_names_are_told_with_the_nearest() -> None:
    with pytest.raises(BenchError, match="iokeel-exact"):
        chosen(["iokeel-exakt"])
    said = bench_error("run", "--virtual", "weigths")
    assert "there is none of this name" in said
    assert "weights" in said


def test_what_has_no_meaning_in_virtual_time_is_refused() -> None:
    assert "booted-nvme-readers" in bench_error("run", "--virtual", "booted-nvme-readers")
    assert "--device" in bench_error("run", "--virtual", "weights", "--device", "/dev/null")
    scenario = _scenario({"limit": 2000}, "4k")
    stream = scenario.drives[0].streams[0]
    odd = replace(stream, job={**stream.job, "zonemode": "zbd"})
    odd_scenario = replace(scenario, drives=(replace(scenario.drives[0], streams=(odd,)),))
    with pytest.raises(BenchError, match="zonemode"):
        run(odd_scenario, VIRTUAL["none"], 1)


def bench_error(*words: str) -> str:
    """Run iokeel-bench, which must fail, and return its one line."""
    command = [str(PROJECT / "benchmarks/iokeel-bench"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRON)
    assert ended.returncode == 2
    assert re.fullmatch(r"iokeel-bench: .*\n", ended.stderr)
    return ended.stderr


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"units": 0}, "units"), ({"read_us": -1}, "read_us"), ({"speed": 1}, "speed")],
)
def test_impossible_disk_is_refused(changed: Mapping[str, float], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        Host(NVME, 1, 1, changed)


def test_result_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    write(path, VirtualResult("0123456789abcdef", 1, None, {}))
    with pytest.raises(BenchError, match=f"0123456789abcdef.*{model()}"):
        read(path)
    path.write_text("{")
    with pytest.raises(BenchError, match="no result in virtual time"):
        read(path)


# The judge


def test_law_is_as_good_as_in_the_committed_result() -> None:
    """Three of its ten seeds. A figure that is worse than seeds make it fails."""
    committed = read(RESULTS / FILE)
    suites = [load(name) for name in sorted(committed.scenarios)]
    ours = [VIRTUAL[name] for name in ("none", "iokeel-retune", "iokeel-exact")]
    found = compare(committed, measure(suites, ours, 3))
    worse = [change for change in found.changes if change.worse]
    assert (worse, found.lost, found.unlike) == ([], (), ())
    assert found.compared > 100


def test_committed_result_has_all_scenarios_that_virtual_time_can_run() -> None:
    committed = read(RESULTS / FILE)
    booted = {name for name in scenario_names() if load(name).cases[0].booted}
    assert committed.scenarios.keys() == {*scenario_names()} - booted
    assert committed.seeds == 10


def test_judge_finds_a_law_that_is_worse() -> None:
    committed = read(RESULTS / FILE)
    storm = committed.scenarios["boot-storm"]
    ends = storm.cases[""]["iokeel-exact"]["all_finished_s"].values
    later = {"all_finished_s": Values([1.1 * value for value in ends])}
    scenario = msgspec.structs.replace(storm, cases={"": {"iokeel-exact": later}})
    other = msgspec.structs.replace(committed, scenarios={"boot-storm": scenario})
    assert [change.worse for change in compare(committed, other).changes] == [True]
