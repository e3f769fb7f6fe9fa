"""What is calibrated: a block device, a file of our own on a filesystem, or an NBD export."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iokeel.calibrate.fio import Fio
from iokeel.errors import CalibrationError, ConfigError
from iokeel.host.in_use import InUse
from iokeel.host.network_storage import network_place
from iokeel.words.quoting import shown_path

DEFAULT_FILE_BYTES = 4 << 30
LEAST_BYTES = 16 << 20
_FILL_STEP_BYTES = 64 << 20
# A filesystem that is fuller than this fragments what guests write.
_FREE_RATIO = 0.05
_BLOCK = 4096
_SAMPLES = 64
# From linux/fs.h: whether a device may not be written.
_BLKROGET = 0x125E
_LEAST = f"give {LEAST_BYTES >> 20}m or more"
_ANY_USE = "--even-if-in-use"

Filled = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator asks for. size_bytes: how much of the storage to use; None: the default."""

    size_bytes: int | None = None
    destroy_data: bool = False
    fill: bool = False
    even_if_in_use: bool = False
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Target:
    """What fio may run on.

    key, value: how configuration names the storage. zero_ratio: the part of it that reads as
    zeros, from a sample; None where it wasn't looked at.
    """

    key: str
    value: str
    fio: Fio
    writable: bool
    zero_ratio: float | None = None


@contextmanager
def opened(storage: str, wishes: Wishes, filled: Filled, use: InUse) -> Iterator[Target]:
    """Make a storage ready to be calibrated, and leave it as it was but for what was destroyed.

    filled: called with bytes done and bytes to do while data is laid out. Raises ConfigError for
    what is no storage or can't be asked of it, CalibrationError for one that can't be calibrated.
    """
    if re.match(r"nbds?(\+[a-z]+)?://", storage):
        target = _export(storage, wishes)
        _fill(target.fio, wishes.fill, filled)
        yield target
        return
    path = os.path.abspath(storage)
    name = shown_path(path)
    if name != path:
        raise ConfigError(name, "has characters that can't be written", "rename it")
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        raise CalibrationError(name, _reason(error), _mend(error)) from None
    except (OSError, ValueError) as error:
        mend = "give a block device, a folder, or an NBD URI such as nbd://host/export"
        raise ConfigError(name, _reason(error), mend) from None
    if stat.S_ISBLK(mode):
        with _device(path, wishes, use) as target:
            _fill(target.fio, wishes.fill, filled)
            yield target
    elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        folder = path if stat.S_ISDIR(mode) else os.path.dirname(path)
        with _own_file(folder, wishes, use) as target:
            _fill(target.fio, True, filled)
            yield target
    else:
        raise ConfigError(name, "is no storage", "give a block device, a folder, or an NBD URI")


def _export(uri: str, wishes: Wishes) -> Target:
    _check_fill(wishes)
    if wishes.size_bytes is None and wishes.fill:
        raise ConfigError("--fill", "an export is filled as far as --size says", "give --size")
    size = wishes.size_bytes
    region = 0 if size is None else _region(uri, size, size)
    where = ("--ioengine=nbd", f"--uri={uri}")
    fio = Fio(shown_path(uri), where, region, wishes.threads)
    place = network_place(uri)
    if place is None:
        raise ConfigError(shown_path(uri), "names no server", "write it like nbd://host/export")
    return Target("source", place.name, fio, wishes.destroy_data)


@contextmanager
def _device(path: str, wishes: Wishes, use: InUse) -> Iterator[Target]:
    _check_fill(wishes)
    users = list(use.users_of_device(os.stat(path).st_rdev))
    _check_users(path, users, wishes)
    access = os.O_RDWR if wishes.destroy_data else os.O_RDONLY
    # With O_EXCL nobody can mount it while it is calibrated.
    exclusive = 0 if wishes.even_if_in_use else os.O_EXCL
    try:
        device = os.open(path, access | exclusive | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EBUSY:
            _check_users(path, ["opened exclusively"], wishes)
        raise CalibrationError(path, _reason(error), _mend(error)) from None
    with _closing(device):
        size = os.lseek(device, 0, os.SEEK_END)
        if wishes.destroy_data and _read_only(device):
            raise CalibrationError(path, "is read-only", "leave out --destroy-data")
        region = _region(path, wishes.size_bytes, size)
        where = ("--ioengine=libaio", f"--filename=/proc/self/fd/{device}")
        fio = Fio(path, where, region, wishes.threads, (device,))
        zeros = None if wishes.fill else _zero_ratio(path, region)
        yield Target("device", path, fio, wishes.destroy_data, zeros)


@contextmanager
def _own_file(folder: str, wishes: Wishes, use: InUse) -> Iterator[Target]:
    if wishes.destroy_data or wishes.fill:
        option = "--destroy-data" if wishes.destroy_data else "--fill"
        raise ConfigError(option, "is for devices", "leave it out: a file of our own is used here")
    size = DEFAULT_FILE_BYTES if wishes.size_bytes is None else wishes.size_bytes
    _region(folder, size, size)
    _check_users(folder, list(use.guests_on_filesystem(os.stat(folder).st_dev)), wishes)
    _check_room(folder, size)
    try:
        # Without a name it is gone when it is closed, even by a kill.
        file, name = tempfile.mkstemp(prefix=".iokeel-calibrate-", dir=folder)
        os.unlink(name)
        # fio makes anew a file that is too short, which takes a name.
        os.ftruncate(file, size)
    except OSError as error:
        raise CalibrationError(folder, _reason(error), _mend(error)) from None
    with _closing(file):
        where = ("--ioengine=libaio", f"--filename=/proc/self/fd/{file}")
        fio = Fio(folder, where, size // _BLOCK * _BLOCK, wishes.threads, (file,))
        yield Target("path", folder, fio, True)


def _fill(fio: Fio, wanted: bool, filled: Filled) -> None:
    if not wanted:
        return
    for start in range(0, fio.region_bytes, _FILL_STEP_BYTES):
        filled(start, fio.region_bytes)
        fio.fill(start, min(_FILL_STEP_BYTES, fio.region_bytes - start))
    filled(fio.region_bytes, fio.region_bytes)


def _check_fill(wishes: Wishes) -> None:
    if wishes.fill and not wishes.destroy_data:
        raise ConfigError("--fill", "destroys all data", "give --destroy-data too, if it may")


def _check_users(path: str, users: list[str], wishes: Wishes) -> None:
    if not users:
        return
    more = f" and {len(users) - 1} more" if len(users) > 1 else ""
    what = f"is in use: {users[0]}{more}"
    if wishes.destroy_data:
        raise CalibrationError(path, what, "--destroy-data is for a device that nobody uses")
    if not wishes.even_if_in_use:
        mend = f"calibrate while it rests, or give {_ANY_USE}: its users wait, and figures err"
        raise CalibrationError(path, what, mend)


def _check_room(folder: str, size: int) -> None:
    room = os.statvfs(folder)
    usable = int(room.f_frsize * (room.f_bavail - _FREE_RATIO * room.f_blocks))
    if size > usable:
        what = f"has no room for a file of {size >> 20} MiB"
        mend = f"give --size {usable >> 20}m" if usable >= LEAST_BYTES else "make room"
        raise CalibrationError(folder, f"{what} (5 % are left free)", f"{mend}, or another folder")


def _region(name: str, wanted: int | None, there: int) -> int:
    region = there if wanted is None else wanted
    if there == 0 and wanted is None:
        raise CalibrationError(name, "has no size", "see that there is a medium in it")
    if region > there:
        raise ConfigError("--size", f"{name} has {there >> 20} MiB", "give no more")
    if region < LEAST_BYTES:
        what = f"{region >> 20} MiB are too few to tell anything"
        where, mend = (name, "use a larger one") if wanted is None else ("--size", _LEAST)
        raise ConfigError(where, what, mend)
    return region // _BLOCK * _BLOCK


def _read_only(device: int) -> bool:
    answer = bytearray(4)
    fcntl.ioctl(device, _BLKROGET, answer)
    return bool(struct.unpack("i", answer)[0])


def _zero_ratio(path: str, region: int) -> float:
    """Return the part of a device that reads as zeros; an SSD needn't read for that."""
    zeros = 0
    device = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    with _closing(device), mmap.mmap(-1, _BLOCK) as block:
        for _ in range(_SAMPLES):
            offset = random.randrange(region // _BLOCK) * _BLOCK
            try:
                os.preadv(device, [block], offset)
            except OSError as error:
                what = f"a read at offset {offset} failed, {error.strerror}"
                mend = "see the kernel's log and the device's health"
                raise CalibrationError(path, what, mend) from None
            zeros += not any(block[:])
    return zeros / _SAMPLES


@contextmanager
def _closing(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _mend(error: OSError) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return "run it as root"
        case errno.EROFS:
            return "mount it for writing, or calibrate its device"
        case errno.ENOSPC | errno.EDQUOT:
            return "make room"
        case errno.ENOMEDIUM | errno.ENXIO:
            return "see that there is a medium in it"
        case _:
            return "see the kernel's log"


def default_name(target: Target) -> str:
    """Return a name for the storage's table in the configuration."""
    last = "nbd" if target.key == "source" else Path(target.value).name
    return re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-")[:64] or "storage"
