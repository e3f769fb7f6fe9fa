"""Storages that answer direct I/O from memory, by folders made like /sys and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iokeel.host.kernel import memory_cache

LOOP, PARTITION, DATASET = os.makedev(7, 3), os.makedev(259, 1), os.makedev(0, 44)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with loop3, which has a partition, and a dataset of ZFS."""
    for name, numbers in (("loop3", "7:3"), ("loop3/loop3p1", "259:1")):
        folder = tmp_path / "sys/devices" / name
        folder.mkdir(parents=True)
        link = tmp_path / "sys/dev/block" / numbers
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    (tmp_path / "sys/devices/loop3/loop3p1/partition").write_text("1\n")
    (tmp_path / "sys/devices/loop3/loop").mkdir()
    (tmp_path / "sys/module/zfs/parameters").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = "36 21 0:44 / /tank/vm rw - zfs tank/vm rw\n37 21 8:1 / /srv rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(lines)
    return tmp_path


def cache(root: Path, device: int) -> tuple[str, str] | None:
    return memory_cache(device, root / "sys", root / "proc")


def test_a_loop_device_without_direct_io_is_told_with_the_mend(root: Path) -> None:
    dio = root / "sys/devices/loop3/loop/dio"
    dio.write_text("0\n")
    told = ("the page cache below loop3", "use losetup --direct-io=on /dev/loop3")
    assert cache(root, LOOP) == cache(root, PARTITION) == told
    dio.write_text("1\n")
    assert cache(root, LOOP) is cache(root, PARTITION) is None


def test_a_folder_on_zfs_is_told_unless_zfs_has_direct_io(root: Path) -> None:
    told = cache(root, DATASET)
    assert told is not None
    assert told[0] == "ZFS's ARC"
    assert "zfs set primarycache=metadata tank/vm" in told[1]
    switch = root / "sys/module/zfs/parameters/zfs_dio_enabled"
    switch.write_text("0\n")
    assert cache(root, DATASET) == told
    switch.write_text("1\n")
    assert cache(root, DATASET) is None


def test_other_filesystems_and_disks_are_not_told(root: Path) -> None:
    assert cache(root, os.makedev(8, 1)) is None
