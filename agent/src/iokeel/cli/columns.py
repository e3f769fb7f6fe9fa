"""Columns of the command's tables: what to call them, and what to sort by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from iokeel.errors import ConfigError
from iokeel.words.quoting import did_you_mean, shown

T = TypeVar("T")
Value: TypeAlias = float | str | None


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column. word: its name for --sort. value: what rows are sorted by; None: not known."""

    word: str
    heading: str
    value: Callable[[T], Value]
    cell: Callable[[T], str]


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


def cells(row: T, columns: Sequence[Column[T]]) -> list[str]:
    """Return a row's cells."""
    return [column.cell(row) for column in columns]
