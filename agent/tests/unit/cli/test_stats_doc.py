"""docs/stats.md explains every word of `iokeel stats`, `top`, `history` and `why`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from iokeel.cli.commands import history
from iokeel.cli.drive_tables import HEADINGS
from iokeel.cli.tables import STORAGE_COLUMNS, TENANT_COLUMNS, storage_complaints
from iokeel.cli.top.picture import STATES
from iokeel.cli.top.views import VIEWS, help_text
from iokeel.core.values.limits import AVERAGES
from iokeel.core.values.observation import Reason
from iokeel.core.values.state import Verdict
from iokeel.report.records import StorageReport
from tests.unit.cli.reports import storage

PAGE = Path(__file__).parents[4] / "docs" / "stats.md"
FINE = storage()
WRONG = (
    replace(FINE, oversold=True, reserved_iops=3000.0),
    replace(FINE, capacity_iops=None, usable_iops=None),
    replace(FINE, reservations_kept=0.8),
    replace(FINE, suffering=["db1/vda"], exhausted=True),
)


def rows() -> set[str]:
    """Return the first cells of all tables of the page, one word or text each."""
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    texts = [cell.strip() for cell in cells]
    return {text for cell in texts for text in (re.findall("`([^`]+)`", cell) or [cell])}


STORAGES = [column.heading for column in STORAGE_COLUMNS]
TENANTS = [column.heading for column in TENANT_COLUMNS]
TABLES = (HEADINGS, STORAGES, TENANTS, history.COLUMNS)


@pytest.mark.parametrize("column", [column for table in TABLES for column in table])
def test_every_column_is_explained(column: str) -> None:
    assert column in rows()


@pytest.mark.parametrize("word", [*STATES, *(word for view in VIEWS for word in view.order)])
def test_every_word_of_top_is_explained(word: str) -> None:
    assert word in rows()


def test_the_help_of_top_has_the_words_of_the_page() -> None:
    page = PAGE.read_text()
    states = help_text().partition("\nstate\n")[2].splitlines()
    assert len(states) == len(STATES)
    for state, what in (line.split(maxsplit=1) for line in states):
        assert f"| `{state}` | {what}" in page


@pytest.mark.parametrize("word", [*AVERAGES, "error", "-"])
def test_every_bound_is_explained(word: str) -> None:
    assert word.removesuffix("_total") in rows()


@pytest.mark.parametrize("word", [*Verdict, *Reason], ids=lambda word: word.name)
def test_every_verdict_and_reason_is_explained(word: Verdict | Reason) -> None:
    assert word.value in rows()


@pytest.mark.parametrize("report", WRONG)
def test_every_complaint_about_a_storage_is_explained(report: StorageReport) -> None:
    (complaint,) = storage_complaints([report])
    text = re.sub(r"(?<![a-z])\d+k?", "N", complaint.removeprefix("sda: ")).replace("`", "")
    assert text in rows()


def test_a_storage_that_nearly_keeps_its_reservations_is_not_told_to_keep_100_percent() -> None:
    (complaint,) = storage_complaints([replace(FINE, reservations_kept=0.9981)])
    assert complaint == "sda: it can keep 99 % of the reservations asked for now"


def test_of_many_drives_above_the_target_a_few_are_named() -> None:
    suffering = [f"db{number}/vda" for number in range(300)]
    report = replace(FINE, suffering=suffering, exhausted=True)
    (complaint,) = storage_complaints([report])
    drives = "sda: db0/vda, db1/vda, db2/vda, db3/vda and 296 more above the latency target"
    assert complaint.startswith(drives)


def test_nothing_is_wrong_with_a_storage_that_keeps_its_promises() -> None:
    assert not [*storage_complaints([FINE])]
