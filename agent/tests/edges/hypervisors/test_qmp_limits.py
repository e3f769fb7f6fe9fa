"""Limits by QMP: set, refused, lost, and found again."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import UNKNOWN, DomainPolicy
from iokeel.errors import ConnectionLost, DriveGone, LimitsRejected
from iokeel.hypervisors.qmp import monitor
from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors.qmp_server import QmpServer, error
from testing.waiting import until
from tests.edges.hypervisors.sources import GOLD, PATIENCE_S, VDA, lines, running, vm

# QAPI's BlockIOThrottle (qapi/block-core.json), but for `device` and `group`.
BLOCK_IO_THROTTLE = """
    id bps bps_rd bps_wr iops iops_rd iops_wr
    bps_max bps_rd_max bps_wr_max iops_max iops_rd_max iops_wr_max
    bps_max_length bps_rd_max_length bps_wr_max_length
    iops_max_length iops_rd_max_length iops_wr_max_length iops_size
"""
# QAPI's ThrottleLimits.
THROTTLE_LIMITS = """
    iops-total iops-total-max iops-total-max-length iops-read iops-read-max iops-read-max-length
    iops-write iops-write-max iops-write-max-length bps-total bps-total-max bps-total-max-length
    bps-read bps-read-max bps-read-max-length bps-write bps-write-max bps-write-max-length
    iops-size
"""


async def test_all_fields_are_sent_zeros_included(source: QmpSource, server: QmpServer) -> None:
    limits = ThrottleLimits(bps_total=10, iops_total=5, iops_total_max=9, iops_total_max_length=3,
                            iops_size=4096)  # fmt: skip
    await source.set_limits(VDA, limits, PATIENCE_S)
    arguments = server.asked[-1]["arguments"]
    assert set(arguments) == set(BLOCK_IO_THROTTLE.split())
    assert {name: value for name, value in arguments.items() if value not in (0, 1)} == {
        "id": "/machine/peripheral/vda/virtio-backend",
        "bps": 10, "iops": 5, "iops_max": 9, "iops_max_length": 3, "iops_size": 4096,
    }  # fmt: skip
    assert source.vms()["db1"].drives["vda"].in_force == limits


async def test_a_vm_over_qmp_is_not_libvirts(source: QmpSource) -> None:
    assert not source.vms()["db1"].from_libvirt


async def test_limits_below_a_throttle_filter_go_to_its_group_object(
    folder: Path,
) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    chain = {"driver": "raw", "file": {"driver": "throttle", "throttle-group": "t/g \u00e9",
             "file": {"driver": "file", "filename": "/images/b.raw"}}}  # fmt: skip
    server.plug("vda", "json:" + json.dumps(chain))
    server.objects["t/g \u00e9"] = {"iops-total": 70, "iops-total-max-length": 1}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        info = source.vms()["db1"].drives["vda"]
        assert (info.path, info.in_force) == ("/images/b.raw", ThrottleLimits(iops_total=70))
        await source.set_limits(VDA, ThrottleLimits(bps_read=3), PATIENCE_S)
        asked = server.asked[-1]
        assert asked["execute"] == "qom-set"
        assert asked["arguments"]["path"] == "/objects/t/g \u00e9"
        assert set(asked["arguments"]["value"]) == set(THROTTLE_LIMITS.split())
        assert server.objects["t/g \u00e9"]["bps-read"] == 3
        assert server.objects["t/g \u00e9"]["iops-total"] == 0


async def test_a_group_that_is_no_object_is_limited_above_it(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    chain = {"driver": "throttle", "throttle-group": "gone", "file": {"driver": "null-co"}}
    server.plug("vda", "json:" + json.dumps(chain), iops=5)
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=5)
        await source.set_limits(VDA, ThrottleLimits(bps_read=3), PATIENCE_S)
        assert server.asked[-1]["execute"] == "block_set_io_throttle"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DeviceNotFound", DriveGone),
        ("GenericError", LimitsRejected),
        ("CommandNotFound", LimitsRejected),
    ],
)
async def test_a_refusal_is_told_by_its_kind_and_changes_nothing_known(
    source: QmpSource, server: QmpServer, kind: str, expected: type[Exception]
) -> None:
    await source.set_limits(VDA, ThrottleLimits(iops_total=5), PATIENCE_S)
    server.answers["block_set_io_throttle"] = lambda r: error(r, kind, "the reason\nis this")
    with pytest.raises(expected, match="the reason is this"):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), PATIENCE_S)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=5)


async def test_limits_for_a_drive_or_vm_that_is_not_there_are_not_sent(
    source: QmpSource, server: QmpServer
) -> None:
    for drive in (DriveId("db1", "vdz"), DriveId("db2", "vda")):
        with pytest.raises(DriveGone):
            await source.set_limits(drive, UNLIMITED, PATIENCE_S)
    assert "block_set_io_throttle" not in server.commands()


async def test_after_a_timeout_limits_are_unknown_until_they_are_read_again(
    source: QmpSource, server: QmpServer
) -> None:
    late: list[dict[str, Any]] = []
    server.answers["block_set_io_throttle"] = lambda request: late.append(request)
    with pytest.raises(ConnectionLost, match=r"no answer to block_set_io_throttle in 0.1 s"):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), 0.1)
    assert source.vms()["db1"].drives["vda"].in_force is None
    await until(lambda: late)
    server.send(server.reply(late[0]))
    await until(lambda: source.vms()["db1"].drives["vda"].in_force is not None)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=6)


async def test_what_waits_for_a_hung_qemu_is_withdrawn_and_never_sent(
    source: QmpSource, server: QmpServer
) -> None:
    held: list[dict[str, Any]] = []
    server.answers["query-blockstats"] = lambda request: held.append(request)
    await source.sample(None, 0.05)
    await until(lambda: held)
    with pytest.raises(ConnectionLost):
        await source.set_limits(VDA, ThrottleLimits(iops_total=6), 0.05)
    server.send(server.reply(held[0]))
    del server.answers["query-blockstats"]
    await until(lambda: source.vms()["db1"].drives["vda"].in_force == UNLIMITED)
    assert "block_set_io_throttle" not in server.commands()


async def test_limits_set_while_drives_are_read_are_not_overwritten_by_the_older_reading(
    source: QmpSource, server: QmpServer
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    held: list[bytes] = []
    server.answers["query-block"] = lambda request: held.append(server.reply(request))
    server.event("BLOCK_JOB_COMPLETED")
    await until(lambda: held)
    setting = asyncio.create_task(source.set_limits(VDA, ThrottleLimits(iops_total=6), PATIENCE_S))
    await asyncio.sleep(0.05)
    del server.answers["query-block"]
    server.send(held[0])
    await setting
    await until(lambda: server.commands()[-1] == "query-block")
    await asyncio.sleep(0.1)
    assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=6)
    assert changed == []


@pytest.mark.parametrize("event", ["DEVICE_DELETED", "BLOCK_JOB_COMPLETED", "DEVICE_TRAY_MOVED"])
async def test_an_event_makes_drives_and_limits_be_read_again(
    source: QmpSource, server: QmpServer, event: str
) -> None:
    changed: list[str] = []
    source.on_change = changed.append
    server.drives["vda"]["inserted"] |= {"iops": 33}
    server.plug("vdb", "/images/b.qcow2")
    server.event(event)
    await until(lambda: changed)
    drives = source.vms()["db1"].drives
    assert drives["vda"].in_force == ThrottleLimits(iops_total=33)
    assert drives["vdb"].path == "/images/b.qcow2"


async def test_limits_that_change_without_an_event_are_read_at_a_later_tick(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "RECHECK_S", 0.01)
    server = await QmpServer(folder / "db1.qmp").start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        server.drives["vda"]["inserted"] |= {"iops": 77}
        async with asyncio.timeout(30):
            while source.vms()["db1"].drives["vda"].in_force != ThrottleLimits(iops_total=77):
                await source.sample(None, PATIENCE_S)
                await asyncio.sleep(0.01)
    await server.stop()


async def test_a_vm_alone_has_its_limits_read_every_few_ticks(
    source: QmpSource, server: QmpServer
) -> None:
    """Each is read again about once in 60 s, but with few VMs one of them each second or two."""
    server.drives["vda"]["inserted"] |= {"iops": 77}
    async with asyncio.timeout(monitor.RECHECK_S / 2):
        while source.vms()["db1"].drives["vda"].in_force != ThrottleLimits(iops_total=77):
            await source.sample(None, PATIENCE_S)
            await asyncio.sleep(0.1)


@pytest.mark.alone
async def test_a_storm_of_events_costs_a_query_a_second(
    source: QmpSource, server: QmpServer
) -> None:
    before, begun_s = server.commands().count("query-block"), time.monotonic()
    for _ in range(100):
        server.event("BLOCK_JOB_COMPLETED")
        await asyncio.sleep(0.01)
    found = server.commands().count("query-block") - before
    assert 1 <= found <= 2 + time.monotonic() - begun_s


async def test_a_failing_disk_costs_no_query(source: QmpSource, server: QmpServer) -> None:
    before = len(server.asked)
    for _ in range(10):
        server.event("BLOCK_IO_ERROR")
    await asyncio.sleep(0.2)
    assert len(server.asked) == before


@pytest.mark.parametrize("filters", [False, True])
async def test_drives_that_share_a_group_are_an_error_of_the_vm_and_are_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, filters: bool
) -> None:
    server = QmpServer(folder / "db1.qmp")
    chain = {"driver": "throttle", "throttle-group": "both", "file": {"driver": "null-co"}}
    for target in ("vdb", "vdc"):
        if filters:
            server.plug(target, "json:" + json.dumps(chain))
        else:
            server.plug(target, group="both", iops=7)
    server.objects["both"] = {}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        error = source.vms()["db1"].policy_error
        assert "VM db1, drive vdb: its throttle group holds vdc too" in str(error)
        assert lines(caplog) == [str(error)]
        server.asked.clear()
        with pytest.raises(LimitsRejected, match="give each drive a group of its own"):
            await source.set_limits(DriveId("db1", "vdc"), UNLIMITED, PATIENCE_S)
        assert server.asked == []
        await source.set_limits(VDA, UNLIMITED, PATIENCE_S)


async def test_of_two_filters_the_one_that_is_the_drives_own_is_set(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp", ())
    for target in ("vda", "vdb"):
        below = {"driver": "throttle", "throttle-group": target, "file": {"driver": "null-co"}}
        chain = {"driver": "throttle", "throttle-group": "both", "file": below}
        server.plug(target, "json:" + json.dumps(chain))
    server.objects |= {"both": {"iops-total": 1}, "vda": {"iops-total": 2}, "vdb": {}}
    await server.start()
    async with running(vm(server.path)) as source:
        await until(source.vms)
        assert source.vms()["db1"].policy_error is None
        assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=2)
        await source.set_limits(VDA, ThrottleLimits(iops_total=9), PATIENCE_S)
        assert server.objects["vda"]["iops-total"] == 9
        assert server.objects["both"] == {"iops-total": 1}


async def test_a_policy_for_a_drive_that_is_missing_is_told_and_the_others_are_served(
    server: QmpServer, caplog: pytest.LogCaptureFixture
) -> None:
    policy = DomainPolicy({"vda": GOLD, "vdx": GOLD})
    async with running(vm(server.path, policy=policy)) as source:
        await until(source.vms)
        info = source.vms()["db1"]
        assert info.policy is not None
        assert info.policy.for_drive("vda") == GOLD
        assert info.policy.for_drive("vdy") is UNKNOWN, "it may be the one that was meant"
        assert "the policy names vdx, but there is no such drive; correct" in str(info.policy_error)
        assert len(lines(caplog)) == 1


async def test_a_missing_drive_is_told_before_a_shared_group(folder: Path) -> None:
    server = QmpServer(folder / "db1.qmp", ["vda", "vdb", "vdc"])
    for target in ("vda", "vdb"):
        server.drives[target]["inserted"]["group"] = "both"
    await server.start()
    policy = DomainPolicy({"vda": GOLD, "vdx": GOLD})
    async with running(vm(server.path, policy=policy)) as source:
        await until(source.vms)
        info = source.vms()["db1"]
        assert "the policy names vdx" in str(info.policy_error)
        assert info.policy is not None
        assert info.policy.for_drive("vdc") is UNKNOWN, "it may be the one that was meant"


async def test_drives_that_qemu_does_not_throttle_are_told_and_the_others_are_served(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = QmpServer(folder / "db1.qmp", ["vda", "sda"])
    server.devices = {"sda": "scsi-block", "vdb": "vhost-user-blk-pci", "scsi": "virtio-scsi-pci"}
    await server.start()
    policy = DomainPolicy({"sda": GOLD, "vdb": GOLD}, GOLD)
    async with running(vm(server.path, policy=policy)) as source:
        await until(source.vms)
        assert [*source.vms()["db1"].drives] == ["vda"]
        assert {*await source.sample(None, PATIENCE_S)} == {VDA}
        with pytest.raises(DriveGone):
            await source.set_limits(DriveId("db1", "sda"), UNLIMITED, PATIENCE_S)
        source.announce("db1")
        await until(lambda: server.commands().count("query-block") == 2)
    assert lines(caplog) == [
        "VM db1: sda can't be limited (QEMU doesn't throttle SCSI passthrough), vdb can't be"
        " limited (the I/O of a vhost-user disk doesn't pass QEMU); attach another kind of disk if"
        " it has to be limited"
    ]
    await server.stop()
