"""The command `iokeel top`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from iokeel.cli import client
from iokeel.cli.drive_table import DriveStatsTable, drive_complaints
from iokeel.cli.options import SocketOption, out
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConnectionLost, IokeelError

_INTERVAL_S = 1.0
app = typer.Typer(add_completion=False)


@app.command()
def top(socket: SocketOption = DEFAULT_SOCKET) -> None:
    """Show the same as stats, live, until interrupted."""
    reports = client.vms(socket)
    if not out.is_terminal:
        raise IokeelError("top", "the output is not a terminal", "use `iokeel stats`")
    with _interruptible(), Live(console=out, screen=True, auto_refresh=False) as live:
        complaint = ""
        while True:
            lines = [complaint] if complaint else [*drive_complaints(reports)]
            texts = (Text(line, "red") for line in lines)
            live.update(Group(DriveStatsTable(reports), *texts), refresh=True)
            time.sleep(_INTERVAL_S)
            try:
                reports, complaint = client.vms(socket), ""
            except ConnectionLost as error:  # for instance, the agent is being restarted
                complaint = str(error)


@contextmanager
def _interruptible() -> Iterator[None]:
    """End quietly, and with the terminal as it was, at SIGINT and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit from None
