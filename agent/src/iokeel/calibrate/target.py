"""The storage to calibrate: a device, a temporary file or an NBD export, and whether it may be."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import random
import re
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from iokeel.calibrate.fio import Fio, request_error
from iokeel.errors import CalibrationError, ConfigError
from iokeel.host.in_use import InUse
from iokeel.host.kernel import memory_cache
from iokeel.host.network_storage import network_place
from iokeel.words.quoting import reason, shown_path

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
# A larger file stands better for its disk, whose seeks are longer, but takes longer to fill.
DEFAULT_FILE_BYTES = 4 << 30
# Data is written in steps of this size, to show how far it is.
_FILL_STEP_BYTES = 64 << 20
_NBD_URI = re.compile(r"nbds?(\+[a-z]+)?://")

#: Called with the bytes written and the bytes to write.
FillProgress = Callable[[int, int], None]


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


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The operator's options. size_bytes: how much of the storage to use; None: the default."""

    size_bytes: int | None = None
    destroy_data: bool = False
    fill: bool = False
    even_if_in_use: bool = False
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Target:
    """A storage that is ready for fio.

    config_key, config_value: the storage in the configuration. zero_ratio: the part of it that
    reads as zeros, by a sample; None if it was not sampled. empty: it holds no data yet to read.
    """

    config_key: str
    config_value: str
    fio: Fio
    writable: bool
    zero_ratio: float | None = None
    empty: bool = False
    cache: tuple[str, str] | None = None
    check: Callable[[], None] = lambda: None

    @property
    def default_name(self) -> str:
        """A name for the storage's table in the configuration."""
        last = "nbd" if self.config_key == "source" else Path(self.config_value).name
        return re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-")[:64] or "storage"


@contextmanager
def open_target(
    storage: str, options: TargetOptions, on_fill: FillProgress, users: InUse
) -> Iterator[Target]:
    """Open a storage and, if needed, fill it. Apart from that it is left as it was.

    Raises ConfigError if it is not a storage or an option doesn't suit it, CalibrationError if it
    can't be calibrated.
    """
    with _opened(storage, options, users) as target:
        if options.fill or target.empty:
            _fill(target.fio, on_fill)
        yield target


def _opened(storage: str, options: TargetOptions, users: InUse) -> AbstractContextManager[Target]:
    if _NBD_URI.match(storage):
        return nullcontext(_export(storage, options))
    path = os.path.abspath(storage)
    name = shown_path(path)
    if name != path:
        raise ConfigError(name, "has unprintable characters", "rename it")
    mend = "give a block device, a folder, or an NBD URI such as nbd://host/export"
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        raise open_error(name, error) from None
    except (OSError, ValueError) as error:
        raise ConfigError(name, reason(error), mend) from None
    if stat.S_ISBLK(mode):
        return _device(path, options, users)
    if stat.S_ISDIR(mode):
        return _temporary_file(path, options, users)
    if stat.S_ISREG(mode):
        return _temporary_file(os.path.dirname(os.path.realpath(path)), options, users)
    raise ConfigError(name, "is not a storage", mend)


def _export(uri: str, options: TargetOptions) -> Target:
    check_fill(options.fill, options.destroy_data)
    size = options.size_bytes
    if size is None and options.fill:
        raise ConfigError("--fill", "the export's size is not known", "give --size too")
    region = 0 if size is None else usable_bytes(uri, size, size)
    fio = Fio(shown_path(uri), ("--ioengine=nbd", f"--uri={uri}"), region, options.threads)
    place = network_place(uri)
    if place is None:
        raise ConfigError(shown_path(uri), "names no server", "write it like nbd://host/export")
    zeros = None if options.fill else fio.zero_ratio(SAMPLES)
    return Target("source", place.name, fio, options.destroy_data, zeros)


@contextmanager
def _device(path: str, options: TargetOptions, users: InUse) -> Iterator[Target]:
    check_fill(options.fill, options.destroy_data)
    number = os.stat(path).st_rdev

    def check() -> None:
        found = list(users.users_of_device(number))
        check_users(path, found, options.destroy_data, options.even_if_in_use)

    check()
    access = os.O_RDWR if options.destroy_data else os.O_RDONLY
    # While it is open with O_EXCL, nobody can mount it. The kernel also knows of users that no file
    # in /proc or /sys tells of, such as mounts in other namespaces.
    exclusive = 0 if options.even_if_in_use and not options.destroy_data else os.O_EXCL
    try:
        device = os.open(path, access | exclusive | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EBUSY:
            found = ["opened exclusively"]
            check_users(path, found, options.destroy_data, options.even_if_in_use)
        raise open_error(path, error) from None
    with closing(device):
        if os.fstat(device).st_rdev != number:  # its users weren't looked for
            raise CalibrationError(path, "has become another device meanwhile", "try again")
        size = os.lseek(device, 0, os.SEEK_END)
        if options.destroy_data and is_read_only(device):
            raise CalibrationError(path, "is read-only", "leave out --destroy-data")
        region = usable_bytes(path, options.size_bytes, size)
        fio = Fio(path, _file_options(device), region, options.threads, (device,))
        zeros = None if options.fill else zero_ratio(path, device, region)
        cache = memory_cache(number)
        yield Target("device", path, fio, options.destroy_data, zeros, cache=cache, check=check)


@contextmanager
def _temporary_file(folder: str, options: TargetOptions, users: InUse) -> Iterator[Target]:
    if options.destroy_data or options.fill:
        option = "--destroy-data" if options.destroy_data else "--fill"
        mend = "leave it out: a folder is measured in a new file"
        raise ConfigError(option, "is for devices and exports", mend)
    size = DEFAULT_FILE_BYTES if options.size_bytes is None else options.size_bytes
    region = usable_bytes(folder, size, size)
    found = list(users.guests_on_filesystem(folder))
    check_users(folder, found, options.destroy_data, options.even_if_in_use)
    check_free_space(folder, size)
    try:
        # Without a name, the file is gone when it is closed, even by a kill.
        file, name = tempfile.mkstemp(prefix=".iokeel-calibrate-", dir=folder)
        os.unlink(name)
        # fio would create a file that is too short anew, by its name.
        os.ftruncate(file, size)
    except OSError as error:
        raise open_error(folder, error) from None
    with closing(file):
        fio = Fio(folder, _file_options(file), region, options.threads, (file,))
        cache = memory_cache(os.fstat(file).st_dev)
        yield Target("path", folder, fio, writable=True, empty=True, cache=cache)


def _file_options(descriptor: int) -> tuple[str, ...]:
    return "--ioengine=libaio", f"--filename=/proc/self/fd/{descriptor}"


def _fill(fio: Fio, on_fill: FillProgress) -> None:
    for start in range(0, fio.region_bytes, _FILL_STEP_BYTES):
        on_fill(start, fio.region_bytes)
        fio.fill(start, min(_FILL_STEP_BYTES, fio.region_bytes - start))
    on_fill(fio.region_bytes, fio.region_bytes)
