"""Tables of the command, and figures as their cells show them."""

from __future__ import annotations

from rich.console import JustifyMethod
from rich.table import Table

from iokeel.words.quoting import shown_path
from iokeel.words.units import rate, size

NONE = "-"
#: Columns of the longest name that is shown whole, so that figures beside it stay on the line.
LONGEST_NAME = 40
_LEFT = ("VM", "drive", "bound by", "storage", "tenant", "kind")


def plain_table(*headings: str, gap: int = 2) -> Table:
    """Return a table without lines. Columns of names are on the left, figures on the right.

    gap: spaces between columns.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for heading in headings:
        justify: JustifyMethod = "left" if heading in _LEFT else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def name_cell(name: str) -> str:
    """Return a name from outside. What a terminal would act upon is written as an escape."""
    return shown_path(name)


def rate_cell(value: float | None) -> str:
    """Return a rate."""
    return NONE if value is None else rate(value)


def flow_cell(raw_iops: float | None, mean_bytes: float | None) -> str:
    """Return requests a second by their mean size: 239 x 36.3K."""
    if not raw_iops or not mean_bytes:
        return NONE
    return f"{rate(raw_iops)} x {size(mean_bytes).removesuffix('iB').replace(' ', '')}"


def ms_cell(seconds: float | None) -> str:
    """Return a time in ms, with two or three digits that count."""
    if seconds is None:
        return NONE
    ms = 1e3 * seconds
    return f"{ms:.2f}" if ms < 1 else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


def cut(name: str, longest: int) -> str:
    """Return a name without its middle if it is too long: its ends tell it from others."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}..{name[head + 2 - longest :]}"
