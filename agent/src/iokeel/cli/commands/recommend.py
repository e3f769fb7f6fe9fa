"""The command `iokeel recommend`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.options import JsonOption, LastOption, SocketOption, out, vm_names, weeks_s
from iokeel.cli.output import say, say_json
from iokeel.cli.use_tables import drive_use_table, storage_use_table
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import IokeelError
from iokeel.words.quoting import few
from iokeel.words.units import duration

app = typer.Typer(add_completion=False)


@app.command()
def recommend(
    vms: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VM]...", help="Only these VMs.", autocompletion=vm_names),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Try this limit in place of the classes'."
        ),
    ] = None,
    last: LastOption = "7d",
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what drives did in the last week, and which limits would have held them.

    p50, p95, p99: the rates that a drive didn't exceed in 50, 95 and 99 % of
    the time, in 4 KiB reads a second. held: the part of the time in which its
    own limit held it. Then, for each class: the part of the time in which the
    class's limit would have held it, without any burst.

    Below, for each storage: what its drives did at once. more: what can be
    promised beyond that, by what was used in 99 % of the time.
    """
    found = client.recommend(socket, weeks_s(last), limit, vms or ())
    if as_json:
        say_json(msgspec.to_builtins(found))
        return
    if missing := {*(vms or ())} - {drive.domain for drive in found.drives}:
        what = "nothing is recorded of it in that time"
        raise IokeelError(few(sorted(missing)), what, "see `iokeel recommend` for those that are")
    if not found.drives:
        say("no history yet: it begins a minute after the agent's start")
        return
    out.print(drive_use_table(found))
    if found.storages and not vms:
        say("")
        out.print(storage_use_table(found.storages))
    say("", f"recorded: {duration(found.seconds)}")
