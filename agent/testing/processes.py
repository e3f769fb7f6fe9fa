"""Programs that serve until they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TypeAlias, TypedDict

from testing.waiting import Process, eventually

_Stream: TypeAlias = int | IO[bytes] | IO[str] | None
_START_S = 60.0
_END_S = 20.0


class PopenOptions(TypedDict, total=False):
    """Options of subprocess.Popen for a program whose pipes are read as text."""

    stdin: _Stream
    stdout: _Stream
    stderr: _Stream
    env: Mapping[str, str] | None
    cwd: str | Path | None
    start_new_session: bool


def ready(process: subprocess.Popen[str], serves: Callable[[], bool], name: str) -> None:
    """Wait until a program serves.

    name: of the program. If it ends, or takes more than 60 s, it is killed, and RuntimeError
    raised with what it wrote to stderr, which must be a pipe.
    """
    try:
        eventually(serves, _START_S, process=process)
    except Exception as error:
        process.kill()
        raise RuntimeError(f"{name} doesn't start: {process.communicate()[1].strip()}") from error


def hang(process: Process) -> None:
    """Stop a program by SIGSTOP, and wait until it has stopped.

    Until one of its threads has seen the signal, the others go on; on a busy machine that lasts.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if nobody has asked for its status yet."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def end(process: Process) -> None:
    """End a program by SIGTERM, or by SIGKILL after 20 s."""
    process.terminate()
    try:
        process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
