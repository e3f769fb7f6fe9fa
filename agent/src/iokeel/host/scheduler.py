"""The kernel's scheduler of a block device."""

from __future__ import annotations

from pathlib import Path

from iokeel.host.kernel_files import read_text

SYS = Path("/sys")


def has_bfq(device: str, sys: Path = SYS) -> bool | None:
    """Return whether BFQ schedules a device (MAJOR:MINOR); None if that can't be told."""
    schedulers = read_text(_queue(device, sys) / "scheduler")
    return None if schedulers is None else "[bfq]" in schedulers


def is_hard_disk_with_bfq(device: str, sys: Path = SYS) -> bool | None:
    """Return whether a device is a hard disk that BFQ schedules; None if that can't be told."""
    bfq, rotational = has_bfq(device, sys), read_text(_queue(device, sys) / "rotational")
    return None if bfq is None or rotational is None else bfq and rotational == "1"


def _queue(device: str, sys: Path) -> Path:
    return sys / "dev/block" / device / "queue"
