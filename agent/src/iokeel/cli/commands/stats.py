"""The command `iokeel stats`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import RenderableType

from iokeel.cli import client
from iokeel.cli.cells import Column, column_named, in_order
from iokeel.cli.drive_tables import (
    SORTS,
    DrivesByVm,
    DrivesOneByOne,
    drive_complaints,
    without_policy,
)
from iokeel.cli.options import JsonOption, SocketOption, out, stats_names
from iokeel.cli.output import say, say_json
from iokeel.cli.tables import (
    STORAGE_COLUMNS,
    TENANT_COLUMNS,
    storage_complaints,
    storage_table,
    tenant_table,
    tenants,
)
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import DriveReport, VmReport
from iokeel.words.quoting import did_you_mean, shown

app = typer.Typer(add_completion=False)
T = TypeVar("T")


@app.command()
def stats(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[VM]",
            help="Only this VM; with --storage or --tenant, the drives of this one.",
            autocompletion=stats_names,
        ),
    ] = None,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show the storages, or the drives on one.")
    ] = False,
    tenant: Annotated[
        bool, typer.Option("--tenant", help="Show the tenants' sums, or one's drives.")
    ] = False,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="COLUMN", help="Sort, the largest first.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", min=1, help="Only the N largest.")
    ] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show each drive's rate, and the rate that it is allowed.

    norm. iops: its rate, in 4 KiB reads a second. allowed: the rate that it
    may have now. ms r / w: mean latency, with the wait for the throttle.
    credit: saved seconds of burst. bound by: the limits that it uses up.

    With --storage, show each storage's usable rate, and the rate of its drives.
    reserved: the sum of their reservations. ms / target: the device's latency
    and its target. room: the part that drives without a latency target may
    use. --storage NAME and --tenant NAME show the drives of that one.

    --sort takes rate, used, latency or any other column, --top the first by
    rate or by --sort. Drives then stand alone, without their VMs' sums.

    /usr/share/doc/iokeel/stats.md.gz explains every word (in the sources:
    docs/stats.md).
    """
    if storage and tenant:
        raise ConfigError("stats", "--storage and --tenant exclude each other", "give one of them")
    if storage and name is None:
        _show_storages(socket, sort, top, as_json)
        return
    reports = client.vms(socket)
    if tenant and name is None:
        _show_tenants(_drives(reports), sort, top, as_json)
    elif name is not None and (storage or tenant):
        drives = _on_storage(reports, name) if storage else _of_tenant(reports, name)
        _show_drives(reports, _first(drives, SORTS, sort, top), as_json)
    else:
        reports = _chosen(reports, name)
        if sort is None and top is None:
            _show_vms(reports, as_json)
        else:
            _show_drives(reports, _first(_drives(reports), SORTS, sort, top), as_json)


def _drives(reports: Iterable[VmReport]) -> list[DriveReport]:
    return [drive for report in reports for drive in report.drives]


def _on_storage(reports: Iterable[VmReport], name: str) -> list[DriveReport]:
    by_storage = [(drive.storage, drive) for drive in _drives(reports)]
    return _named(by_storage, name, "no drive is on this storage")


def _of_tenant(reports: Iterable[VmReport], name: str) -> list[DriveReport]:
    by_tenant = [(drive.tenant, drive) for drive in _drives(reports)]
    return _named(by_tenant, name, "no drive has this tenant")


def _named(
    drives: Sequence[tuple[str | None, DriveReport]], name: str, none: str
) -> list[DriveReport]:
    """Return the drives that go by a name. none: the error's words if there is none."""
    found = [drive for its_name, drive in drives if its_name == name]
    if not found:
        names = {its_name for its_name, _ in drives if its_name is not None}
        raise IokeelError(shown(name), none, did_you_mean(name, names))
    return found


def _chosen(reports: list[VmReport], vm: str | None) -> list[VmReport]:
    """Return one VM's report in a list of its own, or all."""
    if vm is None:
        return reports
    for report in reports:
        if report.domain == vm:
            return [report]
    names = [report.domain for report in reports]
    raise IokeelError(shown(vm), "no such running VM", did_you_mean(vm, names))


def _first(
    rows: Iterable[T], columns: Sequence[Column[T]], sort: str | None, top: int | None
) -> list[T]:
    """Return rows sorted by a column, and no more than are wanted; the first ones by rate."""
    if sort is None and top is not None:
        sort = "rate"
    return [*rows] if sort is None else in_order(rows, column_named(sort, columns))[:top]


def _show_vms(reports: Sequence[VmReport], as_json: bool) -> None:
    lines = (*drive_complaints(reports), *without_policy(reports))
    _show(reports, DrivesByVm(reports), lines, as_json)


def _show_drives(reports: Sequence[VmReport], drives: Sequence[DriveReport], as_json: bool) -> None:
    _show(drives, DrivesOneByOne(drives), drive_complaints(reports, drives), as_json)


def _show_storages(socket: Path, sort: str | None, top: int | None, as_json: bool) -> None:
    reports = _first(client.storages(socket), STORAGE_COLUMNS, sort, top)
    table = storage_table(reports) if reports else "no storage is known"
    _show(reports, table, storage_complaints(reports), as_json)


def _show_tenants(
    drives: Iterable[DriveReport], sort: str | None, top: int | None, as_json: bool
) -> None:
    sums = _first(tenants(drives), TENANT_COLUMNS, sort, top)
    table = tenant_table(sums) if sums else "no drives"
    _show(sums, table, (), as_json)


def _show(
    values: Sequence[object],
    table: RenderableType,
    lines: Iterable[str],
    as_json: bool,
) -> None:
    """Print records as JSON, or else a table and lines below it."""
    if as_json:
        say_json(msgspec.to_builtins(values))
        return
    out.print(table)
    say(*lines)
