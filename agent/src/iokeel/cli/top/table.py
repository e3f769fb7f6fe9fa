"""The table on the screen: columns that fit its width, and the rows that are visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from iokeel.cli.top.picture import BURSTS, ERROR, HELD, SUFFERS, Key, Trends, sparkline
from iokeel.cli.top.views import DRIVES, STATE, TREND, Row, View

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
_HEADING = Style(bold=True, underline=True)
_SORTED = Style(bold=True, underline=True, reverse=True)
_CHOSEN = Style(reverse=True)
_STYLES = {
    ERROR: Style(color="red", bold=True),
    SUFFERS: Style(color="magenta", bold=True),
    BURSTS: Style(color="cyan"),
    HELD: Style(color="yellow"),
}
_PLAIN = Style()


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


class RowsTable(Widget, can_focus=True):
    """Rows below their headings, one of them chosen.

    Until a key chooses one, it is the first, whichever that is. From then on the same row is
    chosen, wherever it moves, and stays visible.

    rows: all of them, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: View[Any] = DRIVES
        self.rows: Sequence[Row[Any]] = ()
        self._trends = Trends()
        self._sort = ""
        self._chosen: Key | None = None
        self._place = self._first = 0
        self._layout = Layout(())

    def show(self, view: View[Any], rows: Sequence[Row[Any]], trends: Trends, sort: str) -> None:
        """Show these rows, in their order."""
        self._view, self.rows, self._trends, self._sort = view, rows, trends, sort
        if self._chosen is None:
            self._place = 0
        else:
            places = (i for i, row in enumerate(rows) if row.key == self._chosen)
            self._place = next(places, min(self._place, max(0, len(rows) - 1)))
        self._redraw()

    @property
    def chosen(self) -> Row[Any] | None:
        """The chosen row; None if there is no row."""
        return self.rows[self._place] if self.rows else None

    @property
    def page(self) -> int:
        """How many rows are visible."""
        return max(1, self.size.height - 1)

    def choose(self, place: int | None) -> None:
        """Choose the row at a place, as near as there is; None: the first, whichever it is."""
        self._place = max(0, min(place or 0, len(self.rows) - 1))
        chosen = self.chosen
        self._chosen = None if place is None or chosen is None else chosen.key
        self._redraw()

    def move(self, rows: int) -> None:
        """Choose a row so many further down."""
        self.choose(self._place + rows)

    def text(self) -> str:
        """Return the headings and the chosen row, with tabs between the cells."""
        if self.chosen is None:
            return ""
        cells = self._layout.line(self.chosen, self._view, self._trends)
        rows = zip(*((heading, cell.strip()) for heading, cell in cells), strict=True)
        return "\n".join("\t".join(row) for row in rows)

    def on_resize(self) -> None:
        """Lay the columns out anew."""
        self._redraw()

    def _redraw(self) -> None:
        self._first = max(self._place - self.page + 1, min(self._first, self._place))
        self._first = max(0, min(self._first, len(self.rows) - self.page))
        self._layout = layout(self._view, self.rows, self.size.width)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the headings, or a row."""
        if y == 0:
            return self._headings()
        place = self._first + y - 1
        if place >= len(self.rows):
            text = "nothing here" if y == 1 and not self.rows else ""
            return Strip([Segment(text)]).adjust_cell_length(self.size.width)
        row = self.rows[place]
        of_state = _STYLES.get(row.state, _PLAIN)
        base = _CHOSEN if place == self._place else _PLAIN
        segments = []
        for heading, cell in self._layout.line(row, self._view, self._trends):
            style = base + of_state if heading in (STATE, TREND) else base
            segments += [Segment(cell, style), Segment(" ", base)]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _headings(self) -> Strip:
        segments = []
        for heading, cell in self._layout.headings():
            style = _SORTED if heading == self._sort else _HEADING
            segments += [Segment(cell, style), Segment(" ", _HEADING)]
        return Strip(segments).adjust_cell_length(self.size.width, _HEADING)
