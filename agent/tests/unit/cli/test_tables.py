"""Tables in terminals that are too narrow for all of their columns."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from rich.console import Console, RenderableType
from rich.table import Table

from iokeel.calibrate.fio import Job, JobResult
from iokeel.calibrate.measurement import Series
from iokeel.calibrate.result import Calibration
from iokeel.cli import fleet_tables
from iokeel.cli.calibration import series_table
from iokeel.cli.commands.curve import curve_table
from iokeel.cli.commands.history import history_table
from iokeel.cli.commands.policy import policy_table
from iokeel.cli.commands.recommend import drive_use_table, storage_use_table
from iokeel.cli.commands.report import section_table
from iokeel.cli.drive_tables import DrivesOneByOne
from iokeel.cli.tables import TenantSums, storage_table, tenant_table
from iokeel.core.fitting import Fit
from iokeel.core.values.curve import DEFAULT_CURVE, KIB
from iokeel.core.values.policy import MOST_IOPS, DomainPolicy, DrivePolicy
from iokeel.report.records import (
    DriveHistory,
    DriveUse,
    HistoryReport,
    RecommendReport,
    SectionReport,
    StorageUse,
    WeeksReport,
)
from iokeel.report.weeks import weeks_report
from iokeel.store.weeks import Hour
from tests.unit.cli.reports import drive, storage

LONG = "iscsi:filer1.example.com:3260/iqn.2001-01.com.example:vms"
HOST = "hypervisor-17.rack-12.example.com"
RATE = 123_456
NAMES = ("min", "max", "burst")


def calibration() -> Calibration:
    job = Job(True, False, 1024 * KIB, 1024, 10.0, 2.0)
    runs = (JobResult(job, RATE, 0.0123, 0.1234, (RATE,) * 20, 0.5),)
    fit = Fit(RATE, DEFAULT_CURVE, DEFAULT_CURVE)
    return Calibration([Series(job, runs, runs)], fit, {}, 1.0, [])


CELLS = {"VM": "instance-0000002a-of-somebody", "drive": "vda", "storage": LONG}
FIGURE = "99.9k"


def empty_report() -> WeeksReport:
    """The report of an hour in which nothing was."""
    return weeks_report([Hour(1)], 0, 2)


TABLES = {
    "storages": storage_table(
        [storage(LONG, usable_iops=RATE, room_ratio=0.85, queue=112.4, reserved_iops=RATE)]
    ),
    "tenants": tenant_table([TenantSums("acme-" * 9, 112, 124, RATE, 10 * RATE, 30, 12)]),
    "fleet hosts": fleet_tables.host_table(
        [fleet_tables.HostRow(
            host=HOST, is_there=False, tenants=112, amount_iops=RATE, charged_iops=RATE,
            storages=12, storages_amount_iops=RATE, storages_charged_iops=RATE, coordinates=12,
        )]
    ),
    "fleet tenants": fleet_tables.tenant_table(
        [fleet_tables.TenantRow(
            tenant="acme-" * 9, limit_iops=RATE, reservation_iops=RATE, weight=100, hosts=120,
            amount_iops=RATE, charged_iops=RATE, coordinator=HOST, silent=[], errors=[],
        )]
    ),
    "fleet storages": fleet_tables.storage_table(
        [fleet_tables.StorageRow(
            storage=LONG, capacity_iops=RATE, capacity_ratio=1.0, usable_iops=RATE,
            latency_target_s=0.0041, latency_s=0.0123, normalized_iops=RATE, hosts=120,
            amount_iops=RATE, charged_iops=RATE, coordinator=HOST, silent=[], errors=[],
        )]
    ),
    "fleet why": fleet_tables.share_table(
        [fleet_tables.ShareRow(
            host=HOST, reports=False, floor_iops=RATE, amount_iops=RATE, charged_iops=RATE,
            held_iops=RATE, wants_iops=10**18, reservation_iops=RATE, weight=10_000,
            answered_for=None,
        )]
    ),
    "policy": policy_table(
        DomainPolicy({"vda": DrivePolicy(RATE, RATE, RATE, 3600, 10_000, 2.5, True)}), ["vda"],
        {"vda": 119.9},
    ),
    "calibrate": series_table(calibration()),
    "curve": curve_table(
        [{"size_bytes": 1000 * KIB, "cost": 12345.6789,
          **{f"{name}_{what}": MOST_IOPS for name in NAMES for what in ("iops", "bps")}}],
        NAMES,
    ),
    "history": history_table(HistoryReport(ages_s=[598.0], drives=[DriveHistory(
        domain="db1", target="vda", series={
            "normalized_iops": [RATE], "allowed_iops": [RATE], "latency_s": [0.0123],
            "wait_s": [0.0123], "credit_s": [3600.0],
        },
    )])),
    "recommend": drive_use_table(RecommendReport(
        seconds=1e6, limits={f"class{number}": RATE for number in range(4)}, storages=[],
        drives=[DriveUse(
            domain="instance-0000002a-of-somebody", target="vda", uuid=None, storage="sda",
            tenant=None, seconds=1e6, until_s=1_700_000_000, p50_iops=RATE, p95_iops=RATE,
            p99_iops=RATE, peak_iops=RATE, limit_iops=RATE, observed=False, held_ratio=0.0321,
            would_hold={f"class{number}": 0.0321 for number in range(4)},
        )],
    )),
    "recommend storages": storage_use_table([StorageUse(
        storage="iscsi:files.example:vms", p50_iops=RATE, p95_iops=RATE, p99_iops=RATE,
        peak_iops=RATE, usable_iops=RATE, reserved_iops=RATE, more_iops=RATE, missed_s=3601.0,
    )]),
    **{f"report {number}": section_table(SectionReport(
        title="", finding="", headings=section.headings,
        rows=[[CELLS.get(heading, FIGURE) for heading in section.headings]],
    )) for number, section in enumerate(empty_report().sections)},
}  # fmt: skip


def lines(table: RenderableType, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [50, 80, 100, 200])
@pytest.mark.parametrize("name", TABLES)
def test_no_cell_is_broken(name: str, width: int) -> None:
    headings, row = lines(TABLES[name], width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in headings + row
    assert max(len(headings), len(row)) <= width


@pytest.mark.parametrize("name", TABLES)
def test_a_wide_terminal_has_every_column_and_whole_names(name: str) -> None:
    headings, row = lines(TABLES[name], 1000)
    assert headings.split() == " ".join(TABLES[name].headings).split()
    assert row.split() == " ".join(TABLES[name].rows[0]).split()


@pytest.mark.parametrize("width", [60, 200])
def test_one_table_is_built_whatever_layout_fits(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """To build one for each layout that is tried took seconds with thousands of drives."""
    table = Mock(wraps=Table)
    monkeypatch.setattr("iokeel.cli.cells.Table", table)
    lines(DrivesOneByOne([drive(f"vd{number}") for number in range(10)]), width)
    assert table.call_count == 1


def test_80_columns_show_what_a_storage_may_do_and_has_left() -> None:
    headings, row = lines(TABLES["storages"], 80)
    for telling in ("storage", "norm. iops", "usable", "ms / target", "queue", "room"):
        assert telling in headings
    assert row.split()[0] == "iscsi:f..ple:vms"
