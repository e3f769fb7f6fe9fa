"""The command `iokeel why`."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer

from iokeel.cli import client
from iokeel.cli.cells import name_cell
from iokeel.cli.options import JsonOption, SocketOption, drive_names, out, vm_names
from iokeel.config.paths import DEFAULT_SOCKET

app = typer.Typer(add_completion=False)


@app.command()
def why(
    vm: Annotated[str, typer.Argument(help="The VM.", autocompletion=vm_names)],
    drive: Annotated[
        str | None, typer.Argument(help="Only this drive.", autocompletion=drive_names)
    ] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Explain which limit binds a drive and why: the last decision, step by step."""
    steps = client.why(socket, vm, drive)
    if as_json:
        print(json.dumps(steps, indent=2))
        return
    for target, sentences in steps.items():
        print(name_cell(f"{vm}/{target}"))
        for number, sentence in enumerate(sentences, 1):
            print(_step(number, sentence))


def _step(number: int, sentence: str) -> str:
    indent = f"  {number}. "
    return textwrap.fill(
        sentence,
        out.width,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
