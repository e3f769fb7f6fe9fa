"""The command `iokeel top`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from iokeel.cli import client
from iokeel.cli.drive_tables import DrivesByVm, drive_complaints
from iokeel.cli.options import SocketOption, out
from iokeel.cli.output import say
from iokeel.cli.top.picture import Picture
from iokeel.config.paths import DEFAULT_SOCKET

app = typer.Typer(add_completion=False)


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print the table of stats, once.")] = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show drives, storages and tenants, live; `?` shows the keys.

    Without a terminal it prints the table of `iokeel stats`.
    """
    vms = client.vms(socket)
    if once or not _is_screen():
        out.print(DrivesByVm(vms))
        say(*drive_complaints(vms))
        return
    first = Picture.of(vms, client.storages(socket))
    from iokeel.cli.top.app import TopApp

    screen = TopApp(socket, first)
    screen.run(mouse=False)  # the terminal's own selection is for copying
    raise typer.Exit(screen.return_code or 0)


def _is_screen() -> bool:
    """Return whether there is a terminal to draw on, and one to read keys from.

    Textual draws on stderr.
    """
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return not dumb and all(file.isatty() for file in (sys.stdin, sys.stdout, sys.stderr))
