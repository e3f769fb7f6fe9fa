"""The storage to calibrate: a block device, a temporary file in a folder, or an NBD export."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from iokeel.calibrate import target_checks as checks
from iokeel.calibrate.fio import Fio
from iokeel.errors import CalibrationError, ConfigError
from iokeel.host.direct_io import memory_cache
from iokeel.host.in_use import InUse
from iokeel.host.network_storage import network_place
from iokeel.words.os_errors import reason
from iokeel.words.quoting import shown_path

# A larger file stands better for its disk, whose seeks are longer, but takes longer to fill.
DEFAULT_FILE_BYTES = 4 << 30
# Data is written in steps of this size, to show how far it is.
_FILL_STEP_BYTES = 64 << 20
_NBD_URI = re.compile(r"nbds?(\+[a-z]+)?://")

#: Called with the bytes written and the bytes to write.
FillProgress = Callable[[int, int], None]


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
        raise checks.open_error(name, error) from None
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
    checks.check_fill(options.fill, options.destroy_data)
    size = options.size_bytes
    if size is None and options.fill:
        raise ConfigError("--fill", "the export's size is not known", "give --size too")
    region = 0 if size is None else checks.usable_bytes(uri, size, size)
    fio = Fio(shown_path(uri), ("--ioengine=nbd", f"--uri={uri}"), region, options.threads)
    place = network_place(uri)
    if place is None:
        raise ConfigError(shown_path(uri), "names no server", "write it like nbd://host/export")
    zeros = None if options.fill else fio.zero_ratio(checks.SAMPLES)
    return Target("source", place.name, fio, options.destroy_data, zeros)


@contextmanager
def _device(path: str, options: TargetOptions, users: InUse) -> Iterator[Target]:
    checks.check_fill(options.fill, options.destroy_data)
    number = os.stat(path).st_rdev

    def check() -> None:
        found = list(users.users_of_device(number))
        checks.check_users(path, found, options.destroy_data, options.even_if_in_use)

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
            checks.check_users(path, found, options.destroy_data, options.even_if_in_use)
        raise checks.open_error(path, error) from None
    with checks.closing(device):
        if os.fstat(device).st_rdev != number:  # its users weren't looked for
            raise CalibrationError(path, "has become another device meanwhile", "try again")
        size = os.lseek(device, 0, os.SEEK_END)
        if options.destroy_data and checks.is_read_only(device):
            raise CalibrationError(path, "is read-only", "leave out --destroy-data")
        region = checks.usable_bytes(path, options.size_bytes, size)
        fio = Fio(path, _file_options(device), region, options.threads, (device,))
        zeros = None if options.fill else checks.zero_ratio(path, device, region)
        cache = memory_cache(number)
        yield Target("device", path, fio, options.destroy_data, zeros, cache=cache, check=check)


@contextmanager
def _temporary_file(folder: str, options: TargetOptions, users: InUse) -> Iterator[Target]:
    if options.destroy_data or options.fill:
        option = "--destroy-data" if options.destroy_data else "--fill"
        mend = "leave it out: a folder is measured in a new file"
        raise ConfigError(option, "is for devices and exports", mend)
    size = DEFAULT_FILE_BYTES if options.size_bytes is None else options.size_bytes
    region = checks.usable_bytes(folder, size, size)
    found = list(users.guests_on_filesystem(folder))
    checks.check_users(folder, found, options.destroy_data, options.even_if_in_use)
    checks.check_free_space(folder, size)
    try:
        # Without a name, the file is gone when it is closed, even by a kill.
        file, name = tempfile.mkstemp(prefix=".iokeel-calibrate-", dir=folder)
        os.unlink(name)
        # fio would create a file that is too short anew, by its name.
        os.ftruncate(file, size)
    except OSError as error:
        raise checks.open_error(folder, error) from None
    with checks.closing(file):
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
