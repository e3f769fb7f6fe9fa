"""/metrics beside everything else that the agent does."""

import asyncio

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import State, StorageState
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import FleetRefused, IokeelError
from iokeel.host.disk_counters import Pressure
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.metrics.table import METRICS
from iokeel.report.records import BudgetInFleet, ErrorReport, FleetBudgetReport, FleetSnapshot
from iokeel.report.snapshot import Known, Snapshot, snapshot_of


def budget(
    name: str, *, held_iops: int | None = 1000, error: ErrorReport | None = None
) -> BudgetInFleet:
    report = FleetBudgetReport(
        name=name, set_iops=4000, limit_iops=4000, allowed_iops=1000, floor_iops=0,
        held_iops=held_iops, stale_s=1.0, charges={}, silent=[], coordinator="hv1", error=error,
    )  # fmt: skip
    return BudgetInFleet(report, 1000, {})


async def test_the_event_loop_has_a_turn_after_each_metric() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await Metrics().text(Snapshot({}, {}, {}, {}, 0))
    beside.cancel()
    assert turns >= len(METRICS)


async def test_pressure_is_that_of_the_snapshot() -> None:
    text = (
        await Metrics().text(Snapshot({}, {}, {}, {}, 0, pressure=Pressure(0.25, 0.125)))
    ).decode()
    lines = [line for line in text.splitlines() if line.startswith("iokeel_host_io_pressure_ratio")]
    assert lines == [
        'iokeel_host_io_pressure_ratio{kind="some"} 0.25',
        'iokeel_host_io_pressure_ratio{kind="full"} 0.125',
    ]


async def test_drives_that_are_held_to_nothing_are_held_to_infinity() -> None:
    """Or a sum over hosts would leave them out, and be within the limit."""
    budgets = {"acme": budget("acme", held_iops=None)}
    fleet = FleetSnapshot("hv1", None, 1, 0, tenants=budgets, storages=budgets)
    text = (await Metrics().text(Snapshot({}, {}, {}, {}, 0, fleet=fleet))).decode()
    assert [line for line in text.splitlines() if "held_iops{" in line] == [
        'iokeel_fleet_tenant_held_iops{tenant="acme"} +Inf',
        'iokeel_fleet_storage_held_iops{storage="acme"} +Inf',
    ]


@pytest.mark.parametrize(("error", "count"), [(None, 1), (FleetRefused("etcd", "gone"), 0)])
async def test_a_host_that_etcd_has_lost_coordinates_nothing(
    error: IokeelError | None, count: int
) -> None:
    """Or it would hide a budget that has no coordinator from an alert on their number."""
    budgets = {"acme": budget("acme")}
    fleet = FleetSnapshot("hv1", error, 1, 0, tenants=budgets, storages=budgets)
    lines = (await Metrics().text(Snapshot({}, {}, {}, {}, 0, fleet=fleet))).decode().splitlines()
    assert f"iokeel_fleet_coordinated_tenants {count}.0" in lines
    assert f"iokeel_fleet_coordinated_storages {count}.0" in lines


async def test_budgets_whose_steps_are_refused_are_counted() -> None:
    full = ErrorReport.of(FleetRefused("http://etcd1:2379", "etcd says 'space exceeded'"))
    tenants = {"acme": budget("acme", error=full), "umbra": budget("umbra")}
    storages = {"san": budget("san", error=full)}
    fleet = FleetSnapshot("hv1", None, 1, 0, tenants=tenants, storages=storages)
    text = (await Metrics().text(Snapshot({}, {}, {}, {}, 0, fleet=fleet))).decode()
    assert "iokeel_fleet_refused_budgets 2.0" in text.splitlines()


async def test_a_name_that_is_no_text_leaves_the_others_their_metrics() -> None:
    """QEMU names drives and storages in JSON, which can write half of a surrogate pair."""
    state = State(storages={name: StorageState(StoragePolicy()) for name in ("rbd:\ud800", "sda")})
    known = Known(state, {}, {}, {}, {}, {}, 0)
    text = (await Metrics().text(snapshot_of(known))).decode()
    assert 'iokeel_storage_normalized_iops{storage="rbd:?"} 0.0' in text
    assert 'iokeel_storage_normalized_iops{storage="sda"} 0.0' in text


async def test_what_the_law_fails_on_is_counted_while_it_lasts() -> None:
    failures: dict[DriveId | str | None, Exception] = {DriveId("db1", "vda"): ValueError()}
    for count, state in ((1, State(failures=failures)), (0, State())):
        text = (await Metrics().text(snapshot_of(Known(state, {}, {}, {}, {}, {}, 0)))).decode()
        assert f"iokeel_agent_set_aside {count}.0" in text
