"""What several subcommands share: options, a file or a name, completion, and the console."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from iokeel.cli import client
from iokeel.config.paths import DEFAULT_CONFIG, DEFAULT_SOCKET
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import VmReport
from iokeel.words.quoting import reason, shown_path
from iokeel.words.units import parse_duration

_SOCKET_VARIABLE = "IOKEEL_SOCKET"
#: Columns of text if the output is no terminal: a pipe has no width, so nothing is cut.
PIPE_COLUMNS = 1000
_MOST_S = 1000 * 24 * 3600

out = Console(highlight=False, markup=False, emoji=False)  # names are shown as they are
if not out.width or (not out.is_terminal and "COLUMNS" not in os.environ):  # 0: also not known
    out.width = PIPE_COLUMNS

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help=f"Configuration (default {DEFAULT_CONFIG})."),
]
SocketOption = Annotated[
    Path,
    typer.Option("--socket", envvar=_SOCKET_VARIABLE, readable=False, help="The agent's socket."),
]
LastOption = Annotated[str, typer.Option("--last", metavar="TIME", help="So far back: 12h, 7d.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def weeks_s(last: str) -> int:
    """Return how far back --last goes in the history of weeks, in seconds. Raises ConfigError."""
    try:
        seconds = parse_duration(last)
    except ConfigError as error:
        raise ConfigError.of(error, f"--last {error.where}") from None
    if not 0 < seconds <= _MOST_S:
        raise ConfigError(f"--last {last}", "no history is so long", "give a time from 1h to 1000d")
    return seconds


def vm_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the running VMs that a name may be completed to."""
    return _completed(incomplete, (vm.domain for vm in _running(context)))


def stats_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the VMs, storages or tenants that `iokeel stats` may be completed with."""
    drives = [drive for vm in _running(context) for drive in vm.drives]
    if context.params.get("storage"):
        names = {drive.storage for drive in drives}
    elif context.params.get("tenant"):
        names = {drive.tenant for drive in drives}
    else:
        return vm_names(context, incomplete)
    return _completed(incomplete, sorted(filter(None, names)))


def drive_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the drives of the VM given before that a name may be completed to."""
    name = context.params.get("vm")
    drives = [drive for vm in _running(context) if vm.domain == name for drive in vm.drives]
    return _completed(incomplete, (drive.target for drive in drives))


def _completed(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that a word may be completed to. A shell shows, and types, no others."""
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def _running(context: typer.Context) -> list[VmReport]:
    socket = context.params.get("socket") or os.environ.get(_SOCKET_VARIABLE) or DEFAULT_SOCKET
    try:
        return client.vms(Path(socket))
    except IokeelError:
        return []


def text_of(file: str, most: int) -> bytes | None:
    """Return what a file has, or standard input (-); None if the word may be a VM's name instead.

    most: the most bytes that are read. Raises ConfigError.
    """
    if file == "-":
        return sys.stdin.buffer.read(most)
    try:
        with Path(file).open("rb") as opened:
            return opened.read(most)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        if "/" not in file and isinstance(error, FileNotFoundError | IsADirectoryError):
            return None
        if isinstance(error, FileNotFoundError):
            raise ConfigError(shown_path(file), "no such file", "give a file, - or a VM") from None
        what = f"can't be read, {reason(error)}"
        raise ConfigError(shown_path(file), what, "give a readable file, - or a VM") from None
