"""Which columns fit, and a row's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from iokeel.cli.top.picture import STATES, Picture, Trends
from iokeel.cli.top.table import layout
from iokeel.cli.top.views import DRIVES, STATE, VIEWS
from iokeel.report.records import ErrorReport
from tests.unit.cli.reports import drive, vm

ERROR = ErrorReport(where="db1/vda", what="refused", mend="see the log")


def lines(names: list[str], width: int, number: int = 0) -> list[str]:
    """Return the headings and rows of a view in a terminal so wide."""
    view = VIEWS[number]
    drives = [drive(name, domain=name, tenant=name, rate=12345.6) for name in names]
    rows = [*view.rows(Picture.of([vm(one) for one in drives], []))]
    found = layout(view, rows, width)
    cells = [found.headings(), *(found.line(row, view, Trends()) for row in rows)]
    return [" ".join(cell for _, cell in line) for line in cells]


@pytest.mark.parametrize("number", [0, 1, 2])
@given(names=st.lists(st.text(min_size=1, max_size=200), max_size=3), width=st.integers(6, 300))
def test_every_line_is_printable_and_none_is_too_wide(
    number: int, names: list[str], width: int
) -> None:
    found = lines(names, width, number)
    assert len({cell_len(line) for line in found}) == 1
    assert cell_len(found[0]) <= width
    assert all(line.isprintable() for line in found)


def test_a_narrow_terminal_has_name_state_and_rate() -> None:
    assert lines(["db1"], 20) == ["VM     driv s   iops", "db1    db1  -  12.3k"]
    assert lines(["database-of-acme"], 20)[1] == "da..me data -  12.3k"


def test_a_name_takes_a_quarter_before_a_column_is_left_out() -> None:
    heading, row = lines(["database-of-acme-01"], 80)
    assert row.startswith("database-of-acme-01 ")
    assert "credit" not in heading
    assert [len(name) >= 20 for name in lines(["x" * 60], 80)[1].split()[:2]] == [True, True]


def test_a_wide_terminal_has_all_columns() -> None:
    headings = lines(["db1"], 300)[0]
    assert [heading for heading in DRIVES.order if heading not in headings] == []


@pytest.mark.parametrize("state", STATES)
def test_the_word_for_a_state_is_whole(state: str) -> None:
    column = dict(layout(DRIVES, (), 80).columns)[STATE]
    assert len(state) <= column


def test_wide_characters_count_twice() -> None:
    heading, row = lines(["数据库服务器一号机"], 40)
    assert cell_len(row) == cell_len(heading)
    assert ".." in row


def test_the_worst_state_is_shown() -> None:
    over: dict[str, Any] = {"burst_open": True, "bursts": True}
    drives = [
        drive("vda", error=ERROR, binding=["iops_total"]),
        drive("vdb", **over, binding=["iops_total"]),
        drive("vdc", binding=["iops_total"], burst_open=True),
        drive("vdd", **over),
        drive("vde"),
    ]
    now = Picture.of([vm(*drives)], [])
    assert [now.state(one) for one in drives] == ["error", "bursts", "held", "bursts", "-"]
    assert now.worst(drives) == "error"
    assert now.worst(drives[1:3]) == "bursts"
    assert now.worst([]) == "-"
    broken = Picture.of([vm(drive(), policy_error=ERROR)], [])
    assert broken.state(broken.drives[0]) == "error"


def test_the_state_is_sorted_by_how_bad_it_is() -> None:
    column = DRIVES.sort_column(STATE)
    now = Picture.of([vm(drive("vda"), drive("vdb", error=ERROR))], [])
    idle, wrong = (column.value(row) for row in DRIVES.rows(now))
    assert isinstance(idle, int)
    assert isinstance(wrong, int)
    assert wrong > idle
