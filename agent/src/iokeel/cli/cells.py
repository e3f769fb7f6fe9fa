"""Tables of the command: their columns, and figures as their cells show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from iokeel.errors import ConfigError
from iokeel.words.quoting import did_you_mean, escaped, shown, shown_path
from iokeel.words.units import percent, rate, size

NONE = "-"
_NAMES = ("VM", "drive", "storage", "tenant", "host", "coordinator")
_LEFT = (*_NAMES, "kind", "bound by", "rule", "asks for")
T = TypeVar("T")
Value: TypeAlias = float | str | None
V = TypeVar("V", bound=Value)


class Layout(NamedTuple):
    """A layout of a table: spaces between columns, columns left out, and the longest name."""

    gap: int
    left_out: frozenset[str]
    longest: int


def layouts(*least_telling: str) -> tuple[Layout, ...]:
    """Return layouts, the widest one first: names become shorter before columns are left out.

    least_telling: the columns that may be left out, in this order.
    """
    whole = [Layout(gap, frozenset(), longest) for gap, longest in ((2, 60), (1, 60), (1, 24))]
    some = [frozenset(least_telling[:count]) for count in range(len(least_telling) + 1)]
    return (*whole, *(Layout(1, left_out, 16) for left_out in some), Layout(1, some[-1], 10))


@dataclass(frozen=True)
class PlainTable:
    """A table without lines. Columns of names are on the left, figures on the right.

    A narrow terminal gets fewer columns and shorter names, so no cell is broken: the first layout
    that is narrow enough is shown, or else the last one. Names lose their middle. What a terminal
    would act upon is shown as an escape.

    headings: of all columns. rows: their cells. styles: the rows' styles, if they have some.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    layouts: Sequence[Layout]
    styles: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a console's width."""
        for layout in self.layouts:
            widths = self._widths(layout)
            if sum(widths.values()) + layout.gap * (len(widths) - 1) <= options.max_width:
                break
        yield self._table(layout, widths)

    def _widths(self, layout: Layout) -> dict[int, int]:
        """Return how wide a layout's columns are, by their places."""
        return {
            i: max(cell_len(cell) for cell in {heading, *self._column(i, layout)})
            for i, heading in enumerate(self.headings)
            if heading not in layout.left_out
        }

    def _column(self, place: int, layout: Layout) -> list[str]:
        cells = [escaped(row[place]) for row in self.rows]
        is_name = self.headings[place] in _NAMES
        return [cut(cell, layout.longest) for cell in cells] if is_name else cells

    def _table(self, layout: Layout, widths: dict[int, int]) -> Table:
        table = Table(box=None, padding=(0, layout.gap, 0, 0), pad_edge=False)
        for i, width in widths.items():
            justify: JustifyMethod = "left" if self.headings[i] in _LEFT else "right"
            table.add_column(self.headings[i], justify=justify, no_wrap=True, width=width)
        rows = zip(*(self._column(i, layout) for i in widths), strict=True)
        for row, style in zip(rows, self.styles or [""] * len(self.rows), strict=True):
            table.add_row(*map(Text, row), style=style)
        return table


def name_cell(name: str | None) -> str:
    """Return a name from outside. What isn't seen is written as an escape."""
    return NONE if name is None else re.sub("^ | $", r"\\x20", shown_path(name))


def number_cell(value: int | None) -> str:
    """Return a whole number."""
    return NONE if value is None else str(value)


def part_cell(ratio: float | None) -> str:
    """Return a part of a whole."""
    return NONE if ratio is None else percent(ratio)


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


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column. word: its name for --sort. value: what rows are sorted by; None: not known."""

    word: str
    heading: str
    value: Callable[[T], Value]
    cell: Callable[[T], str]


def column(
    heading: str, value: Callable[[T], V], cell: Callable[[V], str], word: str | None = None
) -> Column[T]:
    """Return a column whose cells show what rows are sorted by. word: None for the heading."""
    return Column(word or heading, heading, value, lambda row: cell(value(row)))


def table(rows: Sequence[T], columns: Sequence[Column[T]], *least_telling: str) -> PlainTable:
    """Return a table of rows. least_telling: as in `layouts`."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return PlainTable([column.heading for column in columns], cells, layouts(*least_telling))


def column_named(word: str, columns: Iterable[Column[T]]) -> Column[T]:
    """Return the column of a word or heading. Raises ConfigError if there is none."""
    words = {column.word: column for column in columns}
    names = words | {column.heading.lower(): column for column in columns}
    if word.lower() not in names:
        raise ConfigError("--sort", f"{shown(word)} is not a column", did_you_mean(word, words))
    return names[word.lower()]


def in_order(rows: Iterable[T], column: Column[T], *, backwards: bool = False) -> list[T]:
    """Return rows in a column's order: figures from the largest, names from A, unknowns last.

    backwards: the other way round, but for the unknowns.
    """
    found = [(column.value(row), row) for row in rows]
    known = [(value, row) for value, row in found if value is not None]
    descending = any(not isinstance(value, str) for value, _ in known) is not backwards
    known.sort(key=_value, reverse=descending)
    return [row for _, row in known] + [row for value, row in found if value is None]


def _value(pair: tuple[float | str, object]) -> float | str:
    return pair[0].lower() if isinstance(pair[0], str) else pair[0]
