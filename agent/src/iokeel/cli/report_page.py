"""The report of weeks as a page: one file, without scripts, that needs nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from lxml import etree

from iokeel.cli.cells import name_cell
from iokeel.report.records import SectionReport, StoragePlot, WeeksReport
from iokeel.store.weeks import HOUR_S
from iokeel.words.units import duration, iops

_HEIGHT = 100
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --line: #d5dae0;
  --back: #ffffff; --rate: #1f6fb4; --missed: #c8552b; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --soft: #9aa5b1; --line: #3a424b;
  --back: #15181c; --rate: #6cb2ee; --missed: #f08a63; } }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0; }
p { margin: .25rem 0 .75rem; } .soft, figcaption, th { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 0 .25rem 1rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; } th { font-weight: normal; vertical-align: bottom; }
.name { text-align: left; white-space: normal; min-width: 3rem; max-width: 16rem; }
.name:first-child { padding-left: 0; }
@media (max-width: 40rem) { thead { display: none; } table, tbody { display: block; }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, .name { display: flex; justify-content: space-between; gap: 1rem; max-width: none; padding: 0;
    border: none; white-space: normal; }
  td::before { content: attr(data-label); color: var(--soft); flex: none; } }
figure { margin: 1rem 0; break-inside: avoid; } figcaption { font-size: .9rem; }
svg { display: block; width: 100%; height: 7rem; border: solid var(--line); border-width: 0 0 1px; }
svg * { vector-effect: non-scaling-stroke; fill: none; }
.rate { stroke: var(--rate); stroke-width: 1.5; }
.usable { stroke: var(--soft); stroke-dasharray: 4 3; }
.missed { fill: var(--missed); opacity: .5; }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); }
@media print { :root { color-scheme: light; --text: #000; --soft: #444; --line: #bbb; --back: #fff;
  --rate: #1f6fb4; --missed: #c8552b; } body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } thead { display: table-header-group; } }
"""
_NAMES = ("VM", "drive", "storage")


def page_of(found: WeeksReport, host: str) -> str:
    """Return the report of a host as HTML. What isn't seen in names is written as an escape."""
    html = etree.Element("html", lang="en")
    head, body = etree.SubElement(html, "head"), etree.SubElement(html, "body")
    etree.SubElement(head, "meta", charset="utf-8")
    etree.SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    title = f"Disks of {host}"
    _add(head, "title", title)
    etree.SubElement(head, "style").text = _STYLE
    _add(body, "h1", title)
    made = f"made {time.strftime('%b %d %Y, %H:%M')}"
    _add(body, "p", f"{made}; {found.span}" if found.sections else made, "soft")
    for note in found.notes:
        _add(body, "p", f"Note: {note}.")
    for section in found.sections:
        _add_section(body, section)
        if section.title == "Storages":
            for plot in found.plots:
                _add_plot(body, plot, found)
    if found.sections:
        _add(body, "p", "Rates are normalized: in 4 KiB reads a second.", "soft")
    return etree.tostring(html, method="html", encoding="unicode", doctype="<!DOCTYPE html>")


def _add(
    parent: etree._Element, tag: str, text: str = "", kind: str | None = None
) -> etree._Element:
    element = etree.SubElement(parent, tag, {} if kind is None else {"class": kind})
    element.text = name_cell(text)
    return element


def _add_section(body: etree._Element, section: SectionReport) -> None:
    _add(body, "h2", section.title)
    _add(body, "p", section.finding)
    if section.rows:
        table = _add(body, "table")
        _add_row(_add(table, "thead"), "th", section.headings, section.headings)
        rows = _add(table, "tbody")
        for row in section.rows:
            _add_row(rows, "td", row, section.headings)


def _add_row(
    parent: etree._Element, tag: str, cells: Sequence[str], headings: Sequence[str]
) -> None:
    row = _add(parent, "tr")
    for cell, heading in zip(cells, headings, strict=True):
        added = _add(row, tag, cell, "name" if heading in _NAMES else None)
        added.set("data-label", heading)  # of a narrow screen, which shows no headings


def _add_plot(body: etree._Element, plot: StoragePlot, found: WeeksReport) -> None:
    """Add a storage's rate by hour, under what its drives could share; missed time is marked."""
    top = max((rate for rate in plot.p95_iops if rate is not None), default=0.0)
    top = max(top, plot.usable_iops or 0.0, 1.0)
    figure = _add(body, "figure")
    label = f"{plot.storage}: what its drives did at once, up to {iops(top)}"
    if plot.usable_iops is not None:
        label += f"; dashed: what they could share, {iops(plot.usable_iops)}"
    if missed_s := sum(plot.missed_s):
        label += f"; bars: promises missed, {duration(missed_s)}"
    _add(figure, "figcaption", label)
    svg = etree.SubElement(
        figure, "svg", {"viewBox": f"0 0 {len(plot.p95_iops)} {_HEIGHT}", "role": "img",
        "preserveAspectRatio": "none", "aria-label": name_cell(label)},
    )  # fmt: skip

    def y(iops: float) -> str:
        return f"{_HEIGHT - (_HEIGHT - 2) * iops / top:.1f}"

    for hour, seconds in enumerate(plot.missed_s):
        if seconds:
            high = _HEIGHT * min(1.0, seconds / HOUR_S)
            bar = {"x": str(hour), "y": f"{_HEIGHT - high:.1f}", "width": "1"}
            etree.SubElement(svg, "rect", {"class": "missed", "height": f"{high:.1f}", **bar})
    # A step for each hour, because a line would need two.
    path = "".join(
        f"M{hour} {y(rate)}h1" if before is None else f"V{y(rate)}h1"
        for hour, (before, rate) in enumerate(pairwise([None, *plot.p95_iops]))
        if rate is not None
    )
    etree.SubElement(svg, "path", {"class": "rate", "d": path})
    if plot.usable_iops is not None:
        width = str(len(plot.p95_iops))
        usable = y(plot.usable_iops)
        etree.SubElement(svg, "path", {"class": "usable", "d": f"M0 {usable}H{width}"})
    axis = _add(figure, "div", kind="axis")
    for part in (0.0, 0.5, 1.0):
        at_s = found.since_s + part * (found.until_s - found.since_s)
        _add(axis, "span", time.strftime("%b %d %H:%M", time.localtime(at_s)))
