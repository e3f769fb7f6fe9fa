"""`iokeel-bench run --device`: which devices are refused, and a run on one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench.errors import BenchError
from benchmarks.bench.records import read
from benchmarks.bench.running import device
from benchmarks.bench.running.device import CALIBRATION
from benchmarks.bench.scenario import Scenario, load
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.bench_program import STOCK, ended
from testing.host.storage import MIB, loop_device, mounted
from testing.lab.disks.shared_device import SharedDevice
from testing.lab.needs import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

CAPACITY = 40_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with loop_device(tmp_path, 64 * MIB) as path:
        yield path
        Path("/sys/block", path.name, "queue/scheduler").write_text("none")  # it would keep it


def keep_calibration(folder: Path, path: Path, capacity: int = CAPACITY) -> None:
    """Write what a calibration leaves, which takes minutes."""
    (folder / CALIBRATION).write_text(
        f'[storage.disk]\ndevice = "{path}"\ncapacity = {capacity}\nlatency_target_ms = 4.0\n'
        'curve_read = [["4k", 1], ["64k", 4]]\n'
    )


def case_on(disk: Path, folder: Path, name: str) -> Scenario:
    """Return a scenario on a device."""
    (case,) = device.moved(load(name), device.measure(disk, folder, print)).cases
    return case


def refused(path: Path, *, force: bool = False) -> str:
    with pytest.raises(BenchError) as error:
        device.check(path, [], force=force)
    return str(error.value)


def test_only_a_whole_device_that_nobody_uses_is_taken(disk: Path, tmp_path: Path) -> None:
    device.check(disk, [], force=False)
    assert "No such file" in refused(tmp_path / "none")
    assert "it is no whole block device" in refused(tmp_path)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    assert "holds data: ext4; give --force" in refused(disk)
    device.check(disk, [], force=True)
    with mounted(tmp_path / "mnt", disk):
        assert "is in use: mounted at" in refused(disk, force=True)


def test_a_calibration_of_another_device_is_refused(disk: Path, tmp_path: Path) -> None:
    keep_calibration(tmp_path, Path("/dev/other"))
    with pytest.raises(BenchError, match="it is of /dev/other"):
        device.measure(disk, tmp_path, print)
    (tmp_path / CALIBRATION).write_text("[storage.disk]\n")
    with pytest.raises(BenchError, match="no calibration"):
        device.measure(disk, tmp_path, print)


def test_a_calibration_of_another_disk_of_this_name_is_refused(disk: Path, tmp_path: Path) -> None:
    keep_calibration(tmp_path, disk)
    kept = tmp_path / CALIBRATION
    said = kept.read_text()
    kept.write_text(f"# disk: {64 * MIB}\n{said}")  # a loop device has no serial number
    assert device.measure(disk, tmp_path, print).path == disk
    kept.write_text(f"# disk: S4EVNF0M 0x5002538e 512110190592\n{said}")
    with pytest.raises(BenchError, match=r"is not the disk that .* is of: S4EVNF0M"):
        device.measure(disk, tmp_path, print)


def test_a_device_is_held_while_it_is_measured(disk: Path, tmp_path: Path) -> None:
    with device.held(disk, tmp_path):
        with pytest.raises(OSError, match="busy"):
            os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))
        with pytest.raises(BenchError, match="is in use"), device.held(disk, tmp_path):
            pass
    os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))


def test_a_device_gets_the_scheduler_back_that_it_had_before_a_killed_run(
    disk: Path, tmp_path: Path
) -> None:
    scheduler = Path("/sys/block", disk.name, "queue/scheduler")
    if "mq-deadline" not in scheduler.read_text():
        pytest.skip("this kernel has no mq-deadline")
    scheduler.write_text("mq-deadline")
    killed = device.held(disk, tmp_path)
    killed.__enter__()
    scheduler.write_text("none")
    kept = (tmp_path / "scheduler").read_text()
    killed.__exit__(None, None, None)
    (tmp_path / "scheduler").write_text(kept)
    with device.held(disk, tmp_path):
        assert "[mq-deadline]" in scheduler.read_text()
    assert not (tmp_path / "scheduler").exists()


def test_a_scenario_keeps_its_proportions(disk: Path, tmp_path: Path) -> None:
    keep_calibration(tmp_path, disk)
    (before,) = load("weights").cases
    case = case_on(disk, tmp_path, "weights")
    assert (case.device, case.capacity, case.slowdown) == (str(disk), CAPACITY, 1)
    assert case.model.read.points == ((4096, 1), (65536, 4))
    for one, other in zip(before.drives, case.drives, strict=True):
        assert before.owed(one) / before.capacity == pytest.approx(case.owed(other) / CAPACITY)
    target = case_on(disk, tmp_path, "latency-hdd-readers").drives[0]
    assert target.policy["latency_target_ms"] == pytest.approx(33 / 60 * 4)
    budget = case_on(disk, tmp_path, "mix-8k-32k")
    assert budget.drives[0].policy == {"limit": round(2000 * CAPACITY / 19_600)}
    assert budget.model == DEFAULT_MODEL, "it was published with this one"
    quiet, busy = case_on(disk, tmp_path, "burst-credit").drives[0].streams
    assert quiet.job["rate_iops"] == round(312 * CAPACITY / 19_600)
    assert "rate_iops" not in busy.job
    caps = case_on(disk, tmp_path, "response-time").drives[1].caps
    assert caps["iops-50"] == {"iops-total": round(50 * CAPACITY / 120)}
    boots = case_on(disk, tmp_path, "boot-storm").drives
    assert {drive.streams[0].job["io_size"] for drive in boots} == {
        round(48 * MIB * CAPACITY / 8750)
    }


def test_a_device_that_is_too_slow_is_refused(disk: Path, tmp_path: Path) -> None:
    keep_calibration(tmp_path, disk, capacity=900)
    with pytest.raises(BenchError, match="too slow for scenario mix-8k-32k: 900 a second"):
        case_on(disk, tmp_path, "mix-8k-32k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("two-groups-random-sequential",), "needs 4 GiB; its part is 32 MiB"),
        (("mix-8k-32k", "--daemon", "/nowhere/qsd"), "this qemu-storage-daemon doesn't start"),
    ],
)
def test_all_else_is_checked_before_a_calibration_overwrites_the_device(
    words: tuple[str, ...], said: str, disk: Path, tmp_path: Path
) -> None:
    disk.write_bytes(b"precious")
    out = ("--results", str(tmp_path), "--controllers", "static-iops", "--device", str(disk))
    if "--daemon" not in words:
        words += ("--daemon", STOCK)
    status, _, err = ended("run", *words, *out)
    assert status == 2
    assert said in err
    assert "is calibrated" not in err
    assert disk.read_bytes().startswith(b"precious")


def test_a_device_that_had_bfq_gets_it_back_with_its_own_settings(disk: Path) -> None:
    queue = Path("/sys/block", disk.name, "queue")
    if "bfq" not in (queue / "scheduler").read_text():
        pytest.skip("this kernel has no BFQ")
    (queue / "scheduler").write_text("bfq")
    names = ("low_latency", "slice_idle_us", "timeout_sync")
    before = [(queue / "iosched" / name).read_text() for name in names]
    for scheduler in ("none", "bfq"):
        with SharedDevice(disk, drives=0) as shared:
            shared.set_scheduler(scheduler)
        assert "[bfq]" in (queue / "scheduler").read_text()
        assert [(queue / "iosched" / name).read_text() for name in names] == before


def test_a_scenario_runs_on_a_device_and_leaves_it_as_it_was(disk: Path, tmp_path: Path) -> None:
    keep_calibration(tmp_path, disk)
    scheduler = Path("/sys/block", disk.name, "queue/scheduler")
    before = scheduler.read_text()
    words = ("run", "mix-8k-32k", "--shorten", "20", "--repeats", "1", "--daemon", STOCK)
    out = ("--results", str(tmp_path), "--controllers", "static-iops")
    status, _, said = ended(*words, *out, "--device", str(disk))
    assert status == 0, said
    found = read(tmp_path / "bench-mix-8k-32k.json")
    assert found.setup.device == str(disk)
    assert {name for name, runs in found.cases[""].runs.items() if runs} == {"none", "static-iops"}
    assert scheduler.read_text() == before
    device.check(disk, [], force=True)  # nobody uses it any more
    status, _, said = ended(*words, *out)
    assert (status, "of another device" in said) == (2, True)
    status, _, said = ended("run", "qemu", "--device", str(disk))
    assert (status, "qemu can't run on it" in said) == (2, True)
