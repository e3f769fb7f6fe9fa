"""A shared disk is one kernel block device; its drives are parts of it, each in its group."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.hypervisors.qmp_client import QmpClient
from testing.lab.disks.shared_disk import SharedDisk
from testing.lab.fio import fio
from testing.lab.needs import missing
from testing.waiting import eventually

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

DAEMON = Path(shutil.which("qemu-storage-daemon") or "/usr/bin/qemu-storage-daemon")
MIB = 1 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk") / "log"


@pytest.fixture(scope="module")
def disk(log: Path) -> Iterator[SharedDisk]:
    with SharedDisk("nvme-970-pro", drives=3, slowdown=4, binary=DAEMON, log=log) as disk:
        yield disk


def _done(device: Path) -> tuple[int, int]:
    """Return the reads and writes that the kernel has counted on a device.

    It counts a request after it has woken the waiter, so this waits until none is in progress.
    """
    stat = Path("/sys/block", device.name, "stat")
    while (fields := [int(field) for field in stat.read_text().split()])[8]:
        time.sleep(0.001)
    return fields[0], fields[4]


def test_kernel_counts_what_fio_does_on_the_drives(disk: SharedDisk) -> None:
    common = {"ioengine": "nbd", "bs": "4k", "iodepth": 4, "number_ios": 200, "size": "1g"}
    before = _done(disk.device)
    reader, writer = fio(
        common | {"uri": disk.uri(0), "rw": "randread"},
        common | {"uri": disk.uri(1), "rw": "randwrite"},
    )
    after = _done(disk.device)
    assert reader["read"]["total_ios"] == writer["write"]["total_ios"] == 200
    assert [b - a for a, b in zip(before, after, strict=True)] == [200, 200]


@pytest.mark.alone
def test_group_is_set_over_qmp_and_holds_its_drive_alone(disk: SharedDisk) -> None:
    group = {"path": "/objects/group1", "property": "limits"}
    with QmpClient(disk.qmp_socket(0)) as monitor:
        monitor.ask("qom-set", **group, value={"iops-total": 100})
        shown = monitor.ask("qom-get", **group)
    assert shown["iops-total"] == 100
    job = {"ioengine": "nbd", "rw": "randread", "bs": "4k", "iodepth": 8, "size": "1g"}
    job |= {"time_based": 1, "runtime": 2}
    free, held = fio(job | {"uri": disk.uri(0)}, job | {"uri": disk.uri(1)})
    # A tenth of a second passes at once; requests in flight at the end count too.
    assert held["read"]["total_ios"] <= 100 * 2 + 10 + 8
    assert free["read"]["total_ios"] > 3 * held["read"]["total_ios"]


def test_device_can_have_bfq_and_is_of_the_devices_size(disk: SharedDisk) -> None:
    queue = Path("/sys/block") / disk.device.name / "queue"
    (queue / "scheduler").write_text("bfq")
    assert "[bfq]" in (queue / "scheduler").read_text()
    (queue / "scheduler").write_text("none")
    assert int((queue.parent / "size").read_text()) * 512 == 512110190592


def test_nobody_gets_the_scheduler_of_the_disk_before() -> None:
    for _ in range(2):  # the second one is the same loop device, if nobody else takes it
        with SharedDisk("nvme-970-pro", drives=0) as disk:
            scheduler = Path("/sys/block") / disk.device.name / "queue/scheduler"
            assert "[none]" in scheduler.read_text()
            disk.set_scheduler("bfq")
            assert "[bfq]" in scheduler.read_text()


def test_each_path_to_a_disk_has_counters_of_its_own() -> None:
    with SharedDisk("nvme-970-pro", drives=0, paths=2) as disk:
        before = [_done(device) for device in disk.devices]
        job = {"ioengine": "libaio", "direct": 1, "rw": "randread", "number_ios": 8, "size": "8m"}
        fio(job | {"filename": disk.devices[1]})
        (reads, writes), after = before[1], [_done(device) for device in disk.devices]
        assert after == [before[0], (reads + 8, writes)]


@pytest.mark.parametrize("apart", [False, True])
def test_drives_lie_side_by_side(apart: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with SharedDisk(
        "nvme-970-pro", drives=2, drive_bytes=512 * MIB, binary=DAEMON, log=log, apart=apart
    ) as disk:
        assert len({disk.process(0), disk.process(1)}) == 1 + apart
        for drive in (0, 1):
            job = {"ioengine": "nbd", "rw": "write", "bs": "1m", "number_ios": 8, "size": "8m"}
            fio(job | {"uri": disk.uri(drive)})
    with log.open() as file:
        rows = [row for row in csv.DictReader(file) if row["op"] == "write"]
    extents = sorted((int(row["offset"]), int(row["length"])) for row in rows)
    for drive in (0, 1):
        begin = drive * 512 * MIB
        within = [(o, n) for o, n in extents if begin <= o < begin + 512 * MIB]
        assert sum(length for _, length in within) == 8 * MIB
        assert within[0][0] == begin


OWNER = """
import signal, sys
from pathlib import Path
from testing.lab.disks.shared_disk import SharedDisk
from testing.hypervisors.qmp_client import QmpClient
from testing.waiting import eventually
disk = SharedDisk("hdd-hts72755", drives=1, binary=Path(sys.argv[1]))
print(disk.device, disk.qmp_socket(0).parents[1], flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_ended_by(number: signal.Signals) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, DAEMON], env=environ, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert owner.stdout
        device, folder = owner.stdout.readline().split()
        backing = Path("/sys/block") / Path(device).name / "loop/backing_file"
        assert folder in backing.read_text()
        owner.send_signal(number)
        owner.wait()
    finally:
        owner.kill()
        owner.wait()

    def gone() -> bool:
        assert not backing.exists() or folder not in backing.read_text()
        return not Path(folder).exists()

    eventually(gone, 60)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert folder not in running
