"""Which columns fit into a width, how wide each is, and a row's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.cells import cell_len, set_cell_size

from iokeel.cli.top.trends import Trends, sparkline
from iokeel.cli.top.views import STATE, TREND, Row, View

# Columns of text are on the left, figures on the right.
_TEXTS = ("VM", "drive", "storage", "tenant", "bound by", STATE, TREND)
_NAMES = ("VM", "drive", "storage", "tenant")
# Columns of a screen: a narrower one cuts names rather than leave columns out.
_NARROW = 40
# The least and most width; figures have one width, so nothing moves when they change. A name is as
# wide as the longest that there is, within these.
_WIDTHS = {
    "VM": (6, 60),
    "drive": (5, 24),
    "storage": (7, 60),
    "tenant": (6, 40),
    STATE: (7, 7),
    TREND: (9, 40),
    "reads/s": (13, 13),
    "writes/s": (13, 13),
    "ms / target": (12, 12),
    "bound by": (9, 20),
    "capacity": (8, 8),
    "reserved": (8, 8),
    "waiting": (7, 7),
    "allowed": (7, 7),
    "ms wait": (7, 7),
}
_FIGURE = (6, 6)
_NARROW_WIDTHS = {STATE: 1, "drive": 4, "storage": 6}
_TO_STRETCH = (STATE, "VM", "storage", "tenant", "drive", "bound by", TREND)


@dataclass(frozen=True)
class Layout:
    """The columns on the screen: headings and widths, a space between any two."""

    columns: Sequence[tuple[str, int]]

    def headings(self) -> list[tuple[str, str]]:
        """Return the cells of the headings, each with its heading."""
        return [(heading, _cell(heading, heading, width)) for heading, width in self.columns]

    def line(self, row: Row[Any], view: View[Any], trends: Trends) -> list[tuple[str, str]]:
        """Return a row's cells, each with its heading."""
        return [
            (heading, _cell(_text(row, view, trends, heading, width), heading, width))
            for heading, width in self.columns
        ]


def layout(view: View[Any], rows: Sequence[Row[Any]], width: int) -> Layout:
    """Return the layout of a view: the most telling columns that fit, the first one in any case.

    A name may take a quarter of the width before a column is left out.
    """
    widths: dict[str, int] = {}
    wanted = cache(lambda heading: _wanted(view, rows, heading))
    for heading in view.telling:
        least = _WIDTHS.get(heading, _FIGURE)[0]
        if width < _NARROW:
            least = _NARROW_WIDTHS.get(heading, least)
        elif heading in _NAMES:
            least = max(least, min(wanted(heading), width // 4))
        if widths and sum(widths.values()) + len(widths) + least > width:
            break
        widths[heading] = least
    left = width - sum(widths.values()) - len(widths) + 1
    for heading in _TO_STRETCH:
        if heading in widths:
            more = max(0, min(left, wanted(heading) - widths[heading]))
            widths[heading] += more
            left -= more
    return Layout([(heading, widths[heading]) for heading in view.order if heading in widths])


def _wanted(view: View[Any], rows: Sequence[Row[Any]], heading: str) -> int:
    most = _WIDTHS[heading][1]
    if heading in (STATE, TREND):
        return most
    cell = view.columns[heading].cell
    return min(most, max(map(cell_len, {cell(row.record) for row in rows}), default=0))


def _text(row: Row[Any], view: View[Any], trends: Trends, heading: str, width: int) -> str:
    if heading == STATE:
        return row.state
    if heading == TREND:
        return sparkline(trends.of(row.key), width, row.most)
    return view.columns[heading].cell(row.record)


def _cell(text: str, heading: str, width: int) -> str:
    """Return a text as wide as its column; a name that is too long loses its middle."""
    length = cell_len(text)
    if length > width and width > 4 and heading in _TEXTS:
        text = set_cell_size(text, width // 2 - 1) + ".." + _end(text, width - width // 2 - 1)
    elif length < width and heading not in _TEXTS:
        return " " * (width - length) + text
    return set_cell_size(text, width)


def _end(text: str, width: int) -> str:
    """Return the end of a text, so wide."""
    end = text[-width:]
    while cell_len(end) > width:
        end = end[1:]
    return set_cell_size(end, width)
