"""Checks of a storage before it is calibrated: its users, size, free space and data."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from iokeel.calibrate.fio_output import request_error
from iokeel.errors import CalibrationError, ConfigError
from iokeel.words.os_errors import reason

# 16 of the largest requests, 1 MiB: a smaller region says little about a storage.
LEAST_BYTES = 16 << 20
# This part of a filesystem stays free: a fuller one fragments the files that guests write.
_FREE_RATIO = 0.05
# Direct I/O is aligned to this: the largest logical block size that disks have.
_BLOCK_BYTES = 4096
# Blocks that are read to estimate the part of a storage that reads as zeros.
SAMPLES = 64
# The ioctl of linux/fs.h that says whether a device is read-only.
_BLKROGET = 0x125E


def check_fill(fill: bool, destroy_data: bool) -> None:
    """Raise ConfigError if --fill is given alone."""
    if fill and not destroy_data:
        raise ConfigError(
            "--fill", "overwrites all data", "if that is intended, give --destroy-data too"
        )


def check_users(name: str, users: Sequence[str], destroy_data: bool, even_if_in_use: bool) -> None:
    """Raise CalibrationError if a storage has users and must not be disturbed."""
    if not users:
        return
    more = f" and {len(users) - 1} more" if len(users) > 1 else ""
    what = f"is in use: {users[0]}{more}"
    if destroy_data:
        mend = "stop its users first: --destroy-data would destroy their data"
        raise CalibrationError(name, what, mend)
    if not even_if_in_use:
        mend = (
            "stop its users first, or give --even-if-in-use: they will be slowed down, and the"
            " figures will be off"
        )
        raise CalibrationError(name, what, mend)


def check_free_space(folder: str, size_bytes: int) -> None:
    """Raise CalibrationError if a filesystem has no space for a file, with 5 % left free."""
    space = os.statvfs(folder)
    usable = int(space.f_frsize * (space.f_bavail - _FREE_RATIO * space.f_blocks))
    if size_bytes > usable:
        what = f"has no space for a file of {size_bytes >> 20} MiB (5 % must stay free)"
        mend = f"give --size {usable >> 20}m" if usable >= LEAST_BYTES else "make room"
        raise CalibrationError(folder, what, f"{mend}, or give another folder")


def usable_bytes(name: str, wanted: int | None, available: int) -> int:
    """Return how much of a storage to use, in bytes, rounded down to whole blocks.

    wanted: as given by --size; None: all that is available. Raises ConfigError if that is more
    than there is or too small to measure, CalibrationError if there is nothing.
    """
    region = available if wanted is None else wanted
    if available == 0 and wanted is None:
        raise CalibrationError(name, "has a size of 0", "check that it has a medium")
    if region > available:
        raise ConfigError("--size", f"{name} has only {available >> 20} MiB", "give no more")
    if region < LEAST_BYTES:
        what = f"{region >> 20} MiB is too small to measure"
        least = f"{LEAST_BYTES >> 20}m"
        if wanted is None:
            raise ConfigError(name, what, f"use a storage of {least} or more")
        raise ConfigError("--size", what, f"give {least} or more")
    return region // _BLOCK_BYTES * _BLOCK_BYTES


def is_read_only(device: int) -> bool:
    """Whether an open block device refuses writes."""
    answer = bytearray(4)
    fcntl.ioctl(device, _BLKROGET, answer)
    return bool(struct.unpack("i", answer)[0])


def zero_ratio(path: str, device: int, region_bytes: int) -> float:
    """Return the part of an open device that reads as zeros, by a sample.

    path: its name in errors. An SSD may return such blocks without reading. Raises CalibrationError
    if a read fails.
    """
    zeros = 0
    # Another descriptor of the same device: the path may lead elsewhere by now.
    again = os.open(f"/proc/self/fd/{device}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    with closing(again), mmap.mmap(-1, _BLOCK_BYTES) as block:
        for _ in range(SAMPLES):
            offset = random.randrange(region_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
            try:
                os.preadv(again, [block], offset)
            except OSError as error:
                raise request_error(path, "read", offset, reason(error)) from None
            zeros += not any(block[:])
    return zeros / SAMPLES


def open_error(name: str, error: OSError) -> CalibrationError:
    """Return the error for a storage that can't be opened."""
    match error.errno:
        case errno.EACCES | errno.EPERM:
            mend = "run it as root"
        case errno.EROFS:
            mend = "mount it for writing, or calibrate its device"
        case errno.ENOSPC | errno.EDQUOT:
            mend = "make room"
        case errno.ENOMEDIUM | errno.ENXIO:
            mend = "check that it has a medium"
        case _:
            mend = "check the kernel's log"
    return CalibrationError(name, reason(error), mend)


@contextmanager
def closing(descriptor: int) -> Iterator[None]:
    """Close a file descriptor at the end, whatever the kernel says of it."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
