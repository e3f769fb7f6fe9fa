"""How a run of field draws its hosts, and judges what it measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import result_file
from benchmarks.chaos.monitor import Look
from benchmarks.demo.fio_log import Completions
from benchmarks.demo.limits_in_force import Limits
from benchmarks.field import broken_agent
from benchmarks.field.broken_agent import BREAKS
from benchmarks.field.draw import BURST_PAUSE_S, Drive, FieldHost, Happens, Load, draw
from benchmarks.field.guests import fio_job, policy
from benchmarks.field.part import Part
from benchmarks.field.run import HostResult, Result, summary
from benchmarks.field.verdict import BOUNDS, Judged, judge
from benchmarks.field.watch import Device, Moment, Said
from benchmarks.result_file import Machine
from testing.lab.processors import Processors

LENGTH_S = 20.0
LIMIT = 1000
STEADY = Load("steady", 100, 4096, 4096, 16)
A = Drive("a", "virtio", "raw", "none", "native", 0, STEADY, LIMIT)
B = replace(A, name="b")
HOST = FieldHost(1, "partitions", 3000, 4, (A, B), ())
HELD = Limits(iops_total=LIMIT)
NONE = Limits()
CALM = Device(0, 0, 0, 0)


def reads(*rates: float, size: int = 4096) -> Completions:
    """Reads of 4 KiB, by the rate of each second since the head."""
    at_s = [i + n / rate for i, rate in enumerate(rates) for n in range(round(rate))]
    many = len(at_s)
    return Completions(
        np.array(at_s), np.ones(many), np.full(many, float(size)), np.zeros(many, dtype=np.bool_)
    )


def moments(
    *,
    busy: float = 0.5,
    nice: float = 0.0,
    stolen: float = 0.0,
    latency_ms: float = 0.5,
    queue: float = 0.3,
    bound: int | None = None,
    used_ratio: float = 0.0,
) -> list[Moment]:
    """What the machine did, twice a second. A bound is on requests that a's group reads."""
    made = []
    for i in range(-10, round(2 * LENGTH_S) + 1):
        ticks, at_s = 100 * i, i / 2
        processors = Processors(
            round(stolen * ticks), round((1 - busy - stolen - nice) * ticks), ticks
        )
        requests = round(queue * 1000 / latency_ms * at_s)
        device = Device(requests, round(requests * latency_ms), 0, round(queue * 1000 * at_s))
        bounds = {"a": {} if bound is None else {"read_iops": bound}}
        used = {"a": {"read_iops": round(used_ratio * (bound or 0) * at_s)}}
        made.append(Moment(at_s, processors, round(nice * ticks), device, used, bounds))
    return made


def part(
    done: Mapping[str, Completions],
    limits: Limits = NONE,
    machine: Sequence[Moment] | None = None,
    drained: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    passed: Sequence[float] = (),
) -> Part:
    looks = [Look(i / 10, "running", {"vda": limits}) for i in range(round(10 * LENGTH_S))]
    if passed:
        looks = [
            Look(float(i), "running", {"vda": limits}, {"vda": cost})
            for i, cost in enumerate(passed)
        ]
    said = {"a": [Said(9.0, 500.0, [], ["Its share of s is 500 iops."])]}
    return Part(
        0.0, LENGTH_S, done, {"a": looks, "b": looks}, machine or moments(), said, drained or {}
    )


FREE = part({"a": reads(*[4000] * 20), "b": reads(*[4000] * 20)})


def judged(
    *rates: float,
    limits: Limits = HELD,
    machine: Sequence[Moment] | None = None,
    host: FieldHost = HOST,
    without: Sequence[Part] = (FREE, FREE),
    others: float = 900.0,
    drained: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Judged:
    """Judge a, which did so much in each second with iokeel. others: what b did."""
    done = {"a": reads(*rates), "b": reads(*[others] * 20)}
    with_ = part(done, limits, machine, drained)
    return judge(host, host.drives[0], without, with_, BOUNDS["stock"])


def drawn(seed: int, hash_seed: int) -> str:
    """Return a host drawn in a process of its own: the order of a set differs between two."""
    code = f"from benchmarks.field.draw import draw; print(repr(draw({seed}, 'stock')))"
    environ = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": str(hash_seed)}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout


def test_a_seed_repeats_a_host() -> None:
    assert drawn(7, hash_seed=1) == drawn(7, hash_seed=2)
    assert drawn(7, hash_seed=1) != drawn(8, hash_seed=1)


def test_an_hours_hosts_have_all_that_ordinary_hosts_have() -> None:
    hosts = [draw(seed, "trixie") for seed in range(30)]
    drives = [drive for host in hosts for drive in host.drives]
    assert {host.storage for host in hosts} == {"partitions", "files", "nbd"}
    assert {host.capacity is None for host in hosts} == {True, False}
    assert {host.latency_target_ms is None for host in hosts if host.capacity} == {True, False}
    assert {drive.cache for drive in drives} == {"none", "writeback", "directsync"}
    assert {drive.io for drive in drives} == {"native", "threads", "io_uring"}
    assert {drive.format for drive in drives} == {"raw", "qcow2", "overlay"}
    assert {drive.bus for drive in drives} == {"virtio", "scsi", "ide"}
    assert {drive.iothreads for drive in drives} == {0, 1, 2}
    assert {drive.limit is None for drive in drives} == {True, False}
    assert {drive.reservation > 0 for drive in drives} == {True, False}
    assert {drive.latency_target_ms is None for drive in drives} == {True, False}
    assert {drive.load.demand for drive in drives} == {"steady", "paced", "bursts", "cached"}
    assert {happens.event for host in hosts for happens in host.happens} == {
        "backup", "blockcopy", "snapshot", "discards", "zeroes", "host reads", "host reads cache",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(50))
def test_a_host_has_nothing_that_qemu_or_libvirt_refuse(seed: int) -> None:
    host = draw(seed, "stock")
    for drive in host.drives:
        assert not (drive.io == "native" and drive.cache == "writeback")
        assert drive.iothreads <= 1, "libvirt 9.0 maps no queues"
        assert drive.bus != "ide" or not drive.iothreads
    jobs = [h for h in host.happens if h.event in ("backup", "blockcopy", "snapshot")]
    assert len(jobs) <= 1
    assert host.storage == "files" or not any(h.event == "snapshot" for h in host.happens)


def test_a_job_asks_fio_for_what_was_drawn() -> None:
    paced = replace(A, load=Load("paced", 70, 4096, 16384, 8, iops=100))
    job = fio_job(paced, 30, 1).splitlines()
    for line in ("rw=randrw", "rwmixread=70", "bs=4096,16384", "iodepth=8", "rate_iops=70,30"):
        assert line in job
    bursts = replace(A, load=Load("bursts", 100, 4096, 4096, 64, burst=300))
    job = fio_job(bursts, 30, 1).splitlines()
    for line in ("thinktime=300ms", "thinktime_blocks=300", "thinktime_blocks_type=issue"):
        assert line in job


def test_a_neighbour_without_a_policy_gets_none() -> None:
    assert policy(replace(A, limit=None)) is None
    assert 'limit="1000"' in (policy(A) or "")


def test_a_drive_at_its_limit_loses_nothing() -> None:
    found = judged(*[1000] * 20)
    assert (found.harm_ratio, found.losses, found.breaches) == (0.0, (), ())
    assert found.windows == 11


def test_a_drive_that_asks_for_less_than_its_limit_loses_nothing() -> None:
    asks = part({"a": reads(*[300] * 20), "b": reads(*[300] * 20)})
    assert not judged(*[300] * 20, without=(asks, asks)).losses
    assert judged(*[250] * 20, without=(asks, asks)).harm_ratio == pytest.approx(1 - 250 / 300)


def test_a_drive_held_below_its_limit_is_harmed_by_its_limits() -> None:
    found = judged(*[1000] * 5, *[200] * 10, *[1000] * 5, limits=Limits(iops_total=200))
    (loss,) = found.losses
    assert (loss.kind, loss.cause) == ("harm", "limits")
    assert found.harm_ratio == pytest.approx(0.8)
    assert found.breaches[0].startswith("lost 80% from 0 to 20 s by QEMU's limits; why: Its share")


def test_a_loss_that_only_ten_seconds_show_is_harm() -> None:
    assert not judged(*[1000] * 10, 600, *[1000] * 9).losses, "4 % of ten seconds"
    assert judged(*[1000] * 10, 300, *[1000] * 9).harm_ratio == pytest.approx(0.07)


def test_a_used_up_bound_of_the_cgroup_is_the_cause() -> None:
    machine = moments(bound=200, used_ratio=1.0)
    (loss,) = judged(*[200] * 20, machine=machine).losses
    assert (loss.kind, loss.cause) == ("harm", "bound")


def test_a_bound_that_is_not_used_up_is_not_the_cause() -> None:
    (loss,) = judged(*[200] * 20, machine=moments(bound=2000, used_ratio=0.1)).losses
    assert (loss.kind, loss.cause) == ("harm", "nothing")


def test_a_bound_counts_since_a_large_request_used_it_up_at_once() -> None:
    machine = moments(bound=100)
    late = [
        m._replace(used={"a": {"read_iops": 0 if m.at_s < 0 else 1900}}, bounds=m.bounds)
        for m in machine
    ]
    (loss,) = judged(*[0] * 20, machine=late).losses
    assert (loss.kind, loss.cause) == ("harm", "bound")


def test_a_busy_machine_makes_a_loss_unclear() -> None:
    for machine in (moments(busy=1.0), moments(stolen=0.1)):
        found = judged(*[200] * 20, machine=machine)
        assert (found.unclear, found.windows, found.harm_ratio) == (11, 11, 0.0)
        assert not found.breaches
    assert judged(*[200] * 20, machine=moments(busy=0.5, nice=0.5)).harm_ratio > 0.7


def test_a_busy_machine_makes_nothing_unclear_that_was_kept() -> None:
    assert judged(*[1000] * 20, machine=moments(busy=1.0)).unclear == 0


def test_a_loss_that_two_parts_without_iokeel_differ_by_is_unclear_if_nothing_held_the_drive() -> (
    None
):
    slow = part({"a": reads(*[700] * 20), "b": reads(*[700] * 20)})
    fast = part({"a": reads(*[900] * 20), "b": reads(*[900] * 20)})
    assert judged(*[550] * 20, without=(slow, fast)).unclear == 11
    assert judged(*[450] * 20, without=(slow, fast)).harm_ratio > 0.3
    held = Limits(iops_total=550)
    assert judged(*[550] * 20, without=(slow, fast), limits=held).harm_ratio > 0.2


def test_what_a_paced_load_catches_up_without_iokeel_is_no_loss_with_it() -> None:
    paced = replace(A, load=Load("paced", 100, 4096, 4096, 8, iops=300))
    late = part({"a": reads(*[200] * 5, *[400] * 15), "b": FREE.done["b"]})
    host = replace(HOST, drives=(paced, B))
    assert not judged(*[300] * 20, host=host, without=(late, late)).losses


def test_a_steady_load_cannot_catch_up_under_a_limit_on_what_a_snapshot_took() -> None:
    stalled = part({"a": reads(*[4000] * 2, 0, 0, *[4000] * 16), "b": FREE.done["b"]})
    without = (stalled, stalled)
    assert not judged(*[1000] * 2, 0, 0, *[1000] * 16, without=without).losses
    assert judged(*[1000] * 2, *[0] * 3, *[1000] * 15, without=without).losses, "a second more"


def test_the_slower_part_without_iokeel_counts() -> None:
    slow = part({"a": reads(*[500] * 20), "b": reads(*[500] * 20)})
    assert not judged(*[490] * 20, without=(FREE, slow)).losses
    assert judged(*[490] * 20, without=(FREE, FREE)).losses


OVER = moments(latency_ms=9.0, queue=3.0)


def test_a_latency_target_of_another_explains_a_loss_once_the_device_is_over_it() -> None:
    host = replace(HOST, drives=(A, replace(B, latency_target_ms=8)), latency_target_ms=None)
    (loss,) = judged(*[200] * 20, host=host, machine=OVER).losses
    assert (loss.kind, loss.words) == ("explained", "the latency target of b")
    assert judged(*[200] * 20, host=host).harm_ratio > 0.7, "the device answers in 0.5 ms"
    assert judged(*[200] * 20, host=host, machine=OVER, others=0).harm_ratio > 0.7, "b is idle"


def test_one_second_of_load_explains_no_loss_of_twenty() -> None:
    host = replace(HOST, drives=(A, replace(B, latency_target_ms=8)))
    jump = [
        m._replace(device=Device(m.device.requests + 100, m.device.ms + 9000, 0, 9000))
        if m.at_s >= 8
        else m
        for m in moments()
    ]
    assert judged(*[200] * 20, host=host, machine=jump).harm_ratio > 0.7


def test_no_target_of_its_own_explains_a_loss() -> None:
    own = replace(HOST, drives=(replace(A, latency_target_ms=8), B), capacity=None)
    assert judged(*[200] * 20, host=own, machine=OVER).harm_ratio > 0.7


def test_a_reservation_of_another_explains_a_loss_on_a_loaded_storage() -> None:
    host = replace(HOST, drives=(A, replace(B, reservation=500)))
    (loss,) = judged(*[200] * 20, host=host, machine=OVER).losses
    assert (loss.kind, loss.words) == ("explained", "the reservation of b")
    assert judged(*[200] * 20, host=host).harm_ratio > 0.7, "the storage isn't loaded"
    unknown = replace(host, capacity=None)
    assert judged(*[200] * 20, host=unknown, machine=OVER).harm_ratio > 0.7, "nothing is divided"


def test_without_a_target_a_storage_is_loaded_by_its_queue() -> None:
    host = replace(HOST, latency_target_ms=None)
    (loss,) = judged(*[200] * 20, host=host, machine=moments(queue=6.0)).losses
    assert (loss.kind, loss.words) == ("explained", "the weight of b")
    assert judged(*[200] * 20, host=host, machine=moments(queue=2.0)).harm_ratio > 0.7


def test_a_neighbour_without_a_policy_explains_nothing() -> None:
    host = replace(HOST, drives=(A, replace(B, limit=None)))
    assert judged(*[200] * 20, host=host, machine=OVER).harm_ratio > 0.7


def test_nothing_explains_that_a_drive_has_less_than_its_own_reservation() -> None:
    host = replace(HOST, drives=(replace(A, reservation=500), replace(B, reservation=500)))
    assert judged(*[400] * 20, host=host, machine=OVER).harm_ratio == pytest.approx(0.6)
    assert not judged(*[500] * 20, host=host, machine=OVER).breaches
    oversold = replace(host, capacity=800)
    assert not judged(*[400] * 20, host=oversold, machine=OVER).breaches


def test_bursts_may_take_as_long_as_their_limit_lets_them() -> None:
    bursts = replace(A, load=Load("bursts", 100, 4096, 4096, 64, burst=300))
    host = replace(HOST, drives=(bursts, B))
    at_limit = 300 / (300 / LIMIT + BURST_PAUSE_S)
    assert not judged(*[at_limit] * 20, host=host).losses
    assert judged(*[at_limit / 2] * 20, host=host).harm_ratio == pytest.approx(0.5, abs=0.01)


def test_a_limit_pays_for_its_own_guests_discards_and_zeroes() -> None:
    for event, iops in (("discards", 20), ("zeroes", 45)):
        host = replace(HOST, happens=(Happens(event, 0),))  # type: ignore[arg-type]
        assert not judged(*[1000 - iops] * 20, host=host).losses
        assert judged(*[900] * 20, host=host).harm_ratio > 0.05


def test_a_second_above_the_limit_breaks_a_promise() -> None:
    found = judged(*[1000] * 10, 1300, *[1000] * 9)
    assert found.worst_ratio == pytest.approx(1.3, abs=0.01)
    assert found.breaches == ("did 1.300 of its limit in a second",)
    assert not judged(*[1000] * 10, 1240, *[1000] * 9).breaches


def test_what_waits_may_pass_when_qemu_drains_a_disk_if_it_is_paid() -> None:
    drained = {"a": [(5.0, 5.4)]}
    paid = judged(*[1000] * 5, 3000, 0, 0, *[1000] * 12, drained=drained)
    assert (paid.breaches, paid.harm_ratio) == ((), 0.0)
    again = judged(*[1000] * 5, 3000, 0, 1, *[1000] * 4, 1300, *[1000] * 7, drained=drained)
    assert again.breaches == ("did 1.300 of its limit in a second",), "it had been paid"
    unpaid = judged(*[1000] * 5, *[1300] * 10, *[1000] * 5, drained=drained)
    assert unpaid.breaches == ("did 1.300 of its limit in 10 s from a drain on",)


def test_what_a_drain_let_through_is_paid_later_and_is_no_loss() -> None:
    paid = [*[1000] * 5, 2264, 0, 736, *[1000] * 12]
    drained = {"a": [(4.8, 5.4)]}
    assert judged(*paid).harm_ratio == pytest.approx(0.1264)
    assert judged(*paid, drained=drained).harm_ratio == 0.0
    late = [*[1000] * 5, 2264, 0, 736, *[1000] * 3, 0, 0, *[1000] * 7]
    assert judged(*late, drained=drained).harm_ratio == pytest.approx(0.2), "it was paid before"


def test_by_qemus_own_count_a_second_may_have_two_percent_more() -> None:
    def counted(*costs: float) -> Judged:
        done = {"a": reads(*[1000] * 20), "b": reads(*[900] * 20)}
        with_ = part(done, HELD, passed=costs)
        return judge(HOST, A, (FREE, FREE), with_, BOUNDS["exact"])

    assert counted(0, 1000, 2050, 3050).breaches == (
        "QEMU let 1.050 of its limit through in a second",
    )
    drained_after_it = counted(*range(0, 21_000, 1000), 24_000)
    assert not drained_after_it.breaches
    found = counted(0, 1000, 2015, 3015)
    assert not found.breaches
    assert found.worst_ratio == pytest.approx(1.015)


def test_a_drive_without_a_policy_is_judged_by_its_rate_without_iokeel_alone() -> None:
    host = replace(HOST, drives=(replace(A, limit=None), B))
    found = judged(*[4000] * 20, host=host, limits=Limits())
    assert (found.harm_ratio, found.worst_ratio, found.breaches) == (0.0, None, ())
    assert judged(*[1000] * 20, host=host, limits=Limits()).harm_ratio == pytest.approx(0.75)


def result(*hosts: HostResult) -> Result:
    versions = ("version 7.2", "libvirtd 9.0")
    machine = Machine(2, "x86_64")
    return Result("?", "now", "abc", machine, "stock", *versions, 139, BOUNDS["stock"], hosts)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    written = result(HostResult(7, str(HOST), 139.0, {"a": judged(*[200] * 20)}, ()))
    result_file.write(tmp_path / "field.json", written)
    assert result_file.read(tmp_path / "field.json", Result) == written


def test_a_summary_says_what_was_lost_and_by_what() -> None:
    host = replace(HOST, drives=(A, replace(B, latency_target_ms=8)))
    drives = {
        "a": judged(*[200] * 20, limits=Limits(iops_total=200)),
        "b": judged(*[200] * 20, host=host, machine=OVER),
        "c": judged(*[200] * 20, machine=moments(busy=1.0)),
    }
    lines = [*summary(result(HostResult(7, str(host), 139.0, drives, ())))]
    assert lines[0].startswith("1 hosts, 3 drives: most harm 80.0%")
    assert lines[0].endswith("33.3% of 33 windows unclear")
    assert lines[1:4] == [
        "harm: 1 losses (1 by limits)",
        "explained: 1 losses (1 by the latency target of b)",
        "unclear: 1 losses (1 by nothing)",
    ]
    assert lines[4] == "A promise was broken on 1 hosts."


def test_a_fault_of_the_agents_own_breaks_a_promise() -> None:
    kept = {"a": judged(*[1000] * 20)}
    assert result(HostResult(7, "", 139.0, kept, ())).kept
    assert not result(HostResult(7, "", 139.0, kept, ("Traceback",))).kept


@pytest.mark.parametrize("how", BREAKS)
def test_each_broken_agent_runs(how: str) -> None:
    words = [sys.executable, str(Path(broken_agent.__file__)), how, "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout
