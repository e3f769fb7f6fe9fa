"""The table on the screen. It renders the rows that are visible, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from iokeel.cli.top.layout import Layout, layout
from iokeel.cli.top.picture import BURSTS, ERROR, HELD, SUFFERS
from iokeel.cli.top.trends import Key, Trends
from iokeel.cli.top.views import DRIVES, STATE, TREND, Row, View

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
