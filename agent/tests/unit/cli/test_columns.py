"""Sorting by columns, sums by tenant, and names that a terminal must not run."""

from __future__ import annotations

import pytest
from rich.console import Console

from iokeel.cli.cells import column_named, in_order, name_cell
from iokeel.cli.drive_tables import (
    SORTS,
    DrivesByVm,
    DrivesOneByOne,
    bound_by,
    drive_complaints,
    latency_s,
    wait_s,
    without_policy,
)
from iokeel.cli.options import out
from iokeel.cli.tables import TenantSums, tenants
from iokeel.errors import ConfigError
from iokeel.report.records import ErrorReport
from tests.unit.cli.reports import drive, vm

ERROR = ErrorReport(where="db1/vda", what="refused", mend="see the log")
MANY = [
    drive("vda", domain="b", rate=5.0, allowed=10.0),
    drive("vda", domain="A", rate=None, allowed=None, tenant=None),
    drive("vda", domain="c", rate=900.0, tenant="x"),
]


@pytest.mark.parametrize(
    ("word", "domains"),
    [
        ("rate", "cbA"),
        ("norm. iops", "cbA"),
        ("USED", "cbA"),
        ("allowed", "cbA"),
        ("vm", "Abc"),
        ("tenant", "bcA"),
    ],
)
def test_figures_are_sorted_from_the_largest_and_names_from_a(word: str, domains: str) -> None:
    found = in_order(MANY, column_named(word, SORTS))
    assert "".join(row.domain for row in found) == domains


def test_what_is_not_known_is_last_also_backwards() -> None:
    found = in_order(MANY, column_named("rate", SORTS), backwards=True)
    assert "".join(row.domain for row in found) == "bcA"
    found = in_order(MANY, column_named("vm", SORTS), backwards=True)
    assert "".join(row.domain for row in found) == "cbA"


def test_an_unknown_column_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'latncy' is not a column; did you mean 'latency'\?"):
        column_named("latncy", SORTS)


def test_means_over_reads_and_writes_weigh_requests() -> None:
    busy = drive(
        raw_read_iops=300.0, raw_write_iops=100.0, read_latency_s=0.001, write_latency_s=0.005,
        read_device_latency_s=0.001, write_device_latency_s=0.001,
    )  # fmt: skip
    assert latency_s(busy) == pytest.approx(0.002)
    assert wait_s(busy) == pytest.approx(0.001)
    reading = drive(raw_read_iops=300.0, raw_write_iops=0.0, read_latency_s=0.001)
    assert (latency_s(reading), wait_s(reading)) == (0.001, None)
    assert latency_s(drive()) is None


def test_tenants_are_summed() -> None:
    held = drive("vdc", rate=1000.0, binding=["iops_total"])
    wrong = drive("vdd", rate=None, error=ERROR, binding=["iops_total"])
    assert tenants([drive("vda", rate=100.0), held, wrong, *MANY]) == [
        TenantSums("acme", 2, 4, 1105.0, 3010.0, held=2, errors=1),
        TenantSums("x", 1, 1, 900.0, 1000.0, held=0, errors=0),
        TenantSums(None, 1, 1, None, None, held=0, errors=0),
    ]


def test_a_drive_with_an_error_is_still_bound_by_its_limits() -> None:
    assert bound_by(drive(binding=["bps_total"])) == "bps"
    assert bound_by(drive(binding=["bps_total"], error=ERROR)) == "bps, error"
    assert bound_by(drive(error=ERROR)) == "error"


NASTY = ("[red]db[/red]", "[/]", ":smile:", "\x1b[31mdb\x07", "a\nb", "\u202egpj.exe", "x\u2066y")


@pytest.mark.parametrize("name", NASTY)
def test_names_are_shown_and_never_run(name: str) -> None:
    shown = Console(width=200, markup=out._markup, emoji=out._emoji)
    reports = [vm(drive(name, domain=name), drive("vdb", domain=name))]
    for table in (DrivesByVm(reports), DrivesOneByOne(reports[0].drives)):
        with shown.capture() as captured:
            shown.print(table)
        lines = captured.get().splitlines()
        assert all(line.isprintable() for line in lines)
        expected = name if name.isprintable() else name.encode("unicode_escape").decode()
        assert lines[1].split()[:2] == [expected] * 2


def test_a_blank_at_the_end_of_a_name_is_seen() -> None:
    assert [name_cell(name) for name in ("db1 ", " db 1", "db1\u00a0")] == [
        "db1\\x20",
        "\\x20db 1",
        "db1\\xa0",
    ]


def test_only_complaints_about_the_drives_that_are_shown() -> None:
    reports = [vm(drive(error=ERROR)), vm(drive(domain="web"), policy_error=ERROR)]
    assert [*drive_complaints(reports, reports[0].drives)] == [f"error: {ERROR.error()}"]
    assert [*drive_complaints(reports, reports[1].drives)] == [f"policy error: {ERROR.error()}"]
    assert len([*drive_complaints(reports)]) == 2


def test_drives_without_a_policy_are_counted_and_their_vms_named() -> None:
    bare = vm(*(drive(each, domain="web", has_policy=False) for each in ("vda", "vdb")))
    in_part = vm(drive(has_policy=False), drive("vdb"))
    assert [*without_policy([bare, in_part])] == ["no policy: 3 of 4 drives, in web, db1"]
    assert [*without_policy([vm(drive())])] == []
