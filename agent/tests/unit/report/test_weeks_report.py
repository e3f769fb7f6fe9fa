"""The report of weeks: what it finds first, and what it says of a history that lacks something."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from iokeel.cli.report_page import page_of
from iokeel.core.values.counters import Counters, DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, DriveState, Measured, StorageState
from iokeel.core.values.storage import StoragePolicy
from iokeel.report.records import Above, SectionReport, WeeksReport
from iokeel.report.weeks import weeks_report
from iokeel.store.weeks import HOUR_S, Hour
from testing.sim.recording import FIRST, Recording
from testing.sim.week import record_week

A, B = DriveId("a", "vda"), DriveId("b", "vda")
HOSTILE = DriveId('<script>alert(1)</script>\x1b[2J\u202e&amp;"', "vda")
PAGE = Path(__file__).parents[4] / "docs/report.md"
FREE = Demand()
STORAGE = StorageState(StoragePolicy(capacity=10_000))


def reported(recording: Recording, hours: int = 168) -> WeeksReport:
    """The report of so many hours until now."""
    until = int(recording.now_s) // HOUR_S + 1
    return weeks_report(recording.recorder.hours(until - hours, until), until - hours, until)


def section(report: WeeksReport, title: str) -> SectionReport:
    return next(each for each in report.sections if each.title == title)


def doing(rate: float, policy: DrivePolicy | None = None, demand: Demand = FREE) -> DriveState:
    flow = Flow(rate, rate * 4096)
    rates = Rates(1.0, flow, Flow(0.0, 0.0), None, None)
    measured = Measured(Counters(0, 0, 0, 0, 0, 0, 0), rates, rate, budget_rate=rate)
    return DriveState(policy, "ssd", measured=measured, demand=demand)


def run(recording: Recording, drives: dict[DriveId, DriveState]) -> None:
    """Let an hour pass."""
    for _ in range(HOUR_S // 60):
        recording.sample(drives, 60.0, {"ssd": STORAGE})


def clock(hour: int) -> str:
    return time.strftime("%b %d %H:%M", time.localtime(hour * HOUR_S))


def test_the_noisy_neighbour_and_the_drive_that_was_sold_too_little_come_first(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path)
    week = record_week(recording, 60.0, 6 * HOUR_S)
    neighbours, at_limit, promises, storages, far_below = reported(recording).sections
    missed = week.missed_s / 60
    found = re.fullmatch(
        r"noisy/vda took most above what it was owed in (\d+) of the (\d+) minutes in which"
        r" promises on ssd were missed\.",
        neighbours.finding,
    )
    assert found is not None
    assert int(found[2]) == pytest.approx(missed, abs=1)
    assert missed / 2 < int(found[1]) <= missed + 1
    assert neighbours.rows[0][:3] == ["noisy", "vda", "ssd"]
    held = week.throttled_s / (6 * HOUR_S)
    assert at_limit.finding.startswith("small/vda was sold too little: it was at its limit of 300 ")
    assert at_limit.finding.endswith(f" for {100 * held:.0f} % of the time.")
    assert [row[0] for row in at_limit.rows] == ["small"]
    assert "Those to vm00" in promises.finding
    assert storages.finding.startswith("ssd was fullest: ")
    assert far_below.finding.startswith("20 of 21 drives with a limit never did half of it.")
    assert far_below.finding.endswith(" The first 10 are shown, and 10 are not.")
    assert len(far_below.rows) == 10


def test_a_drive_that_its_storage_held_was_not_sold_too_little(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for number in range(60):
        held = Demand(throttled_s=60.0 * number)
        drives = {A: doing(100, DrivePolicy(limit=1000), demand=held)}
        recording.sample(drives, 60.0, {"ssd": STORAGE})
    recording.stop()
    found = section(reported(recording), "Drives at their limit")
    assert "No drive was at its limit for more than half of the time." in found.finding
    assert found.rows[0][:2] == ["a", "vda"]


def test_a_drive_that_is_only_observed_would_have_been_held(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for number in range(60):
        above = {A: Above(seconds=60.0 * number, operations=0.0)}
        recording.sample({A: doing(900, DrivePolicy(limit=500))}, 60.0, {"ssd": STORAGE}, above)
    recording.stop()
    found = section(reported(recording), "Drives at their limit")
    assert found.finding.startswith("a/vda was sold too little: it would have been at its limit")


def test_all_is_well(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    run(recording, {A: doing(500, DrivePolicy(limit=1000, reservation=100))})
    recording.stop()
    report = reported(recording, hours=1)
    assert [each.finding for each in report.sections] == [
        "No promise was missed.",
        "No drive was held.",
        "All promises to 1 drive were kept.",
        "ssd was fullest: for 95 % of the time, its drives did 5 % of what it can serve, or less.",
        "Each drive with a limit did half of it, or more.",
    ]
    assert report.notes == []


def test_nothing_is_promised_and_no_capacity_is_known(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(HOUR_S, {A: 5.0}, step_s=60)
    recording.stop()
    findings = [each.finding for each in reported(recording).sections]
    assert findings[1:4] == [
        "No drive has a limit.",
        "No drive was promised a reservation or a latency target.",
        "No storage's capacity is known; `iokeel calibrate` measures it.",
    ]


def test_nothing_is_recorded_yet(tmp_path: Path) -> None:
    report = reported(Recording(tmp_path))
    assert report.notes == ["no history yet: it begins a minute after the agent's start"]
    assert report.sections == []
    assert report.notes[0] in page_of(report, "hv1")


def test_an_hour_only_is_said(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(HOUR_S - 60, {A: 5.0}, step_s=60)
    recording.stop()
    report = reported(recording)
    assert report.notes == [f"there is no history from before {clock(FIRST)}"]
    assert report.span == f"since {clock(FIRST)}; recorded: 58 min"


def test_holes_are_said(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(2 * HOUR_S, {A: 5.0}, step_s=60)
    recording.now_s += 12 * HOUR_S
    recording.run(2 * HOUR_S, {A: 5.0}, step_s=60)
    recording.stop()
    report = reported(recording, hours=17)
    assert report.notes == [
        "12 h of that time were not recorded, for example because the agent was off"
    ]
    (plot,) = report.plots
    assert plot.p95_iops.count(None) == 11


def test_limits_of_drives_that_have_gone_are_not_judged(tmp_path: Path) -> None:
    roomy = doing(10, DrivePolicy(limit=1000))
    recording = Recording(tmp_path)
    run(recording, {A: roomy, B: roomy})
    run(recording, {B: roomy})
    recording.stop()
    report = reported(recording, hours=3)
    gone = "1 drive left this host in that time: limits are judged only of those that are here"
    assert report.notes == [gone]
    assert [row[0] for row in section(report, "Drives far below their limit").rows] == ["b"]


def test_every_column_is_explained() -> None:
    tables = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    explained = {*re.findall("`([^`]+)`", tables), "VM", "drive", "storage"}
    sections = weeks_report([Hour(FIRST)], FIRST, FIRST + 1).sections
    assert {heading for each in sections for heading in each.headings} <= explained


class Page(HTMLParser):
    """What a browser finds in a page: tags, attributes, and the text of its body."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markup_and_controls_in_names_are_text(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    small = doing(100, DrivePolicy(limit=1000, reservation=500), demand=Demand(backlogged=True))
    for number in range(60):
        demand = Demand(backlogged=True, throttled_s=60.0 * number)
        drives = {HOSTILE: small._replace(demand=demand), B: doing(5000)}
        recording.sample(drives, 60.0, {"ssd": STORAGE})
    recording.stop()
    html = page_of(reported(recording), "<b>hv1</b>")
    page = Page(html)
    assert not {"script", "b", "img", "link", "iframe", "object"} & {*page.tags}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [name for name, _ in page.attributes if name in ("href", "src", "style")]
    assert '<script>alert(1)</script>\\x1b[2J\\u202e&amp;"' in page.text
    assert "url(" not in html
    assert re.search(r"[^\n -~]", html) is None


def test_a_plot_has_a_step_for_each_hour_and_a_bar_for_missed_time(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    record_week(recording, 60.0, 3 * HOUR_S)
    report = reported(recording, hours=4)
    page = Page(page_of(report, "hv1"))
    (plot,) = report.plots
    assert page.tags.count("svg") == 1
    assert page.tags.count("rect") == sum(map(bool, plot.missed_s)) > 0
    paths = [value for name, value in page.attributes if name == "d" and value]
    assert paths[0].count("h1") == sum(rate is not None for rate in plot.p95_iops) == 4
