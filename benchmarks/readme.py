"""Figures in a page: the text between two marks is replaced by a result's tables."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"


def put_into(file: Path, text: str) -> None:
    """Replace the text between a file's marks. Raises ValueError if the file lacks them."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{file} lacks the lines {BEGIN.strip()} and {END.strip()}: add them")
    file.write_text(before + BEGIN + text + END + after)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield row(header)
    yield "|" + "---|" * len(header)
    yield from (row(cells) for cells in rows)


def row(cells: Sequence[str]) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join(cells)} |"
