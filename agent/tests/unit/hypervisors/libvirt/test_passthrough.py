"""Curves that are set past libvirt, on a QEMU that answers from a table."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import libvirt
import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_CURVE
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt import passthrough
from iokeel.hypervisors.libvirt.passthrough import (
    QueryRefused,
    ask_abilities,
    put_patched,
    query_blocks,
    read_groups,
    read_limits,
)
from iokeel.hypervisors.qemu.drives import QmpDrive
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.words.log_lines import Sparing
from testing.hypervisors.abilities import PATCHED, TODAYS
from testing.hypervisors.libvirt_error import refusal
from testing.hypervisors.qmp_server import qdev

VDA = DriveId("db1", "vda")
DISK = Disk("vda", "/a.qcow2", alias="virtio-disk0")
EXACT = ThrottleLimits(iops_total=1000, cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE)
POINTS = [{"size": size, "cost": cost} for size, cost in DEFAULT_CURVE.points]


class Qemu:
    """The monitor of a running domain, as libvirt passes commands to it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: str | None = None  # to all that sets limits
        self.limits: dict[str, object] = {}
        self.objects: dict[str, dict[str, int]] = {}
        self.groups = {"virtio-disk0": "drive-virtio-disk0", "virtio-disk1": "other"}

    def command(self, handle: object, text: str, flags: int) -> str:
        request = json.loads(text)
        self.asked.append(request)
        arguments = request.get("arguments", {})
        match request["execute"]:
            case "query-block":
                blocks = [
                    {
                        "device": "",
                        "qdev": qdev(alias),
                        "inserted": {"file": "/a", "group": group} | self.limits,
                    }
                    for alias, group in self.groups.items()
                ]
                return json.dumps({"return": blocks})
            case "qom-get":
                found = self.objects.get(arguments["path"].removeprefix("/objects/"), {})
                return json.dumps({"return": found})
            case "block_set_io_throttle" | "qom-set" if self.answer is not None:
                return self.answer
            case "block_set_io_throttle" if arguments["id"] not in map(qdev, self.groups):
                error = {"class": "DeviceNotFound", "desc": "Device not found"}
                return json.dumps({"error": error})
        return json.dumps({"return": {}})

    def put(
        self,
        limits: ThrottleLimits,
        group: str | None = None,
        reached: QmpDrive | None = None,
        abilities: Abilities = PATCHED,
    ) -> QmpDrive | None:
        """Have limits put in force, and forget the commands before."""
        self.asked.clear()
        return put_patched(None, VDA, DISK, group, limits, abilities, reached)

    def commands(self) -> list[str]:
        return [request["execute"] for request in self.asked]


@pytest.fixture
def qemu(monkeypatch: pytest.MonkeyPatch) -> Qemu:
    made = Qemu()
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", made.command)
    return made


def test_a_drive_is_looked_for_once(qemu: Qemu) -> None:
    reached = qemu.put(EXACT)
    assert qemu.commands() == ["query-block", "block_set_io_throttle"]
    arguments = qemu.asked[-1]["arguments"]
    assert (arguments["id"], arguments["iops"]) == (qdev("virtio-disk0"), 1000)
    assert arguments["cost-read"] == arguments["cost-write"] == POINTS
    assert "group" not in arguments, "it stays in the group that it is in"
    assert qemu.put(EXACT, reached=reached) == reached
    assert qemu.commands() == ["block_set_io_throttle"]


def test_a_curve_goes_to_the_object_of_a_throttlefilter_without_a_look(qemu: Qemu) -> None:
    qemu.put(EXACT, group="limit0")
    assert qemu.commands() == ["qom-set"]
    arguments = qemu.asked[-1]["arguments"]
    assert arguments["path"] == "/objects/throttle-limit0"
    assert (arguments["value"]["iops-total"], arguments["value"]["cost-read"]) == (1000, POINTS)


def test_a_drive_that_shares_its_group_gets_no_curve(qemu: Qemu) -> None:
    qemu.groups["virtio-disk1"] = qemu.groups["virtio-disk0"]
    with pytest.raises(LimitsRejected, match="no throttle group of its own"):
        qemu.put(EXACT)
    assert qemu.put(EXACT._replace(cost_read=None, cost_write=None)) is None
    assert "block_set_io_throttle" not in qemu.commands()


def test_a_drive_without_limits_has_no_curve_to_remove(qemu: Qemu) -> None:
    assert qemu.put(UNLIMITED) is None
    assert qemu.commands() == []


def test_a_drive_that_is_another_device_by_now_is_refused_in_qemus_words(qemu: Qemu) -> None:
    reached = qemu.put(EXACT)
    del qemu.groups["virtio-disk0"]
    with pytest.raises(LimitsRejected, match="took no cost curve: Device not found") as refused:
        qemu.put(EXACT, reached=reached)
    assert refused.value.said == "Device not found"


@pytest.mark.parametrize("group", [None, "limit0"])
@pytest.mark.parametrize(
    "answer", ["", "5", "[]", '"error"', '{"error": 5}', '{"error": {}}', "[" * 100_000]
)
def test_an_answer_that_makes_no_sense_is_a_refusal(
    qemu: Qemu, answer: str, group: str | None
) -> None:
    qemu.answer = answer
    with pytest.raises(LimitsRejected, match="took no cost curve: its answer makes no sense"):
        qemu.put(EXACT, group=group)


def test_a_refusal_is_told_in_one_line(qemu: Qemu) -> None:
    qemu.answer = json.dumps({"error": {"class": "GenericError", "desc": "no\nERROR forged"}})
    with pytest.raises(LimitsRejected) as refused:
        qemu.put(EXACT)
    assert str(refused.value).isprintable()


def test_only_what_a_qemu_knows_is_sent(qemu: Qemu) -> None:
    qemu.put(EXACT, abilities=PATCHED._replace(splits=False))
    arguments = qemu.asked[-1]["arguments"]
    assert "split-size" not in arguments
    assert arguments["idle-credit-ms"] == 100


@pytest.mark.parametrize("group", [None, "limit0"])
def test_todays_patches_take_all_that_libvirt_lacks_in_one_member(
    qemu: Qemu, group: str | None
) -> None:
    qemu.put(EXACT._replace(max_in_flight=2.5, latency=True), group, abilities=TODAYS)
    arguments = qemu.asked[-1]["arguments"]
    values = arguments if group is None else arguments["value"]
    extra = values["__iokeel_extra"]
    assert (extra["cost-read"], extra["max-in-flight"], extra["latency"]) == (POINTS, 2.5, True)
    assert not extra.keys() & values.keys()


@pytest.mark.parametrize(
    ("abilities", "command"),
    [(PATCHED, "query-throttle-groups"), (TODAYS, "__iokeel_query-throttle-groups")],
)
def test_groups_are_asked_for_in_the_words_of_the_qemu(
    qemu: Qemu, abilities: Abilities, command: str
) -> None:
    read_groups(Handle(), DomainXml("db1", (DISK,), {}), abilities)
    assert qemu.commands() == [command]


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def command(*_: object) -> str:
        raise refusal(code)

    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", command)


class Handle:
    def name(self) -> str:
        return "db1"


def test_a_libvirt_that_passes_nothing_on_has_stock_qemus(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, libvirt.VIR_ERR_NO_SUPPORT)
    assert ask_abilities(Handle()) == STOCK


def test_a_guest_that_is_busy_does_not_count_as_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose snapshot is being taken, which would be stock until libvirtd ends."""
    refuse(monkeypatch, libvirt.VIR_ERR_OPERATION_TIMEOUT)
    with pytest.raises(libvirt.libvirtError):
        ask_abilities(Handle())


@pytest.mark.parametrize(
    ("answer", "abilities"),
    [
        ('{"error": {"class": "CommandNotFound", "desc": "no such command"}}', STOCK),
        ('{"error": {"class": "GenericError", "desc": "out of memory"}}', None),
        ('{"return": [{"name": 5}]}', None),
        ('{"return": [', None),
        ("{}", None),
    ],
)
def test_a_qemu_is_stock_only_if_it_says_so(
    monkeypatch: pytest.MonkeyPatch, answer: str, abilities: Abilities | None
) -> None:
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", lambda *_: answer)
    assert ask_abilities(Handle()) == abilities


def told(xml: DomainXml) -> dict[str, ThrottleLimits | None]:
    """Return the limits that QEMU tells; none if libvirt passes no commands on."""
    blocks = query_blocks(None, xml.name)
    return {} if blocks is None else read_limits(None, xml, blocks)


def test_limits_of_a_throttle_group_that_is_a_disks_own_are_read_from_its_object(
    qemu: Qemu,
) -> None:
    own = Disk("vda", throttle_groups=("both", "limit0"), alias="virtio-disk0")
    shared = Disk("vdb", throttle_groups=("both",), alias="virtio-disk1")
    qemu.objects["throttle-limit0"] = {"iops-total": 50, "iops-size": 4096, "bps-total": 0}
    limits = read_limits(None, DomainXml("db1", (own, shared)), [])
    assert limits == {"vda": ThrottleLimits(iops_total=50, iops_size=4096)}
    assert qemu.commands() == ["qom-get"]


def test_limits_of_all_disks_that_iotune_limits_are_read_by_one_question(qemu: Qemu) -> None:
    grouped = Disk("vdc", throttle_groups=("limit0",), alias="virtio-disk2")
    unplugged = Disk("vdd", alias="virtio-disk3")
    xml = DomainXml("db1", (DISK, Disk("vdb", alias="virtio-disk1"), grouped, unplugged))
    qemu.groups["virtio-disk2"] = "throttle-limit0"
    qemu.limits = {"iops": 50, "iops_max": 0, "bps_rd": 9, "iops_size": 4096}
    limits = ThrottleLimits(iops_total=50, bps_read=9, iops_size=4096)
    assert told(xml) == {"vda": limits, "vdb": limits}, "the group tells nothing"
    assert qemu.commands() == ["query-block", "qom-get"]
    qemu.limits = {"iops": -5}
    assert told(xml) == {"vda": None, "vdb": None}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (r'{"error": {"class": "GenericError", "desc": "not\nnow"}}', r"not\nnow"),
        ('{"return": [{"inserted": {"iops": "50"}}]}', "its answer makes no sense"),
        ("{}", "its answer makes no sense"),
    ],
)
def test_a_qemu_that_refuses_to_tell_its_limits_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, answer: str, said: str
) -> None:
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", lambda *_: answer)
    with pytest.raises(QueryRefused) as caught:
        told(DomainXml("db1", (DISK,)))
    assert str(caught.value) == (
        f"db1: query-block: {said}; limits are taken to be those that libvirt was told last; see"
        " QEMU's own log"
    )


@pytest.mark.parametrize(
    "reply",
    [
        '{"return":[' + ",".join(["{}"] * 3_300_000) + "]}",  # 9 MiB, took 1.1 GiB and 5.7 s
        '{"return":[' + ",".join(["{}"] * 600_000) + "]}",
        '{"return":[{"members":[' + ",".join(["{}"] * 600_000) + "]}]}",
    ],
    ids=["long", "entries", "members"],
)
def test_a_schema_that_no_qemu_has_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", lambda *_: reply)
    tracemalloc.start()
    try:
        assert ask_abilities(Handle()) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caplog.messages == ["db1: its QEMU's answer to query-qmp-schema makes no sense"]


@pytest.mark.parametrize("told", [{"cost": 1e155}, {"bytes": 2**63}, {"waiting": -1}])
def test_groups_whose_counts_no_qemu_has_are_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told: dict[str, object]
) -> None:
    counts: dict[str, object] = {
        "requests": 0, "bytes": 0, "cost": 0, "waited": 0, "wait-total-ns": 0, "waiting": 0,
        "sizes": [],
    }  # fmt: skip
    monkeypatch.setattr(passthrough, "_NONSENSE", Sparing(1, 3600.0))
    groups = [{"name": "a", "limits": {}, "members": [], "read": counts | told, "write": counts}]
    monkeypatch.setattr(
        "libvirt_qemu.qemuMonitorCommand", lambda *_: json.dumps({"return": groups})
    )
    for _ in range(2):
        assert read_groups(Handle(), DomainXml("db1", (DISK,), {}), None) is None
    (line,) = caplog.messages
    assert line == (
        "db1: its QEMU's answer to query-throttle-groups makes no sense, so it counts for nothing"
    )
