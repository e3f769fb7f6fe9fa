"""Paths that others control: past no link that leads elsewhere, or as another process sees them.

libvirt may run in a container. The paths in its domains' XML are then those of the container: here
they may be missing, or lead to another disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import deque
from pathlib import Path

from iokeel.host.kernel import Mount, mount_of, mounts
from iokeel.host.process import Process, process

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as many as the kernel follows
# openat2(2), which the C library of Debian 12 and 13 has no name for; the same on all machines.
_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10
# libvirt's name of the /dev that it makes for each QEMU, from the nodes of its own
# (virFileSetupDev).
_PRIVATE_DEV = "devfs"
_UNKNOWN = (errno.EACCES, errno.EPERM, errno.ENOSYS)


class WrongLink(OSError):
    """A path ends in a link, or passes one of another user's, who may have it lead anywhere."""


def open_trusted(path: str) -> int:
    """Return a handle (O_PATH) of what an absolute path names. Close it.

    Its folders may be links that belong to root or to the agent's user. Each part is opened in the
    folder before it, so nobody can change the path in between. Raises WrongLink or another OSError.
    """
    own, links, parts = (0, os.geteuid()), 0, deque(path.split("/"))
    here = os.open("/", _PATH_ONLY)
    try:
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            there = os.open(part, _PATH_ONLY, dir_fd=here)
            try:
                status = os.fstat(there)
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if not parts or status.st_uid not in own:
                        raise WrongLink(errno.ELOOP, f"{part} is a link of user {status.st_uid}")
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=there)
                    parts.extendleft(reversed(target.split("/")))
                    if not target.startswith("/"):
                        continue
                    os.close(there)
                    there = os.open("/", _PATH_ONLY)
                here, there = there, here
            finally:
                os.close(there)
    except BaseException:
        os.close(here)
        raise
    return here


class _How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


_LIBC = ctypes.CDLL(None, use_errno=True)


def open_path(path: str, by: Process | None, proc: Path) -> tuple[int, Process | None]:
    """Return a handle (O_PATH) of what a process has by a path, and the process.

    by: None for this process. Returns None for it, too, if this one has the same by that path.
    Raises OSError if there is nothing, or if that can't be told.
    """
    if by is None:
        return os.open(path, os.O_PATH), None
    try:
        theirs = _open_by(path, by, proc)
    except OSError as error:
        own = os.open(path, os.O_PATH)
        if error.errno in _UNKNOWN:
            same = _has_same_mount(path, by, proc)
        else:  # gone from there since it was opened, or it has another root folder now
            same = _has_open(os.fstat(own), by, proc)
        if same:
            return own, None
        os.close(own)
        raise
    try:
        own = os.open(path, os.O_PATH)
    except OSError:
        return theirs, by
    if _is_same(os.fstat(own), os.fstat(theirs)):
        os.close(theirs)
        return own, None
    os.close(own)
    return theirs, by


def _open_by(path: str, by: Process, proc: Path) -> int:
    """Open a path below a process's root folder, so that its links stay there."""
    root = os.open(proc / str(by.pid) / "root", os.O_PATH)
    try:
        if process(by.pid, proc) != by:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        where, size = os.fsencode(path), ctypes.sizeof(how)
        handle = int(_LIBC.syscall(_OPENAT2, root, where, ctypes.byref(how), size))
        if handle < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return handle
    finally:
        os.close(root)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    if stat.S_ISBLK(one.st_mode) and stat.S_ISBLK(other.st_mode):
        return one.st_rdev == other.st_rdev
    return os.path.samestat(one, other)


def _has_open(status: os.stat_result, by: Process, proc: Path) -> bool:
    """Return whether a process has a file or device open."""
    try:
        with os.scandir(proc / str(by.pid) / "fd") as handles:
            return any(_is_same(status, handle.stat()) for handle in handles)
    except OSError:
        return False


def _has_same_mount(path: str, by: Process, proc: Path) -> bool:
    """Return whether a process has the same mounted where a path is, by name, as this one."""
    ours, theirs = (mount_of(path, mounts(proc, who)) for who in ("self", str(by.pid)))
    if ours is None or theirs is None:
        return False
    private = theirs.kind == "tmpfs" and theirs.mounted == _PRIVATE_DEV
    return private or _what(ours) == _what(theirs)


def _what(mount: Mount) -> tuple[str, str, str]:
    return mount.number, mount.root, mount.point
