"""The command `iokeel report`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import PlainTable, layouts, name_cell
from iokeel.cli.options import JsonOption, LastOption, SocketOption, out, weeks_s
from iokeel.cli.output import say, say_json
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import SectionReport
from iokeel.words.quoting import escaped, reason, shown_path

app = typer.Typer(add_completion=False)


@app.command()
def report(
    last: LastOption = "7d",
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write it as a page, with plots.", readable=False
        ),
    ] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what people should know of the last week.

    Who took most while promises were missed; drives that were held at their
    limit; promises kept and missed; how full storages were; and drives that
    never came near their limit. Rates are in 4 KiB reads a second.
    """
    if html is not None and as_json:
        raise ConfigError("--json", "would print nothing beside --html", "give one of them")
    found = client.report(socket, weeks_s(last))
    if as_json:
        say_json(msgspec.to_builtins(found))
    elif html is not None:
        from iokeel.cli.report_page import page_of

        try:
            html.write_text(page_of(found, platform.node()), encoding="utf-8")
        except OSError as error:
            what = f"can't be written, {reason(error)}"
            raise IokeelError(shown_path(html), what, "give another file to --html") from None
    else:
        for section in found.sections:
            say("", section.title.upper())
            out.print(escaped(section.finding))
            if section.rows:
                out.print(section_table(section))
        say(*([""] if found.sections else []), *found.notes)
        if found.sections:
            say(found.span)


def section_table(section: SectionReport) -> PlainTable:
    """Return a section's table."""
    rows = [list(map(name_cell, row)) for row in section.rows]
    return PlainTable(section.headings, rows, layouts("p50", "storage", "part", "kept"))
