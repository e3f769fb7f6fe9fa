"""The command `iokeel recommend`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import NONE, Column, PlainTable, column, layouts, name_cell, rate_cell, table
from iokeel.cli.options import JsonOption, LastOption, SocketOption, out, vm_names, weeks_s
from iokeel.cli.output import say, say_json
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import IokeelError
from iokeel.report.records import DriveUse, RecommendReport, StorageUse
from iokeel.words.quoting import few
from iokeel.words.units import duration, percent, rate

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


_STORAGE_COLUMNS: tuple[Column[StorageUse], ...] = (
    column("storage", lambda s: s.storage, name_cell),
    column("p50", lambda s: s.p50_iops, rate_cell),
    column("p95", lambda s: s.p95_iops, rate_cell),
    column("p99", lambda s: s.p99_iops, rate_cell),
    column("peak", lambda s: s.peak_iops, rate_cell),
    column("usable", lambda s: s.usable_iops, rate_cell),
    column("reserved", lambda s: s.reserved_iops, rate_cell),
    column("more", lambda s: s.more_iops, rate_cell),
    column(
        "missed", lambda s: s.missed_s, lambda missed_s: duration(missed_s) if missed_s else NONE
    ),
)


def drive_use_table(found: RecommendReport) -> PlainTable:
    """Return a row for each drive, with a column for each limit."""
    tried = [f"{name} {rate(limit)}" for name, limit in found.limits.items()]
    if [*found.limits] == [str(limit) for limit in found.limits.values()]:
        tried = [f"{rate(limit)} iops" for limit in found.limits.values()]
    is_gone = any(drive.until_s is not None for drive in found.drives)
    fixed = ("VM", "drive", "p50", "p95", "p99", "peak", "limit", "held")
    rows = [
        [
            name_cell(drive.domain),
            name_cell(drive.target),
            *map(rate_cell, (drive.p50_iops, drive.p95_iops, drive.p99_iops, drive.peak_iops)),
            rate_cell(drive.limit_iops),
            _part(drive.held_ratio) if drive.limit_iops is not None else NONE,
            *(_part(drive.would_hold[name]) for name in found.limits),
            *([_until(drive)] if is_gone else []),
        ]
        for drive in found.drives
    ]
    headings = (*fixed, *tried, *(["until"] if is_gone else []))
    least = ("p50", "until", "limit", "peak", *reversed(tried[3:]), "p95", *reversed(tried[1:3]))
    return PlainTable(headings, rows, layouts(*least, "p99"))


def storage_use_table(storages: Sequence[StorageUse]) -> PlainTable:
    """Return a row for each storage."""
    return table(storages, _STORAGE_COLUMNS, "p50", "peak", "reserved", "missed")


def _part(ratio: float) -> str:
    """Return a part of the time; below a tenth, with a digit more."""
    return percent(ratio) if ratio >= 0.0995 or not ratio else f"{100 * ratio:.1f} %"


def _until(drive: DriveUse) -> str:
    """Return when a drive was seen last, in local time; "" if it is here still."""
    if drive.until_s is None:
        return ""
    return time.strftime("%b %d %H:%M", time.localtime(drive.until_s))
