"""Limits of a libvirt drive on the patched QEMU itself, after each command that sets them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iokeel.core.enforce.envelope import limits_for, limits_for_any_size
from iokeel.core.enforce.pricing import exact_limits
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt.domain import put_limits
from iokeel.hypervisors.libvirt.limits import Fallback, fallback_for
from iokeel.hypervisors.qemu.limits import QemuAbilities, SchemaEntry
from iokeel.libvirt_xml.domain import Disk, from_libvirt
from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.monitored import Monitored
from testing.hypervisors.qmp_client import QmpError
from testing.lab.qemu import binaries

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
EXACT = exact_limits(DEFAULT_MODEL, 1000)
STOCK = limits_for(DEFAULT_MODEL, 1000)
BY_HAND = ThrottleLimits(iops_total=77)


class Handle:
    """A domain of libvirt's, which sends QEMU what libvirt does: the fields that it knows."""

    def __init__(self, qemu: Monitored) -> None:
        self.qemu = qemu
        self.seen: list[tuple[int, int, bool]] = []  # iops-total, iops-size, a curve
        self.told: list[ThrottleLimits] = []  # by libvirt's own calls

    def send(self, command: str, **arguments: Any) -> None:
        self.qemu.ask(command, **arguments)
        limits = [group["limits"] for group in throttle_groups(self.qemu.ask)]
        self.seen += [(x["iops-total"], x["iops-size"], "cost-read" in x) for x in limits]

    def _tell(self, values: dict[str, int]) -> None:
        limits = from_libvirt(values)
        assert limits is not None
        self.told.append(limits)

    def setThrottleGroup(self, group: str, values: dict[str, int], _flags: int) -> None:
        self._tell(values)
        limits = {"iops-total": values["total_iops_sec"], "iops-size": values["size_iops_sec"]}
        path = f"/objects/throttle-{group}"
        self.send("qom-set", path=path, property="limits", value=limits)

    def setBlockIoTune(self, target: str, values: dict[str, int], _flags: int) -> None:
        self._tell(values)
        rest = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
        if values["size_iops_sec"]:  # otherwise libvirt leaves it out
            rest["iops_size"] = values["size_iops_sec"]
        name = f"/machine/peripheral/{target}/virtio-backend"
        self.send("block_set_io_throttle", id=name, iops=values["total_iops_sec"], **rest)

    def command(self, _handle: object, text: str, _flags: int) -> str:
        request = json.loads(text)
        try:
            if request["execute"] == "query-block":
                return json.dumps({"return": self.qemu.ask("query-block")})
            self.send(request["execute"], **request["arguments"])
        except QmpError as error:
            return json.dumps({"error": {"desc": str(error)}})
        return json.dumps({"return": {}})


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """A domain with a patched QEMU: vda has limits of its own, vdb a throttlefilter."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        folder = Path(name)
        (folder / "a").write_bytes(bytes(1 << 20))
        command: list[str | Path] = [
            *(binaries() / "qemu-system-x86_64", "-L", "/usr/share/qemu"),
            *("-L", "/usr/share/seabios", "-M", "q35,accel=tcg", "-nodefaults"),
            *("-display", "none", "-S", "-m", "32"),
            *("-blockdev", f"file,node-name=fa,filename={folder}/a"),
            *("-device", "virtio-blk-pci,drive=fa,id=vda"),
            *("-object", "throttle-group,id=throttle-limit0"),
        ]
        qemu = Monitored(folder, command, "db1")
        made = Handle(qemu)
        monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", made.command)
        yield made
        qemu.end()


def put(
    handle: Handle, group: str | None, limits: ThrottleLimits, before: Fallback | None = None
) -> Fallback | None:
    """Put limits in force as the source does. before: the fallback as last returned from here."""
    target = "vda" if group is None else "vdb"
    disk = Disk(target, alias=target)
    fallback = fallback_for(limits, before) if limits.cost_read is not None else None
    new = None if fallback is None or fallback is before else fallback.limits
    schema = msgspec.convert(handle.qemu.ask("query-qmp-schema"), list[SchemaEntry])
    abilities = QemuAbilities.of(schema).throttle
    put_limits(handle, DriveId("db1", target), disk, group, limits, abilities, None, new)
    return fallback


@pytest.mark.parametrize("group", [None, "limit0"])
@pytest.mark.parametrize("back", [UNLIMITED, BY_HAND, STOCK])
def test_a_curve_comes_and_goes_with_the_limits_that_need_it(
    handle: Handle, group: str | None, back: ThrottleLimits
) -> None:
    fallback = put(handle, group, EXACT)
    put(handle, group, EXACT._replace(iops_total=500), fallback)
    put(handle, group, STOCK)
    put(handle, group, EXACT)
    needs_curve = {1000, 500}
    assert needs_curve <= {iops for iops, _, _ in handle.seen}
    assert all(curve for iops, _, curve in handle.seen if iops in needs_curve)
    put(handle, group, back)
    left = [group["limits"] for group in throttle_groups(handle.qemu.ask)]
    assert [(x["iops-total"], x.get("cost-read", [])) for x in left if x["iops-total"]] == [
        (back.iops_total, []) for _ in range(1) if back.iops_total
    ]


@pytest.mark.parametrize("group", [None, "limit0"])
def test_libvirt_is_told_limits_that_hold_without_a_curve(
    handle: Handle, group: str | None
) -> None:
    fallback = None
    for rate, tells in ((1000, 1), (2000, 1), (2001, 2), (1500, 3), (3000, 3), (1499, 4)):
        fallback = put(handle, group, EXACT._replace(iops_total=rate), fallback)
        assert len(handle.told) == tells
        assert handle.seen[-1] == (rate, 0, True)
        libvirts = handle.told[-1]
        assert libvirts.iops_total is not None
        for size in (512, 4096, 8192, 65536, 1 << 20, 1 << 24):
            units = max(1.0, size / (libvirts.iops_size or size))
            assert libvirts.iops_total / units * DEFAULT_MODEL.read.cost(size) <= 1.001 * rate


@pytest.mark.parametrize("group", [None, "limit0"])
def test_a_curve_that_qemu_refuses_leaves_limits_that_need_none(
    handle: Handle, group: str | None
) -> None:
    put(handle, group, STOCK)
    with pytest.raises(LimitsRejected, match="took no cost curve"):
        put(handle, group, EXACT._replace(split_size=5000))
    held = limits_for_any_size(DEFAULT_MODEL, 1000)
    assert handle.seen[-1] == (held.iops_total, held.iops_size, False)
    assert all(size and not curve for iops, size, curve in handle.seen if iops)
