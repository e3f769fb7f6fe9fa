"""The tables of `iokeel rules`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.report.records import (
    ChangeReport,
    GuestReport,
    PromiseReport,
    RuleReport,
    RulesReport,
    ValueReport,
)
from iokeel.rules.known import who_controls
from iokeel.words.quoting import escaped

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
