"""Who uses a device: the kernel's account of it, in folders made like /sys and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iokeel.host.in_use import InUse
from testing.host.storage import MIB, loop_device

DISK, PARTITION, OTHER = os.makedev(8, 16), os.makedev(8, 17), os.makedev(8, 32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with sdb, which has a partition sdb1, and sdc."""
    for name, numbers in (("sdb", "8:16"), ("sdb/sdb1", "8:17"), ("sdc", "8:32")):
        folder = tmp_path / "sys/devices" / name
        (folder / "holders").mkdir(parents=True)
        (folder / "dev").write_text(numbers + "\n")
        link = tmp_path / "sys/dev/block" / numbers
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    (tmp_path / "sys/devices/sdb/sdb1/partition").write_text("1\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("21 1 0:5 / /proc rw - proc proc rw\n")
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n")
    return tmp_path


def users(root: Path, device: int) -> list[str]:
    return list(InUse(root / "sys", root / "proc").users_of_device(device))


def test_nobody_uses_a_device_of_which_nothing_is_said(root: Path) -> None:
    assert users(root, DISK) == users(root, PARTITION) == []


def test_a_mount_of_a_partition_is_one_of_the_disk_too(root: Path) -> None:
    line = r"36 21 8:17 / /srv/a\040b rw,noatime master:1 - ext4 /dev/none rw" + "\n"
    (root / "proc/self/mountinfo").write_text(line)
    assert users(root, DISK) == users(root, PARTITION) == ["mounted at /srv/a b"]
    assert users(root, OTHER) == []


def test_a_path_with_control_characters_is_one_path(root: Path) -> None:
    line = "36 21 8:17 / /srv/a\x1d\rb rw - ext4 /dev/none rw\n"
    (root / "proc/self/mountinfo").write_text(line, newline="")
    assert users(root, DISK) == [r"mounted at /srv/a\x1d\rb"]


def test_a_device_that_another_is_made_of_is_in_use(root: Path) -> None:
    (root / "sys/devices/sdb/sdb1/holders/dm-0").mkdir()
    assert users(root, DISK) == users(root, PARTITION) == ["part of dm-0"]
    assert users(root, OTHER) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_swap_is_a_use(root: Path, tmp_path: Path) -> None:
    with loop_device(tmp_path, MIB) as device:
        number = os.stat(device).st_rdev
        assert users(root, number) == []
        header = (root / "proc/swaps").read_text()
        (root / "proc/swaps").write_text(f"{header}{device} partition 8 0 -2\n")
        assert users(root, number) == ["used for swap"]


def test_a_programs_name_may_be_any_bytes(root: Path) -> None:
    (root / "image").write_bytes(b"")
    for pid, name in ((5, b"\xff\x1b[2J\n"), (6, b"qemu\xff\n")):
        (root / f"proc/{pid}/fd").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_bytes(name)
        (root / f"proc/{pid}/fd/3").symlink_to(root / "image")
    found = InUse(root / "sys", root / "proc").guests_on_filesystem(str(root))
    assert list(found) == [r"open by qemu\udcff (process 6)"]


@pytest.mark.parametrize(("number", "in_use"), [("0:50", True), ("0:51", False)])
def test_a_guest_on_another_subvolume_is_on_the_filesystem(
    root: Path, number: str, in_use: bool
) -> None:
    """The kernel's own filesystems stand for two subvolumes, as mountinfo has those."""
    lines = [
        f"{mount_id('/sys/kernel')} 21 0:50 /a /srv/a rw - btrfs /dev/none rw\n",
        f"{mount_id('/proc/version')} 21 {number} /b /srv/b rw - btrfs /dev/none rw\n",
    ]
    (root / "proc/self/mountinfo").write_text("".join(lines))
    (root / "proc/6/fd").mkdir(parents=True)
    (root / "proc/6/comm").write_text("qemu-kvm\n")
    (root / "proc/6/fd/3").symlink_to("/proc/version")
    found = InUse(root / "sys", root / "proc").guests_on_filesystem("/sys/kernel")
    assert list(found) == ["open by qemu-kvm (process 6)"] * in_use


def mount_id(path: str) -> str:
    """Return the kernel's number of the mount that a path is on."""
    file = os.open(path, os.O_PATH)
    text = Path(f"/proc/self/fdinfo/{file}").read_text()
    os.close(file)
    return dict(line.split(":\t") for line in text.splitlines())["mnt_id"]


def test_a_blank_line_is_no_swap(root: Path) -> None:
    (root / "proc/swaps").write_text("Filename Type Size\n \n/dev/x partition 5\n")
    assert users(root, DISK) == []


def test_what_cant_be_looked_at_is_no_error(tmp_path: Path) -> None:
    assert users(tmp_path, DISK) == []
