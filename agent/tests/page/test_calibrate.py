"""A storage is measured from the page, by the real command and fio."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from iokeel.config.load import parse
from testing.cockpit import Cockpit
from testing.host.storage import mounted
from tests.page.conftest import BUILT, Open, picture, violations

_MEASURED_MS = 240_000


@pytest.fixture
def page(folder: Path, opened: Open) -> Iterator[Page]:
    """The view, without an agent."""
    with Cockpit(folder / "c", BUILT, folder / "agent.sock") as cockpit:
        yield opened(f"{cockpit.url}#/calibrate")


def test_a_folder_is_measured_and_gives_its_configuration(page: Page, folder: Path) -> None:
    assert violations(page) == []
    with mounted(folder / "small", "tmpfs", "-t", "tmpfs", "-o", "size=64m") as small:
        page.get_by_label("Storage").fill(str(small))
        page.get_by_label("How much of it").fill("48m")
        page.get_by_label("Seconds per run").fill("0.2")
        page.get_by_role("button", name="Measure").click()
        progress = page.get_by_role("progressbar")
        expect(progress).not_to_have_attribute("aria-valuenow", "0", timeout=_MEASURED_MS)
        picture(page, "calibrating")
        expect(page.get_by_role("heading", name="Configuration")).to_be_visible(
            timeout=_MEASURED_MS
        )
    config = page.locator("pre").inner_text()
    (name,) = tomllib.loads(config)["storage"]
    assert parse(config.encode(), "page").storages[name].policy.capacity
    expect(page.get_by_role("img", name="Cost of a request by its size")).to_be_visible()
    runs = page.locator("table[aria-label=Runs] tbody tr")
    assert runs.count() > 4
    for row in runs.all():
        is_fitted = row.locator("[data-label=Kind]").inner_text().startswith("random")
        assert (row.locator("[data-label=Cost]").inner_text() != "\u2013") == is_fitted
    picture(page, "calibrated")
    assert violations(page) == []


def test_a_storage_that_can_not_be_measured_is_refused_in_the_commands_words(page: Page) -> None:
    page.get_by_label("Storage").fill("/nowhere")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("alert")).to_contain_text("iokeel: /nowhere: ")
    picture(page, "calibrate-refused")
