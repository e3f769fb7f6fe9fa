"""The report of the last week, as the agent tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from iokeel.core.values.counters import DriveId
from iokeel.store.weeks import HOUR_S, Hour
from testing.cockpit import Cockpit
from testing.sim.recording import Recording
from testing.sim.week import record_week
from testing.simulated_api import SimulatedApi
from tests.page.conftest import BUILT, Open, picture, violations, wider_than_the_window
from tests.page.simulated import served

HOURS = 6
HOSTILE = "<script>alert(1)</script>\u202e"


def host(folder: Path, *, hostile: bool = False) -> SimulatedApi:
    """A host with the history of some hours until now, or of a guest with a hostile name."""
    recording = Recording(folder, int(time.time()) // HOUR_S - HOURS)
    if hostile:
        recording.run(HOURS * HOUR_S, {DriveId(HOSTILE, "vda"): 10.0}, step_s=60)
        recording.stop()
    else:
        record_week(recording, 60.0, HOURS * HOUR_S)
    made = SimulatedApi([])
    made.hours = recording.recorder.hours
    return made


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_names_the_noisy_neighbour_and_the_drive_that_was_sold_too_little(
    folder: Path, opened: Open, width: int, scheme: str
) -> None:
    socket = folder / "agent.sock"
    with (
        served(host(folder).served, socket),
        Cockpit(folder / "c", BUILT, socket) as cockpit,
    ):
        viewport = {"width": width, "height": 1600}
        page = opened(f"{cockpit.url}#/report", viewport=viewport, color_scheme=scheme)
        cards = page.locator(".pf-v6-c-card")
        expect(cards.nth(0)).to_contain_text("noisy/vda took most above what it was owed in")
        expect(cards.nth(1)).to_contain_text("small/vda was sold too little")
        expect(page.locator("table[aria-label='Noisy neighbours'] tbody tr").first).to_contain_text(
            "noisy"
        )
        expect(page.locator("figure svg .iokeel-missed").first).to_be_visible()
        picture(page, f"report-{width}-{scheme}")
        assert wider_than_the_window(page) == 0
        assert violations(page) == []


def test_a_history_without_hours_is_said(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with (
        served(SimulatedApi([]).served, socket),
        Cockpit(folder / "c", BUILT, socket) as cockpit,
    ):
        page = opened(f"{cockpit.url}#/report")
        expect(page.get_by_role("heading", name="There is no history")).to_be_visible()
        expect(page.get_by_text("it begins a minute after the agent's start")).to_be_visible()
        assert violations(page) == []


def test_markup_in_a_name_is_text(folder: Path, opened: Open) -> None:
    made, socket = host(folder, hostile=True), folder / "agent.sock"
    given = made.hours

    def promised(since: int, until: int) -> Iterator[Hour]:
        for hour in given(since, until):
            for drive in hour.drives.values():
                drive.reservation_missed_s = 60.0
            yield hour

    made.hours = promised
    with served(made.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(f"{cockpit.url}#/report")
        row = page.locator("table[aria-label=Promises] tbody tr").first
        expect(row).to_contain_text("<script>alert(1)</script>\\u202e")
        expect(page.get_by_text("were missed longest")).to_contain_text("<script>")
