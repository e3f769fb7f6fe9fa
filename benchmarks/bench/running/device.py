"""A real device in place of a simulated disk: whether it may be, what it does, and what is asked.

Figures of a scenario are those of its simulated disk. On another device all rates and amounts that
it asks for keep their proportion to the capacity, and latency targets to the storage's own. A
scenario that is priced by the published curve still is.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench.errors import BenchError
from benchmarks.bench.running.child import child
from benchmarks.bench.scenario import Drive, Policy, Scenario, Suite
from iokeel.config.load import parse
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.errors import ConfigError
from iokeel.host.in_use import InUse
from iokeel.words.units import parse_size, size
from testing.lab.disks.shared_device import scheduler_of
from testing.lab.fio import Job

#: A calibration is kept in the folder of results, so that all their runs are by the same one.
CALIBRATION = "device.toml"
#: Which disk it is of, in its first line.
_DISK = "# disk: "
#: The device's own scheduler, while runs may have set another.
_SCHEDULER = "scheduler"
_RATES = ("limit", "burst", "reservation")
#: fio's options for a rate, and for an amount, so that it takes as long.
_AMOUNTS = ("rate_iops", "io_size")
#: Of the scenario's own capacity: below it the requests of a second are too few to judge.
_LEAST_RATIO = 0.1


@dataclass(frozen=True)
class Device:
    """A device, and what a calibration found."""

    path: Path
    capacity: float
    latency_target_ms: float
    model: CostModel


def check(path: Path, suites: Sequence[Suite], *, force: bool) -> None:
    """Raise BenchError unless all data of a whole block device may be lost, for these scenarios.

    force: also if it holds a signature. Nothing forces what is in use or too small.
    """
    where = str(path)
    try:
        status = path.stat()
    except OSError as error:
        raise BenchError(where, error.strerror or str(error), "name another by --device") from None
    if not stat.S_ISBLK(status.st_mode) or not _queue(path).is_dir():
        raise BenchError(where, "it is no whole block device", "name one, such as /dev/sdx")
    if users := list(InUse().users_of_device(status.st_rdev)):
        raise BenchError(where, f"is in use: {users[0]}", "stop its users, or name another device")
    for suite in suites:
        for case in suite.cases:
            _check_size(path, case)
    words = ["wipefs", "--noheadings", "--output", "TYPE", where]
    found = subprocess.run(words, capture_output=True, text=True)
    if found.returncode:
        raise BenchError(where, f"can't be read: {found.stderr.strip()}", "run it as root")
    if (types := found.stdout.split()) and not force:
        what = f"holds data: {', '.join(dict.fromkeys(types))}"
        raise BenchError(where, what, "give --force if all of it may be lost, or name another")


def measure(path: Path, folder: Path, say: Callable[[str], None]) -> Device:
    """Return what a device does, by the calibration in a folder of results.

    If there is none yet, the device is calibrated, which overwrites its data. Raises BenchError.
    """
    path = path.resolve()
    kept = folder / CALIBRATION
    if not kept.exists():
        say(f"{path} is calibrated, which takes two minutes")
        calibrate = ["-m", "iokeel", "calibrate", str(path), "--quick", "--destroy-data"]
        done = child([sys.executable, *calibrate], stdout=subprocess.PIPE)
        if done.returncode:
            raise BenchError(str(path), "can't be calibrated", "see above")
        kept.write_text(f"{_DISK}{_disk(path)}\n{done.stdout}")
    first = kept.read_text().partition("\n")[0]
    if first.startswith(_DISK) and first.removeprefix(_DISK) != _disk(path):
        what = f"is not the disk that {kept} is of: {first.removeprefix(_DISK)}"
        raise BenchError(str(path), what, "name another folder by --results")
    try:
        (storage,) = parse(kept.read_bytes(), str(kept)).storages.values()
        policy = storage.policy
        if policy.capacity is None or policy.latency_target_ms is None:
            raise ValueError("it has no capacity or no latency target")
    except (ConfigError, ValueError) as error:
        raise BenchError(str(kept), f"it is no calibration: {error}", "remove it") from error
    if storage.device != path:
        mend = "name another folder by --results"
        raise BenchError(str(kept), f"it is of {storage.device}, not of {path}", mend)
    model = policy.model or DEFAULT_MODEL
    return Device(path, policy.capacity, policy.latency_target_ms, model)


@contextmanager
def held(path: Path, folder: Path) -> Iterator[None]:
    """Keep others from mounting a device while it is measured.

    The device gets its scheduler back that a killed run has left changed. Raises BenchError if
    somebody else has the device: the kernel also knows of mounts in other namespaces.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        what = "is in use" if error.errno == errno.EBUSY else error.strerror or str(error)
        raise BenchError(str(path), what, "stop its users, or name another device") from None
    try:
        scheduler, kept = _queue(path) / "scheduler", folder / _SCHEDULER
        if kept.exists():
            scheduler.write_text(kept.read_text())
        kept.write_text(scheduler_of(path))
        try:
            yield
        finally:
            kept.unlink()
    finally:
        os.close(opened)


def _disk(path: Path) -> str:
    """Return what tells a disk from another one of its name: serial number, WWN, size in bytes."""
    words = ["lsblk", "--nodeps", "--noheadings", "--bytes", "--raw", "--output=SERIAL,WWN,SIZE"]
    done = subprocess.run([*words, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _check_size(path: Path, case: Scenario) -> None:
    size_bytes = int((_queue(path).parent / "size").read_text()) << 9
    part = size_bytes // max(sum(not drive.guest for drive in case.drives), 1)
    for drive in case.drives:
        if (needed := _needed_bytes(drive)) > part:
            what = f"is too small for scenario {case.name}: {drive.name} needs {size(needed)}"
            raise BenchError(str(path), what, f"its part is {size(part)}; name a larger device")


def moved(suite: Suite, to: Device) -> Suite:
    """Return a scenario on a device. Raises BenchError if that is too slow for it."""
    return replace(suite, cases=tuple(_moved(case, to) for case in suite.cases))


def _moved(case: Scenario, to: Device) -> Scenario:
    ratio = to.capacity / case.capacity
    if ratio < _LEAST_RATIO:
        what = f"is too slow for scenario {case.name}: {to.capacity:.0f} a second"
        mend = f"it takes {_LEAST_RATIO * case.capacity:.0f}; choose one of a slower disk"
        raise BenchError(str(to.path), what, mend)
    target = to.latency_target_ms / case.latency_target_ms
    return replace(
        case,
        device=str(to.path),
        slowdown=1.0,
        capacity=to.capacity,
        latency_target_ms=to.latency_target_ms,
        tenant_limit=case.tenant_limit and round(case.tenant_limit * ratio),
        model=DEFAULT_MODEL if case.model == DEFAULT_MODEL else to.model,
        drives=tuple(
            replace(
                drive,
                policy=_policy(drive.policy, ratio, target),
                caps={
                    name: {what: max(1, round(ratio * value)) for what, value in caps.items()}
                    for name, caps in drive.caps.items()
                },
                streams=tuple(
                    replace(stream, job=_job(stream.job, ratio)) for stream in drive.streams
                ),
            )
            for drive in case.drives
        ),
    )


def _policy(policy: Policy, ratio: float, target_ratio: float) -> Policy:
    rates = {name: max(1, round(policy[name] * ratio)) for name in _RATES if name in policy}
    if "latency_target_ms" in policy:
        return {**policy, **rates, "latency_target_ms": policy["latency_target_ms"] * target_ratio}
    return {**policy, **rates}


def _job(job: Job, ratio: float) -> Job:
    """Return a job that asks for a rate, or an amount, in proportion."""
    amounts = {
        name: max(1, round(parse_size(str(job[name])) * ratio)) for name in _AMOUNTS if name in job
    }
    return {**job, **amounts}


def _needed_bytes(drive: Drive) -> int:
    """Return how far a drive's jobs reach: those with a file of their own, one after another."""

    def reach(job: dict[str, object]) -> int:
        jobs = int(str(job.get("numjobs", 1)))
        step = parse_size(str(job.get("offset_increment", 0)))
        return (jobs - 1) * step + parse_size(str(job.get("size", 0)))

    return max(reach(dict(stream.job)) for stream in drive.streams)


def _queue(path: Path) -> Path:
    return Path("/sys/block", os.path.basename(path.resolve()), "queue")
