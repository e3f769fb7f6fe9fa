"""Counters of block devices: /proc/diskstats as it was written down, as it may be, and for real."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.storage import Place, StorageCounters, activity_between
from iokeel.host.block_devices import StoragePaths
from iokeel.host.disk_counters import DiskStats, Pressure, read_pressure

MS = 1_000_000
# Of Linux 6.18; the last is of Linux 4.17, without discards and flushes.
DISKSTATS = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 79663 13781 4086162 12796 32466 134507 8126128 24353 2 11288 38507 1 2 3 4 5 6
 254       1 vda1 1 0 8 1 0 0 0 0 0 1 1 0 0 0 0 0 0
   8      16 sdb 5 1 40 6 7 2 56 8 0 9 14
"""
VDA, SDB = Place("vda", "254:0"), Place("sdb", "8:16")


class Host:
    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.proc.mkdir()
        self.write(DISKSTATS)

    def write(self, text: str) -> None:
        (self.proc / "diskstats").write_text(text)

    def iostats(self, number: str, on: str) -> None:
        folder = self.sys / "dev/block" / number / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "iostats").write_text(f"{on}\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_counters_are_read_as_the_kernel_documents_them(host: Host) -> None:
    before = time.monotonic_ns()
    found = DiskStats(host.proc, host.sys).read({"fast": VDA, "sdb": SDB})
    after = time.monotonic_ns()
    assert before <= found["fast"].at_ns <= after
    assert found == {
        "fast": StorageCounters(
            found["fast"].at_ns,
            79663,
            12796 * MS,
            32466,
            24353 * MS,
            2,
            11288 * MS,
            4086162 * 512,
            8126128 * 512,
        ),
        "sdb": StorageCounters(
            found["sdb"].at_ns, 5, 6 * MS, 7, 8 * MS, 0, 9 * MS, 40 * 512, 56 * 512
        ),
    }


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_name_that_ends_lines_elsewhere_forges_no_counters(host: Host, end: str) -> None:
    forged = f"   9     127 md_a{end}8 16 sdb 1 1 1 1 1 1 1 1 1 1 1\n"
    (host.proc / "diskstats").write_bytes((DISKSTATS + forged).encode())
    found = DiskStats(host.proc, host.sys).read({"sdb": SDB, "md": Place("md", "9:127")})
    assert found.keys() == {"sdb"}
    assert found["sdb"].read_requests == 5


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_device_counts_whatever_its_name_has(host: Host, end: str) -> None:
    line = f"   9     127 md_{end}a 5 1 40 6 7 2 56 8 0 9 14\n"
    (host.proc / "diskstats").write_bytes(line.encode())
    assert (
        DiskStats(host.proc, host.sys).read({"md": Place("md", "9:127")})["md"].read_requests == 5
    )


def test_two_storages_may_be_on_one_device(host: Host) -> None:
    found = DiskStats(host.proc, host.sys).read({"a": VDA, "b": VDA})
    assert found["a"] == found["b"]


def test_a_device_that_is_not_there_has_no_counters(host: Host) -> None:
    stats = DiskStats(host.proc, host.sys)
    assert stats.read({"net": Place("rbd:pool"), "gone": Place("sdz", "8:400")}) == {}
    assert stats.read({"a": VDA}).keys() == {"a"}
    host.write("")
    assert stats.read({"a": VDA}) == {}
    (host.proc / "diskstats").unlink()
    assert stats.read({"a": VDA}) == {}


@pytest.mark.parametrize(
    "line",
    [
        "254 0 vda",
        "254 0 vda 1 2 3 4 5 6 7 8 9 10",
        "254 0 vda 1 2 3 4 5 6 7 8 4294967295 10 11",
        "254 0 vda 1 2 3 4 5 6 7 8 -1 10 11",
        "254 0 vda 1 2 3 x 5 6 7 8 9 10 11",
        "254 0 vda 1 2 3 ٤ 5 6 7 8 9 10 11",
    ],
)
def test_nonsense_is_no_reading(host: Host, line: str) -> None:
    host.write(f"{line}\n   8      16 sdb 5 1 40 6 7 2 56 8 0 9 14\n")
    assert DiskStats(host.proc, host.sys).read({"a": VDA, "b": SDB}).keys() == {"b"}


@given(text=st.text())
def test_no_text_breaks_it(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("proc")
    (folder / "diskstats").write_bytes(text.encode(errors="replace"))
    DiskStats(folder, folder).read({"a": VDA})


def test_a_name_that_is_no_text_hides_no_other_device(host: Host) -> None:
    (host.proc / "diskstats").write_bytes(
        b" 8 32 \xff 1 1 1 1 1 1 1 1 0 1 1\n" + DISKSTATS.encode()
    )
    assert DiskStats(host.proc, host.sys).read({"a": SDB}).keys() == {"a"}


def test_a_number_of_thousands_of_digits_is_no_reading(host: Host) -> None:
    host.write(DISKSTATS.replace("sdb 5", "sdb " + "9" * 5000))
    assert DiskStats(host.proc, host.sys).read({"a": SDB}) == {}


def test_a_device_whose_counters_are_off_has_none_and_that_is_said_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.iostats("254:0", "0")
    stats = DiskStats(host.proc, host.sys)
    stats.read({"a": VDA})
    assert [stats.read({"a": VDA}) for _ in range(3)] == [{}, {}, {}]
    (record,) = caplog.records
    assert "vda: its counters are off; echo 1 >/sys/block/vda/queue/iostats" in record.message
    host.iostats("254:0", "1")  # an idle one
    assert stats.read({"a": VDA}).keys() == {"a"}


@pytest.mark.parametrize("fields", ["4 1 40 6 7 2 56 8 0 9 14", "5 1 40 6 6 2 56 8 0 9 14"])
def test_counters_that_go_back_give_no_load_once_and_that_is_said(
    host: Host, caplog: pytest.LogCaptureFixture, fields: str
) -> None:
    stats = DiskStats(host.proc, host.sys)
    first = stats.read({"a": SDB})["a"]
    host.write(f"   8      16 sdb {fields}\n")  # another disk, plugged in there
    second = stats.read({"a": SDB})["a"]
    assert activity_between(first, second) is None
    assert activity_between(second, stats.read({"a": SDB})["a"]) is not None
    (record,) = caplog.records
    assert record.message == (
        "sdb: its counters have gone back, as of another device of that number; its latency is"
        " unknown until the next tick"
    )


def test_a_sum_of_times_that_begins_anew_is_no_other_device(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel shows milliseconds in 32 bits."""
    stats = DiskStats(host.proc, host.sys)
    host.write("   8      16 sdb 5 1 40 4294967290 7 2 56 8 0 9 14\n")
    first = stats.read({"a": SDB})["a"]
    host.write("   8      16 sdb 6 1 48 3 7 2 56 8 0 9 14\n")
    assert activity_between(first, stats.read({"a": SDB})["a"]) is None
    assert not caplog.records


def test_a_device_that_vanishes_has_no_counters_and_that_is_said_until_it_is_back(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    stats = DiskStats(host.proc, host.sys)
    for times in (1, 2):
        host.write(DISKSTATS)
        assert stats.read({"a": SDB}).keys() == {"a"}
        host.write(DISKSTATS.rpartition("   8      16")[0])
        assert [stats.read({"a": SDB, "b": VDA}).keys() for _ in range(3)] == [{"b"}] * 3
        assert caplog.messages == times * [
            "sdb: has vanished from /proc/diskstats; see dmesg; until then its latency is unknown"
        ]


def test_a_device_whose_counters_stand_still_while_guests_write_has_none(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a multipath device that the kernel doesn't count."""
    stats = DiskStats(host.proc, host.sys)
    places = {"a": SDB, "b": SDB, "c": VDA}
    assert len(stats.read(places, {"a": 7000})) == 3
    assert len(stats.read(places, {"a": 7099})) == 3, "what was written before doesn't count"
    assert len(stats.read(places, {"a": 9000})) == 3, "it may be on its way"
    monkeypatch.setattr("iokeel.host.disk_counters._STILL_NS", 0)
    assert len(stats.read(places, {"a": 7099})) == 3
    for _ in range(3):
        assert stats.read(places, {"a": 7050, "b": 50}).keys() == {"c"}
    (said,) = caplog.messages
    assert said == (
        "sdb: its counters stand still, though guests have done 100 writes; until then its latency"
        " is unknown"
    )
    host.write(DISKSTATS.replace("7 2 56 8", "8 2 64 9"))
    assert len(stats.read(places, {"a": 9999})) == 3
    assert len(stats.read(places, {"a": 10098})) == 3


def test_a_device_that_measures_no_time_has_no_counters(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    stats = DiskStats(host.proc, host.sys)
    host.write("   8      16 sdb 9000 1 40 0 999 2 56 0 0 9 14\n")  # little so far
    assert stats.read({"a": SDB}).keys() == {"a"}
    for count in (1000, 2000):
        host.write(f"   8      16 sdb 9000 1 40 0 {count} 2 56 0 0 9 14\n")
        assert stats.read({"a": SDB}) == {}
    (said,) = caplog.messages
    assert said.startswith("sdb: its counters show 10000 requests but no time of any; until then")


# Pressure


def test_pressure_is_the_last_ten_seconds(host: Host) -> None:
    assert read_pressure(host.proc) is None
    (host.proc / "pressure").mkdir()
    file = host.proc / "pressure/io"
    file.write_text(
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=123\n"
        "full avg10=7.25 avg60=1.00 avg300=0.10 total=99\n"
    )
    assert read_pressure(host.proc) == Pressure(0.125, 0.0725)
    file.write_text("some avg10=x\n")
    assert read_pressure(host.proc) is None


# The real thing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 1 MiB that is on the disk and not in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return path


def test_requests_of_a_real_device_are_counted(file: Path) -> None:
    place = StoragePaths().places(str(file))[-1]
    if place.number is None:
        pytest.skip(f"{place.name}, which the files for tests are on, is not a block device")
    stats = DiskStats()
    first = stats.read({"disk": place})["disk"]
    handle = os.open(file, os.O_RDONLY)
    try:
        for i in range(16):  # each a request of its own, without readahead
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(handle, 4096, i * 65536)
    finally:
        os.close(handle)
    second = stats.read({"disk": place})["disk"]
    load = activity_between(first, second)
    assert load is not None
    assert second.read_requests - first.read_requests >= 16
    assert load.raw_iops * load.elapsed_s >= 15.99
    assert 0 <= load.busy_ratio <= 1


def test_a_real_kernels_pressure_is_a_ratio() -> None:
    found = read_pressure()
    if found is None:
        pytest.skip("the kernel has no /proc/pressure/io")
    assert 0 <= found.full_ratio <= found.some_ratio <= 1
