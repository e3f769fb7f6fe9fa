"""The faults of a QMP socket, and how to mend them."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from iokeel.errors import ConnectionLost, IokeelError
from iokeel.host.foreign_paths import WrongLink
from iokeel.host.process import is_stopped

#: The class of QEMU's error if it doesn't know a command.
NO_COMMAND = "CommandNotFound"
NOT_QMP = "it has to be a QMP monitor of QEMU's, without pretty=on"
_SERVES_ONE = (
    "QEMU serves one client at a time: give the agent a -qmp socket of its own, or write shared ="
    " true"
)
# In /proc/net/unix: the field of a socket's state, that of its path, and the states of one that
# waits to be accepted, and that has been.
_STATE, _PATH, _WAITS, _ACCEPTED = 5, 7, "02", "03"


class MonitorLost(ConnectionLost):
    """A QMP socket can't be used now.

    kind: "missing", "stale", "permission", "busy", "timeout", "protocol", "flood", "closed" or
    "connect".
    """

    def __init__(self, kind: str, where: str, what: str, mend: str) -> None:
        super().__init__(where, what, mend)
        self.kind = kind


class CommandFailed(IokeelError):
    """QEMU answered a command with an error.

    kind: the error's class, such as DeviceNotFound. description: QEMU's own words.
    """

    def __init__(self, where: str, command: str, kind: str, description: str) -> None:
        super().__init__(where, f"{command}: {description}")
        self.command = command
        self.kind = kind
        self.description = description


def refused(path: Path, error: OSError) -> MonitorLost:
    """Return the fault of a socket that can't be connected to, by the system's error."""
    where = str(path)
    if isinstance(error, WrongLink):
        what = f"{error.strerror}, so it may lead to another VM's monitor"
        return MonitorLost("permission", where, what, "give the socket's own path")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        mend = f"start the VM with -qmp unix:{path},server=on,wait=off, or correct the path"
        return MonitorLost("missing", where, "no such socket", mend)
    if error.errno == errno.ECONNREFUSED:
        if path.is_socket():
            mend = "start the VM, or remove it from the agent's configuration"
            return MonitorLost("stale", where, "nobody listens any more", mend)
        return MonitorLost("stale", where, "not a socket", "correct the path")
    if error.errno in (errno.EACCES, errno.EPERM):
        user = _user(os.geteuid())
        mend = f"run the agent as root, or let {user} use it (setfacl -m u:{user}:rw)"
        return MonitorLost("permission", where, f"permission denied: {_owner(path)}", mend)
    if error.errno == errno.EAGAIN:
        what = "other clients wait for this monitor already"
        return MonitorLost("busy", where, what, _SERVES_ONE)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return MonitorLost("connect", where, "too many open files", "raise LimitNOFILE")
    return MonitorLost("connect", where, error.strerror or str(error), "correct the path")


def silent(path: Path, pid: int, waited_s: float) -> MonitorLost:
    """Return why a monitor sends no greeting: it serves another client, or its QEMU hangs.

    pid: of the process that listens.
    """
    where = str(path)
    states = [state for name, state in _sockets() if name == where]
    if _ACCEPTED in states:  # and ours is not: QEMU accepts one client at a time
        return MonitorLost("busy", where, "another client uses this monitor", _SERVES_ONE)
    what = f"no greeting in {waited_s:g} s from process {pid}"
    if not states:  # it listens under another name of the same path
        mend = f"it hangs, or serves another client; {_SERVES_ONE}"
        return MonitorLost("timeout", where, what, mend)
    if is_stopped(pid):
        return stopped(where, pid)
    return MonitorLost("timeout", where, what, "it hangs: see whether its storage does")


def stopped(where: str, pid: int) -> MonitorLost:
    """Return the fault of a QEMU that is stopped."""
    what = f"process {pid} is stopped, and answers nobody"
    return MonitorLost("timeout", where, what, f"kill -CONT {pid}")


def clients() -> Iterator[str]:
    """Yield the paths of sockets with clients, once for each. One that waits is one, too."""
    return (path for path, state in _sockets() if state in (_WAITS, _ACCEPTED))


def _sockets() -> Iterator[tuple[str, str]]:
    """Yield all unix sockets' paths and states. Takes long if there are very many."""
    with contextlib.suppress(OSError), open("/proc/net/unix", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=_PATH)
            if len(fields) > _PATH:
                yield fields[_PATH], fields[_STATE]


def _owner(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "a folder on its path is closed to the agent"
    return f"it belongs to {_user(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
