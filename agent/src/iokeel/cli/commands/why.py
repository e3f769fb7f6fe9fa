"""The command `iokeel why`."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from iokeel.cli import client
from iokeel.cli.options import JsonOption, SocketOption, drive_names, out, vm_names
from iokeel.cli.output import say, say_json
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
        say_json(steps)
        return
    for target, sentences in steps.items():
        say(f"{vm}/{target}")
        for number, sentence in enumerate(sentences, 1):
            say(*_step(number, sentence))


def _step(number: int, sentence: str) -> list[str]:
    indent = f"  {number}. "
    return textwrap.wrap(
        sentence,
        out.width,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
