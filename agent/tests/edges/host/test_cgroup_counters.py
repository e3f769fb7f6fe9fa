"""The kernel's counts of a group's I/O, as its files have them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from iokeel.core.enforce.backstop import CgroupOrder, Io, IoMax
from iokeel.host.cgroup.files import read_counters
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.cgroup.place import Hierarchy
from testing.host.cgroups import Host, Memory

ORDER = CgroupOrder({"8:16": IoMax(riops=500)})
# As Linux 6.18 and 6.1 wrote them.
V1_BYTES = """\
7:0 Read 417333248
7:0 Write 4096
7:0 Sync 417333248
7:0 Async 0
7:0 Discard 0
7:0 Total 417333248
7:1 Read 0
7:1 Write 8192
Total 417345536
"""
V1_REQUESTS = V1_BYTES.replace("417333248", "784").replace("4096", "1").replace("8192", "2")
V2 = """\
8:16 rbytes=417333248 wbytes=4096 rios=784 wios=1 dbytes=0 dios=0
8:0 cost.usage=12
253:1 rbytes=0 wbytes=8192 rios=0 wios=2 dbytes=4096 dios=1
"""


def counters(folder: Path, version: int, **files: str) -> dict[str, Io] | None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return read_counters(folder, Hierarchy(version, folder, "/"))


def v1(folder: Path, sent: str, requests: str) -> dict[str, Io] | None:
    names = ("blkio__throttle__io_service_bytes", "blkio__throttle__io_serviced")
    return counters(folder, 1, **dict(zip(names, (sent, requests), strict=True)))


def test_both_versions_tell_bytes_and_requests_by_device_and_direction(tmp_path: Path) -> None:
    assert v1(tmp_path, V1_BYTES, V1_REQUESTS) == {
        "7:0": Io(417333248, 4096, 784, 1),
        "7:1": Io(0, 8192, 0, 2),
    }
    assert counters(tmp_path, 2, io__stat=V2) == {
        "8:16": Io(417333248, 4096, 784, 1),
        "253:1": Io(0, 8192, 0, 2),
    }


def test_a_group_that_has_done_nothing_has_no_device(tmp_path: Path) -> None:
    assert v1(tmp_path, "Total 0\n", "Total 0\n") == {}
    assert counters(tmp_path, 2, io__stat="") == {}


@pytest.mark.parametrize(
    "text", ["8:0 rbytes=x wbytes=1 rios=1 wios=1", "8:0 rbytes=1", "8:0 rbytes=-1 wbytes=0"]
)
def test_counts_that_make_no_sense_are_not_known(tmp_path: Path, text: str) -> None:
    assert counters(tmp_path, 2, io__stat=text) is None


def test_half_of_the_files_tells_nothing(tmp_path: Path) -> None:
    assert counters(tmp_path, 1, blkio__throttle__io_serviced=V1_REQUESTS) is None
    assert counters(tmp_path, 2) is None


@pytest.mark.parametrize("version", [1, 2])
def test_counters_that_can_not_be_read_are_told_once_until_they_can(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path, version=version)
    group, qemu = host.guest(1, "db1")
    groups = Cgroups(Memory(), host.proc, host.sys)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert groups.counted(["db1"])["db1"].io == {}
    assert groups.counted(["db1"])["db1"].bounds == ORDER.limits
    name = "io.stat" if version == 2 else "blkio.throttle.io_serviced"
    text = (group / name).read_text()
    for _ in range(2):
        (group / name).unlink()
        for _ in range(2):
            assert groups.counted(["db1"])["db1"].io is None
        (group / name).write_text(text)
        assert groups.counted(["db1"])["db1"].io == {}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "so it isn't known what the images of db1 add, and its cgroup has no bounds" in told[0]
    assert groups.errors["cgroup"] == 4


def test_a_group_that_has_gone_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path)
    group, qemu = host.guest(1, "db1")
    groups = Cgroups(Memory(), host.proc, host.sys)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert groups.counted([]) == {}
    shutil.rmtree(group)
    assert groups.counted(["db1"]) == {}
    assert not groups.errors
    assert not caplog.records
