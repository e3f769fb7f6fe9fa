"""The tables of `iokeel rules`."""

from __future__ import annotations

from collections.abc import Sequence

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

_LAYOUTS = layouts()


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


def facts_table(guest: GuestReport) -> PlainTable:
    """Return a row for each fact of a guest and of its drives, with who controls it."""
    facts = [("", name, text) for name, text in guest.facts.items()]
    for target, texts in guest.drives.items():
        facts += [(target, name, text) for name, text in texts.items()]
    rows = [
        (name_cell(target), name_cell(name), name_cell(text), who_controls(name) or NONE)
        for target, name, text in facts
    ]
    return PlainTable(("drive", "fact", "text", "decided by"), rows, _LAYOUTS)


def values_table(guest: GuestReport) -> PlainTable:
    """Return a row for each value of a guest's policy, with where it comes from."""
    rows = [
        (name_cell(value.of or ""), value.name, value.value, source_words(value))
        for value in guest.values
    ]
    return PlainTable(("drive", "value", "is", "from"), rows, _LAYOUTS)


def source_words(value: ValueReport) -> str:
    """Return where a value comes from."""
    if value.rule is None:
        return "its own policy"
    if value.kept:
        return f"rule {value.rule}, which doesn't fit any more; it stays as it was"
    return f"rule {value.rule}{f', because {value.because}' if value.because else ''}"


def changes_table(changes: Sequence[ChangeReport]) -> PlainTable:
    """Return a row for each drive whose promise would change, or VM by all drives together."""
    rows = [
        (
            name_cell(change.domain),
            name_cell(change.target or "all drives"),
            *_promise(change.before, change.before_tenant),
            *_promise(change.after, change.after_tenant),
            "loses its limit" if change.loses_limit else "",
        )
        for change in changes
    ]
    headings = ("VM", "drive", "limit", "burst", "reserv.", "tenant", "new limit", "new burst")
    return PlainTable((*headings, "new reserv.", "new tenant", ""), rows, layouts())


def _promise(promise: PromiseReport | None, tenant: str | None) -> tuple[str, str, str, str]:
    if promise is None:
        return NONE, NONE, NONE, name_cell(tenant or NONE)
    return (
        rate_cell(promise.limit_iops),
        rate_cell(promise.burst_iops),
        rate_cell(promise.reservation_iops),
        name_cell(tenant or NONE),
    )
