"""The command `iokeel stats`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from iokeel.cli import client
from iokeel.cli.drive_table import DriveStatsTable, drive_complaints
from iokeel.cli.options import JsonOption, SocketOption, out, vm_names
from iokeel.cli.storage_table import storage_complaints, storage_table
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import StorageReport, VmReport
from iokeel.words.quoting import did_you_mean, shown

app = typer.Typer(add_completion=False)


@app.command()
def stats(
    vm: Annotated[str | None, typer.Argument(help="Only this VM.", autocompletion=vm_names)] = None,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show the storages that drives share instead.")
    ] = False,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what each drive does, and what it may do.

    norm. iops: its rate, in 4 KiB reads a second. allowed: what it may do
    now. ms r / w: mean latency, the wait for the throttle included. credit:
    seconds of burst it has saved. bound by: the limits that it uses up.

    With --storage, show what each storage can serve, and what its drives do.
    reserved: the sum of their reservations. ms / target: the device's latency
    and its target. room: the part that drives without a latency target may
    use.

    docs/stats.md in the sources explains every word.
    """
    if not storage:
        _show_drives(_chosen(client.vms(socket), vm), as_json)
    elif vm is None:
        _show_storages(client.storages(socket), as_json)
    else:
        raise ConfigError(f"stats {shown(vm)}", "a VM and --storage", "give one of them")


def _chosen(reports: list[VmReport], vm: str | None) -> list[VmReport]:
    """Return one VM's report in a list of its own, or all."""
    if vm is None:
        return reports
    for report in reports:
        if report.domain == vm:
            return [report]
    names = [report.domain for report in reports]
    raise IokeelError(shown(vm), "no such running VM", did_you_mean(vm, names))


def _show_drives(reports: Sequence[VmReport], as_json: bool) -> None:
    if as_json:
        _print_json(reports)
        return
    out.print(DriveStatsTable(reports))
    for line in drive_complaints(reports):
        print(line)


def _show_storages(reports: Sequence[StorageReport], as_json: bool) -> None:
    if as_json:
        _print_json(reports)
        return
    out.print(storage_table(reports) if reports else "no storage is known")
    for line in storage_complaints(reports):
        print(line)


def _print_json(reports: Sequence[VmReport | StorageReport]) -> None:
    print(json.dumps([report.model_dump() for report in reports], indent=2))
