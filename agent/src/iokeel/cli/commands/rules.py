"""The command `iokeel rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.options import ConfigOption, JsonOption, SocketOption, out, text_of, vm_names
from iokeel.cli.output import complain, say, say_json
from iokeel.cli.rules_table import changes_lines, facts_lines, rules_table, values_lines
from iokeel.config.load import load
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConnectionLost, IokeelError, PolicyError
from iokeel.libvirt_xml.xml import MOST_BYTES
from iokeel.words.quoting import did_you_mean, shown, shown_path

_MOST_LINES = 20  # about guests that all have the same fault, perhaps
# More than any domain has. The word may also name a disk of 100 GB.
_ENOUGH_BYTES = 4 * MOST_BYTES

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def rules(
    context: typer.Context, as_json: JsonOption = False, socket: SocketOption = DEFAULT_SOCKET
) -> None:
    """Show the rules that give guests their policies: each with its guests and their limits."""
    if context.invoked_subcommand is not None:
        return
    report = client.rules(socket)
    if as_json:
        say_json(msgspec.to_builtins(report))
        return
    if not report.rules:
        say("There are no rules: each guest has the policy in its own metadata, or none.")
    else:
        out.print(rules_table(report))
    for guest in report.guests:
        for line in guest.errors:
            complain(line)
    for name in report.unknown:
        complain(f"{shown_path(name)}: its facts can't be read; see `iokeel stats {name}`")


@app.command()
def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="VM|FILE",
            help="A running VM, a file with a domain's XML, or - for standard input.",
            autocompletion=vm_names,
        ),
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show each value of a guest's policy, and where it comes from.

    A file is judged by the rules of the configuration, a running VM by those in force.
    """
    text = text_of(what, _ENOUGH_BYTES)
    if text is None:
        try:
            report = client.rules(socket)
        except ConnectionLost as error:
            raise IokeelError(shown(what), f"no such file, and {error}") from None
        names = [guest.domain for guest in report.guests]
        found = next((guest for guest in report.guests if guest.domain == what), None)
        if found is None:
            what_is = "no such file and no such running VM of libvirt's"
            raise IokeelError(shown(what), what_is, did_you_mean(what, names))
    else:
        from iokeel.report.rules import guest_of_file

        name = "standard input" if what == "-" else shown_path(what)
        found = guest_of_file(text, load(config, default_missing=True), name)
    if as_json:
        say_json(msgspec.to_builtins(found))
        return
    say(*facts_lines(found), "")
    if found.values:
        say(*values_lines(found))
    elif found.leaves_alone is not None:
        say(f"Rule {found.leaves_alone} leaves it alone.")
    else:
        say("No rule gives it anything, so it is left alone.")
    for line in found.errors:
        complain(line)


@app.command()
def diff(
    file: Annotated[Path, typer.Argument(help="Another configuration.", readable=False)],
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show each drive whose promise another configuration would change.

    Exit status 1 if one would lose its limit.
    """
    from iokeel.report.rules import changes_of

    settings = load(file)
    report = client.rules(socket)
    changes, bad = changes_of(report, settings)
    if as_json:
        say_json(msgspec.to_builtins(changes))
    elif changes:
        say(*changes_lines(changes))
    else:
        say("No promise would change.")
    for line in bad[:_MOST_LINES]:
        complain(line)
    if len(bad) > _MOST_LINES:
        complain(f"and {len(bad) - _MOST_LINES} more like these")
    for name in report.unknown:
        complain(
            f"{shown_path(name)}: its facts can't be read, so it isn't known what would change"
        )
    if lost := [change for change in changes if change.loses_limit]:
        drives = "drive" if len(lost) == 1 else "drives"
        raise PolicyError(
            shown_path(file),
            f"gives {len(lost)} {drives} no limit any more",
            "add a rule that gives one; a drive that no rule gives one keeps its last policy, and"
            " only a rule of policy = 'none' lifts it",
        )
