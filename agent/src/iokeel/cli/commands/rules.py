"""The command `iokeel rules`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.cli.options import ConfigOption, JsonOption, SocketOption, out, text_of, vm_names
from iokeel.cli.output import complain, say, say_json
from iokeel.config.load import load
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConnectionLost, IokeelError, PolicyError
from iokeel.libvirt_xml.xml import MOST_BYTES
from iokeel.report.records import (
    ChangeReport,
    GuestReport,
    PromiseReport,
    RuleReport,
    RulesReport,
    ValueReport,
)
from iokeel.rules.known import who_controls
from iokeel.words.quoting import did_you_mean, escaped, shown, shown_path

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


_LAYOUTS = layouts("asks for")


def rules_table(report: RulesReport) -> PlainTable:
    """Return a row for each rule: its guests, the drives that it gives their limit, the sum."""
    headings = ("rule", "guests", "drives", "sum of limits", "asks for")
    rows = []
    for rule in report.rules:
        fit = [guest for guest in report.guests if rule.name in (*guest.fits, guest.leaves_alone)]
        limits = [
            int(value.value)
            for guest in report.guests
            for value in guest.values
            if value.rule == rule.name and value.name == "limit" and value.of != ""
        ]
        drives = {
            (guest.domain, value.of)
            for guest in report.guests
            for value in guest.values
            if value.rule == rule.name and value.of
        }
        total = rate_cell(sum(limits)) if limits else NONE
        rows.append((name_cell(rule.name), str(len(fit)), str(len(drives)), total, _asks(rule)))
    return PlainTable(headings, rows, _LAYOUTS)


def _asks(rule: RuleReport) -> str:
    asked = [f"{fact} {' or '.join(patterns)}" for fact, patterns in rule.when.items()]
    return escaped(", ".join(asked)) or "every guest"


def facts_lines(guest: GuestReport) -> list[str]:
    """Return a line for each fact of a guest and of its drives, with who controls it."""
    facts = [("", name, text) for name, text in guest.facts.items()]
    for target, texts in guest.drives.items():
        facts += [(target, name, text) for name, text in texts.items()]
    rows = [(target, name, text, who_controls(name) or NONE) for target, name, text in facts]
    return _lines([("drive", "fact", "text", "decided by"), *rows])


def values_lines(guest: GuestReport) -> list[str]:
    """Return a line for each value of a guest's policy, with where it comes from."""
    rows = [(v.of or "", v.name, v.value, source_words(v)) for v in guest.values]
    return _lines([("drive", "value", "is", "from"), *rows])


def source_words(value: ValueReport) -> str:
    """Return where a value comes from."""
    if value.rule is None:
        return "its own policy"
    if value.kept:
        return f"rule {value.rule}, which doesn't fit any more; it stays as it was"
    return f"rule {value.rule}{f', because {value.because}' if value.because else ''}"


def changes_lines(changes: Sequence[ChangeReport]) -> list[str]:
    """Return a line for each drive whose promise would change, or VM by all drives together."""
    rows = [
        (
            f"{change.domain}/{change.target}"
            if change.target
            else f"{change.domain} (all drives)",
            _promise(change.before, change.before_tenant),
            "->",
            _promise(change.after, change.after_tenant),
            "loses its limit" if change.loses_limit else "",
        )
        for change in changes
    ]
    return _lines([("drive", "now", "", "then", ""), *rows])


def _promise(promise: PromiseReport | None, tenant: str | None) -> str:
    said = [] if tenant is None else [f"tenant {tenant}"]
    for name, value in {} if promise is None else msgspec.structs.asdict(promise).items():
        if value and (name != "burst_seconds" or (promise and promise.burst_iops)):
            name = name.removesuffix("_iops").replace("_", "-")
            said.append(f"{name} {value}" if value is not True else "budget separate")
    return ", ".join(said) or "nothing"


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines. None is cut, so that texts can be searched for."""
    shown = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
