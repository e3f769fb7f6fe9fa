"""The text beside the table: why a row is as it is, or the keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iokeel.cli import client
from iokeel.cli.cells import name_cell, rate_cell
from iokeel.cli.storage_table import storage_complaints
from iokeel.cli.top.views import Row
from iokeel.errors import ConnectionLost, IokeelError
from iokeel.report.records import DriveReport, StorageReport
from iokeel.words.quoting import escaped
from iokeel.words.units import percent

KEYS = (
    ("1 2 3", "drives, storages, tenants"),
    ("up down", "choose a row; Home: none, stay at the first"),
    ("left right", "sort by another column; also < >"),
    ("r", "reverse the order"),
    ("/", "filter by VM, drive, tenant or storage"),
    ("Enter", "why: explain the row, live"),
    ("J K", "scroll what is beside the table"),
    ("Escape", "close this, or end the filter"),
    ("space", "pause, and go on"),
    ("c", "copy the row and what is beside it"),
    ("?", "these keys"),
    ("q", "quit"),
)
_STATES = (
    (
        "error",
        "its limits couldn't be set, its VM's policy can't be used,"
        " or a table has gone from the configuration",
    ),
    ("suffers", "its latency is above its target"),
    ("bursts", "it does more than its limit, from its credit"),
    ("held", "it uses up a limit"),
    ("-", "none of these"),
)
# So many of a storage's or a tenant's drives are named.
_BUSIEST = 20


def help_text() -> str:
    """Return the keys and the states."""
    keys = (f"{key:<10}  {what}" for key, what in KEYS)
    states = (f"{state:<10}  {what}" for state, what in _STATES)
    return "\n".join(("keys", *keys, "", "state", *states))


def why_text(socket: Path, row: Row[Any]) -> str:
    """Return why a drive's limits are what they are, or what a storage's or tenant's drives do.

    Raises ConnectionLost.
    """
    if not isinstance(row.record, DriveReport):
        return "\n".join(_sums(row))
    drive = row.record
    title = name_cell(f"{drive.domain}/{drive.target}")
    try:
        steps = client.why(socket, drive.domain, drive.target).get(drive.target, [])
    except ConnectionLost:
        raise
    except IokeelError as error:  # it has gone since
        return f"{title}\n{escaped(str(error))}"
    return "\n".join((title, *(f"{n}. {escaped(step)}" for n, step in enumerate(steps, 1))))


def _sums(row: Row[Any]) -> Iterator[str]:
    """Yield what is wrong with a storage, and the busiest drives of a storage or tenant."""
    yield name_cell(row.key[1] or "-")
    if isinstance(row.record, StorageReport):
        complaints = [*storage_complaints([row.record])]
        yield from complaints or ["It keeps its promises."]
    busiest = sorted(row.drives, key=lambda drive: -(drive.normalized_iops or 0.0))
    yield f"Its busiest drives, of {len(busiest)}:"
    for drive in busiest[:_BUSIEST]:
        rate, allowed = drive.normalized_iops, drive.allowed_iops
        part = f" of {rate_cell(allowed)}" if allowed else ""
        used = f", {percent(rate / allowed)}" if rate is not None and allowed else ""
        yield f"{name_cell(f'{drive.domain}/{drive.target}')}: {rate_cell(rate)}{part} iops{used}"
