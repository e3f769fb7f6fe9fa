"""Figures in a text: what is between two marks is replaced by what was measured."""

from pathlib import Path

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"


def put_into(file: Path, text: str) -> None:
    """Replace what is between the marks of a file."""
    before, _, rest = file.read_text().partition(BEGIN)
    file.write_text(before + BEGIN + text + END + rest.partition(END)[2])
