"""What a source knows of its domains' QEMUs, and keeps when libvirtd comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import libvirt
import pytest

from iokeel.config.load import parse
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_CURVE
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, LastGood
from iokeel.core.values.state import DriveState, Finding, Sent, Verdict
from iokeel.errors import ConnectionLost, LimitsRejected, PolicyError
from iokeel.host.process import Process, process
from iokeel.hypervisors.libvirt.calls import NoAnswer
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.hypervisors.source import DriveInfo
from iokeel.libvirt_xml.domain import LIBVIRT_NAMES
from testing.hypervisors.abilities import PATCHED
from testing.hypervisors.iotune import inserted, iotune
from testing.hypervisors.libvirt_error import refusal
from testing.hypervisors.qmp_server import qdev
from testing.waiting import until

CURVES = Abilities(cost_curve=True)
VDA = DriveId("db1", "vda")
ANY_QEMU = ThrottleLimits(iops_total=300, iops_size=4096)
EXACT = ThrottleLimits(iops_total=300, cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE)
POINTS = [{"size": size, "cost": cost} for size, cost in DEFAULT_CURVE.points]
CURVES_IN_FORCE = {"cost-read": POINTS, "cost-write": POINTS}
COUNTED = ("requests", "bytes", "cost", "waited", "wait-total-ns", "waiting")
NOTHING = {**dict.fromkeys(COUNTED, 0), "sizes": []}
_CALL_TIMEOUT_S = "iokeel.hypervisors.libvirt.source._CALL_TIMEOUT_S"
_HANG_S = 120.0  # longer than any wait for what doesn't hang
XML = """
<domain>
  <name>db1</name>
  <metadata>
    <policy xmlns="urn:iokeel:policy:1"><drive target="vda" limit="300"/></policy>
  </metadata>
  <devices><disk><target dev="vda"/><alias name="vda"/></disk></devices>
</domain>
"""
STATS = (
    *("rd_operations", "rd_bytes", "wr_operations", "wr_bytes"),
    *("rd_total_time_ns", "wr_total_time_ns"),
)
WITH_ARGUMENTS = XML.replace(
    "</domain>",
    "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'/></domain>",
)
DISKLESS = re.sub("<disk>.*</disk>", "", XML)
VOLUME = XML.replace("<disk>", '<disk type="volume"><source pool="nfs" volume="a"/>')


class Host:
    """libvirt's connection, its events and the handle of a domain; others have their own."""

    def __init__(self, name: str = "db1") -> None:
        self.title = name
        self.running = {name: self}
        self.listing: threading.Event | None = None  # a list of them comes only then
        self.lists = 0
        self.fault: Exception | None = None  # of the next list
        self.reading: threading.Event | None = None  # its XML comes only then
        self.process: Process | None = Process(7, 70)
        self.number = 1  # libvirt's, another one for each start
        self.refuses: int | None = None  # libvirt's number of an error
        self.abilities: Abilities | None = CURVES
        self.asked = 0
        self.questions: list[str] = []  # that its QEMU's monitor was sent
        self.passes_none_on = False
        self.refuses_to_tell = False  # what drives it has
        self.counts = True
        self.connected = False
        self.go_on: threading.Event | None = None  # an answer comes only then
        self.limits: list[dict[str, int]] = []  # libvirt's own
        self.tuned: dict[str, int] = {}  # QEMU's, in libvirt's words
        self.xml = XML.replace("db1", name)
        self.own_policy: str | None = None  # as libvirt tells it by itself
        self.pool: threading.Event | None = None  # its storage pool answers only then
        self.waits = False  # for the pool, or for its XML
        self.stopped = False  # its storage pool, which has no volumes then
        self.members = ["vda"]  # of its throttle group
        self.stats: dict[str, int] = {}
        self.hidden: list[str] = []  # drives that its XML lacks
        self.hidden_limits: dict[str, object] = {}
        self.sets: int | None = None  # the same for limits
        self.writes: int | None = None  # libvirt's number of an error; None: its metadata is taken
        self.operation = libvirt.VIR_DOMAIN_JOB_OPERATION_UNKNOWN

    def ask(self, _handle: object) -> Abilities | None:
        self.asked += 1
        if self.go_on is not None:
            self.go_on.wait(_HANG_S)
        if self.refuses is not None:
            raise refusal(self.refuses)
        return self.abilities

    # Events

    async def connect(self, _timeout_s: float) -> None:
        assert not self.connected, "nobody would end the connection before"
        self.connected = True
        self._lost = asyncio.Event()

    async def lost(self) -> None:
        await self._lost.wait()

    def disconnect(self) -> None:
        self.connected = False

    # The connection

    def listAllDomains(self, _flags: int) -> list[Host]:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        found = [*self.running.values()]
        self.lists += 1
        if self.listing is not None:
            self.listing.wait(_HANG_S)
        return found

    def lookupByName(self, name: str) -> Host:
        if name not in self.running:
            raise refusal(libvirt.VIR_ERR_NO_DOMAIN)
        return self.running[name]

    def close(self) -> None:
        pass

    # The domain

    def name(self) -> str:
        return self.title

    def UUIDString(self) -> str:
        return f"uuid of {self.title}"

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return self.number

    def XMLDesc(self, _flags: int) -> str:
        if self.reading is not None:
            self.waits = True
            self.reading.wait(_HANG_S)
        return self.xml

    def metadata(self, kind: int, namespace: str) -> str:
        assert kind == libvirt.VIR_DOMAIN_METADATA_ELEMENT
        if self.own_policy is None:
            raise refusal(libvirt.VIR_ERR_NO_DOMAIN_METADATA)
        assert namespace == "urn:iokeel:policy:1"
        return self.own_policy

    def setMetadata(self, kind: int, text: str | None, key: str, uri: str, flags: int) -> None:
        assert (kind, key, uri, flags) == (2, "iokeel-found", "urn:iokeel:found:1", 1)
        if self.writes is not None:
            raise refusal(self.writes)
        record = (text or "").replace("<found", f"<found xmlns='{uri}'")
        self.xml = re.sub("<found.*</found>", "", self.xml)
        self.xml = self.xml.replace("<metadata>", f"<metadata>{record}")

    # Its storage pool, and the volume in it

    def storagePoolLookupByName(self, _name: str) -> Host:
        if self.pool is not None:
            self.waits = True
            self.pool.wait(_HANG_S)
        return self

    def storageVolLookupByName(self, _name: str) -> Host:
        if self.stopped:
            raise refusal(libvirt.VIR_ERR_OPERATION_INVALID)
        return self

    def path(self) -> str:
        return "/nfs/a.raw"

    def jobStats(self) -> dict[str, int]:
        return {"operation": self.operation}

    def setBlockIoTune(self, _target: str, values: dict[str, int], _flags: int) -> None:
        if self.sets is not None:
            raise refusal(self.sets)
        self.tuned = {name: value for name, value in values.items() if value}
        self.limits.append(self.tuned)

    def getAllDomainStats(self, _kind: int, _flags: int) -> list[tuple[Host, dict[str, Any]]]:
        counters = ("rd.reqs", "rd.bytes", "wr.reqs", "wr.bytes")
        values = {f"block.0.{counter}": 0 for counter in counters if self.counts}
        return [(self, {"block.count": 1, "block.0.name": "vda", **values, **self.stats})]

    # Its QEMU's monitor

    def command(self, _handle: object, text: str, _flags: int) -> str:
        request = json.loads(text)
        self.questions.append(request["execute"])
        if self.passes_none_on:
            raise refusal(libvirt.VIR_ERR_OPERATION_UNSUPPORTED)
        match request["execute"]:
            case "query-block" if self.refuses_to_tell:
                return json.dumps({"error": {"class": "GenericError", "desc": "no"}})
            case "query-block":
                medium = {"file": "/a", "group": "vda"} | inserted(self.tuned)
                blocks: list[dict[str, Any]] = [{"device": "vda", "inserted": medium}]
                own = {"file": "/n"} | self.hidden_limits
                return json.dumps(
                    {"return": blocks + [{"qdev": q, "inserted": own} for q in self.hidden]}
                )
            case "query-blockstats":
                counted = [{"qdev": q, "stats": dict.fromkeys(STATS, 9)} for q in self.hidden]
                return json.dumps({"return": counted})
            case "block_set_io_throttle" if request["arguments"].get("id") in self.hidden:
                arguments = request["arguments"]
                self.hidden_limits = {"iops": arguments["iops"], "group": "own"}
            case "block_set_io_throttle":
                self.tuned = {"total_iops_sec": request["arguments"]["iops"]}
            case "query-throttle-groups":
                limits = {"iops-total": self.tuned.get("total_iops_sec"), **CURVES_IN_FORCE}
                members = [{"device": name} for name in self.members]
                group = {"name": "vda", "members": members, "limits": limits}
                found = [group | {"read": NOTHING, "write": NOTHING}] if self.tuned else []
                return json.dumps({"return": found})
        return json.dumps({"return": {}})

    # A run

    def after_libvirtd(self, change: Callable[[], object]) -> Abilities | None:
        """Return the abilities that a source goes by once it has found libvirtd again."""
        return asyncio.run(self._reconnect(change))

    async def _reconnect(self, change: Callable[[], object]) -> Abilities | None:
        source = LibvirtSource("qemu:///system", {}, {})
        follow: Coroutine[object, object, None] = source.run()
        running = asyncio.create_task(follow)
        await until(lambda: source.vms().get("db1") is not None)
        assert source.vms()["db1"].drives["vda"].abilities == CURVES
        change()
        before = source.reconnects
        self._lost.set()
        await until(lambda: source.reconnects > before and self.connected)
        await source.resync()
        running.cancel()
        return source.vms()["db1"].drives["vda"].abilities


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    package = "iokeel.hypervisors.libvirt"
    monkeypatch.setattr(_CALL_TIMEOUT_S, 60.0)
    monkeypatch.setattr("libvirt.open", lambda _uri: made)
    monkeypatch.setattr(f"{package}.source.Events", lambda *_: made)
    monkeypatch.setattr(f"{package}.source.guest", lambda _name, uuid: made.process)
    monkeypatch.setattr(f"{package}.source.ask_abilities", made.ask)
    monkeypatch.setattr(f"{package}.limits.ask_abilities", made.ask)
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", made.command)
    return made


def test_a_qemu_that_runs_on_is_not_asked_again(host: Host) -> None:
    timeout = libvirt.VIR_ERR_OPERATION_TIMEOUT
    assert host.after_libvirtd(lambda: setattr(host, "refuses", timeout)) == CURVES
    assert host.asked == 1


def test_another_qemu_with_the_same_number_is_asked(host: Host) -> None:
    def restart() -> None:
        host.process, host.abilities = Process(8, 80), STOCK

    assert host.after_libvirtd(restart) == STOCK
    assert host.asked == 2


def test_a_qemu_whose_process_is_not_known_is_asked(host: Host) -> None:
    host.process = None
    assert host.after_libvirtd(lambda: setattr(host, "abilities", STOCK)) == STOCK


async def test_a_qemu_is_not_taken_for_stock_because_a_connection_broke(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source._READ_AGAIN_S", 0.01)
    host.refuses = libvirt.VIR_ERR_RPC
    source = LibvirtSource("qemu:///system", {}, {})
    running = asyncio.create_task(source.run())
    await until(lambda: host.asked > 1)
    assert source.vms() == {}
    assert source.unread() == {"db1"}
    host.refuses = None
    await until(source.vms)
    assert source.vms()["db1"].drives["vda"].abilities == CURVES
    running.cancel()


async def test_it_connects_anew_if_libvirtd_does_not_list_its_domains(host: Host) -> None:
    host.fault = refusal(libvirt.VIR_ERR_RPC)
    async with following() as source:
        assert source.errors["connect"] == 1


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[LibvirtSource]:
    """A source that has read its domain."""
    async with followed(LibvirtSource("qemu:///system", {}, {})) as source:
        yield source


@contextlib.asynccontextmanager
async def followed(source: LibvirtSource) -> AsyncIterator[LibvirtSource]:
    """Run a source that has read its domain."""
    running = asyncio.create_task(source.run())
    try:
        await until(lambda: source.vms().get("db1") is not None)
        yield source
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    "error",
    [
        libvirt.VIR_ERR_OPERATION_DENIED,
        libvirt.VIR_ERR_OPERATION_INVALID,
        libvirt.VIR_ERR_OPERATION_TIMEOUT,
        libvirt.VIR_ERR_RPC,
    ],
)
async def test_a_guest_whose_record_cannot_be_written_is_held_and_has_it_once_it_can(
    host: Host, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    rules = parse(b'[[rules]]\nname = "a"\n[[rules.drives]]\nlimit = "platform"', "x").rules
    host.writes = error
    host.xml = re.sub("<policy.*</policy>", "", host.xml).replace(
        "<alias", f"{IOTUNE.format(700)}<alias"
    )
    source = LibvirtSource("qemu:///system", {}, {}, rules=rules)
    async with followed(source):
        policy = source.vms()["db1"].policy
        assert policy is not None
        assert policy.for_drive("vda") == DrivePolicy(limit=700)

        # Limits of ours are in force now, and libvirt tells of them.
        state = DriveState(sent=Sent(EXACT, found=ThrottleLimits(iops_total=700)))
        source.known_of = lambda drive, _: state if drive == VDA else None
        host.xml = host.xml.replace(">700<", ">300<")
        await source.resync()
        assert source.vms()["db1"].policy == policy
        told = [m for m in caplog.messages if "only this host knows them" in m]
        assert len(told) <= 1, "once an hour"

        host.writes = None
        await until(lambda: not source._calls.heard_of(["db1"]))
        await source.resync()
        await source.resync()
        assert 'total_iops_sec="700"' in host.xml
        assert source.vms()["db1"].policy == policy
        assert source.vms()["db1"].drives["vda"].found == ThrottleLimits(iops_total=700)


PLATFORM = parse(b'[[rules]]\nname = "a"\n[[rules.drives]]\nlimit = "platform"', "x").rules
CARRIED_OUT = Sent(ANY_QEMU, replaced=EXACT, found=ThrottleLimits(iops_total=700),
                   carried_out=ANY_QEMU)  # fmt: skip


@pytest.mark.parametrize(
    ("libvirts", "qemus", "sent", "adopted"),
    [
        (250, 250, CARRIED_OUT, 250),
        (250, 300, CARRIED_OUT, 700),  # as after a snapshot-revert
        (300, 250, CARRIED_OUT, 700),  # past libvirt
        (300, 300, CARRIED_OUT, 700),  # the agent's own
        (250, 250, CARRIED_OUT._replace(carried_out=None), 700),  # another agent's, perhaps
        (250, 250, CARRIED_OUT._replace(limits=ThrottleLimits(iops_total=250)), 700),
        (250, 250, CARRIED_OUT._replace(replaced=ThrottleLimits(iops_total=250)), 700),
        (0, 0, CARRIED_OUT, None),
    ],
)
async def test_what_a_platform_sets_at_run_time_is_the_new_figure_and_comes_on_record(
    host: Host, libvirts: int, qemus: int, sent: Sent, adopted: int | None
) -> None:
    host.xml = re.sub("<policy.*</policy>", "", host.xml)
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(700)}<alias")
    source = LibvirtSource("qemu:///system", {}, {}, rules=PLATFORM)
    async with followed(source):
        source.known_of = lambda *_: DriveState(sent=sent)
        host.xml = host.xml.replace(">700<", f">{libvirts}<")
        host.tuned = {"total_iops_sec": qemus} if qemus else {}
        for _ in range(3):
            await source.resync()
        policy = source.vms()["db1"].policy
        assert policy is not None
        assert policy.for_drive("vda") == DrivePolicy(limit=adopted)
        assert source.vms()["db1"].drives["vda"].found == ThrottleLimits(iops_total=adopted)


async def test_limits_of_an_order_that_failed_are_not_taken_for_the_platforms(
    host: Host,
) -> None:
    """It may be carried out late."""
    host.xml = re.sub("<policy.*</policy>", "", host.xml)
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(700)}<alias")
    source = LibvirtSource("qemu:///system", {}, {}, rules=PLATFORM)
    async with followed(source):
        source.known_of = lambda *_: DriveState(sent=CARRIED_OUT)
        late = ThrottleLimits(iops_total=250, iops_size=4096)
        host.sets = libvirt.VIR_ERR_OPERATION_FAILED
        with pytest.raises(LimitsRejected):
            await source.set_limits(VDA, late, 10)
        await until(lambda: not source._changes._stale)
        both = "<iotune><total_iops_sec>250</total_iops_sec><size_iops_sec>4096</size_iops_sec>"
        host.xml = re.sub("<iotune>.*<alias", f"{both}</iotune><alias", host.xml)
        host.tuned = {"total_iops_sec": 250, "size_iops_sec": 4096}
        await source.resync()
        policy = source.vms()["db1"].policy
        assert policy is not None
        assert policy.for_drive("vda") == DrivePolicy(limit=700)


async def test_what_a_platform_leaves_of_the_agents_limits_is_not_the_platforms(
    host: Host,
) -> None:
    """`virsh blkdeviotune --total-iops-sec` leaves bytes and the size of a request."""
    host.xml = re.sub("<policy.*</policy>", "", host.xml)
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(700)}<alias")
    source = LibvirtSource("qemu:///system", {}, {}, rules=PLATFORM)
    async with followed(source):
        source.known_of = lambda *_: DriveState(sent=CARRIED_OUT)
        both = "<iotune><total_iops_sec>250</total_iops_sec><size_iops_sec>4096</size_iops_sec>"
        host.xml = re.sub("<iotune>.*<alias", f"{both}</iotune><alias", host.xml)
        host.tuned = {"total_iops_sec": 250, "size_iops_sec": 4096}
        await source.resync()
        assert source.vms()["db1"].drives["vda"].found == ThrottleLimits(iops_total=250)


async def test_a_platforms_change_is_read_before_it_is_put_back(host: Host) -> None:
    host.xml = re.sub("<policy.*</policy>", "", host.xml)
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(700)}<alias")
    source = LibvirtSource("qemu:///system", {}, {}, rules=PLATFORM)
    async with followed(source):
        source.known_of = lambda *_: DriveState(sent=CARRIED_OUT)
        before = source.vms()["db1"].drives["vda"].in_force
        host.xml = host.xml.replace(">700<", ">250<")
        host.tuned = {"total_iops_sec": 250}
        event = {**dict.fromkeys(LIBVIRT_NAMES.values(), 0), "total_iops_sec": 250}
        source._limits.tuned(
            "db1", {f"blkdeviotune.{n}": v for n, v in event.items()} | {"blkdeviotune.disk": "vda"}
        )
        assert source.vms()["db1"].drives["vda"].in_force == before
        await until(lambda: source.vms()["db1"].drives["vda"].in_force != before)
        policy = source.vms()["db1"].policy
        assert policy is not None
        assert policy.for_drive("vda") == DrivePolicy(limit=250)


IOTUNE = "<iotune><total_iops_sec>{}</total_iops_sec></iotune>"
FOUND = ThrottleLimits(iops_total=700)
HELD = DriveState(sent=Sent(ANY_QEMU, found=FOUND))
FREE = DriveState(finding=Finding(Verdict.NO_POLICY))


async def test_the_record_has_what_drives_had_that_the_agent_holds_and_no_others(
    host: Host,
) -> None:
    """Limits by hand on others are nobody's to take back, wherever the guest goes."""
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(700)}<alias")
    async with following() as source:
        known: dict[DriveId, DriveState] = {}
        source.known_of = lambda drive, _: known.get(drive)
        await source.resync()
        assert "found" not in host.xml, "it may have no limits of the agent's yet"

        known[VDA] = HELD
        host.xml = host.xml.replace(">700<", ">300<")
        await source.resync()
        assert 'target="vda" total_iops_sec="700"' in host.xml

        known.clear()  # as after a migration: they are another agent's
        await source.resync()
        assert 'total_iops_sec="700"' in host.xml

        known[VDA] = FREE  # somebody has set others by hand since
        await source.resync()
        assert "found" not in host.xml


async def test_the_record_goes_once_limits_are_given_back(host: Host) -> None:
    host.xml = host.xml.replace("<alias", f"{IOTUNE.format(300)}<alias")
    async with following() as source:
        source.known_of = lambda *_: HELD
        await source.resync()
        await source.resync()
        assert 'total_iops_sec="700"' in host.xml
        host.xml = host.xml.replace(">300<", ">700<")
        await source.set_limits(VDA, FOUND, 10)
        await until(lambda: "found" not in host.xml)


async def test_first_limits_come_with_a_record(host: Host) -> None:
    async with following() as source:
        source.known_of = lambda *_: HELD
        await source.set_limits(VDA, ANY_QEMU, 10)
        await until(lambda: 'total_iops_sec="700"' in host.xml)


async def test_a_disk_of_a_held_group_has_what_the_group_had(host: Host) -> None:
    group = IOTUNE.format(300).replace("<iotune>", "<iotune><group_name>g</group_name>")
    both = f"{group}<alias name='vda'/></disk><disk><target dev='vdb'/>{group}</disk>"
    host.xml = re.sub("<alias.*</disk>", both, host.xml)
    async with following() as source:
        source.known_of = lambda drive, _: HELD if drive == VDA else FREE
        await source.resync()
        await source.resync()
        assert 'target="vdb" total_iops_sec="700"' in host.xml


NVME = DriveId("db1", "device[0]")


@pytest.fixture
def with_nvme(host: Host) -> Host:
    """The domain has a drive from QEMU's command line, too, and a class for all its drives."""
    host.abilities = STOCK
    host.hidden = ["/machine/peripheral-anon/device[0]"]
    host.xml = WITH_ARGUMENTS.replace("<policy ", '<policy class="bronze" ')
    return host


def of_classes() -> LibvirtSource:
    return LibvirtSource("qemu:///system", BUILTIN_CLASSES, {})


async def test_a_drive_from_the_command_line_is_held_and_counted(with_nvme: Host) -> None:
    async with followed(of_classes()) as source:
        vm = source.vms()["db1"]
        assert {*vm.drives} == {"vda", NVME.target}
        drive = vm.drives[NVME.target]
        assert (drive.path, drive.in_force, drive.abilities) == ("/n", UNLIMITED, STOCK)
        assert vm.policy is not None
        assert vm.policy.for_drive(NVME.target) == BUILTIN_CLASSES["bronze"]
        counted = (await source.sample(None, 30.0))[NVME]
        assert (counted.read_requests, counted.write_time_ns) == (9, 9)
        await source.set_limits(NVME, ANY_QEMU, 30.0)
        assert with_nvme.hidden_limits["iops"] == 300
        assert with_nvme.limits == [], "libvirt knows nothing of it"


async def test_one_that_the_policy_names_is_there_from_the_first_reading_on(
    with_nvme: Host, caplog: pytest.LogCaptureFixture
) -> None:
    with_nvme.xml = WITH_ARGUMENTS.replace('target="vda"', 'target="device[0]"')
    async with followed(of_classes()) as source:
        vm = source.vms()["db1"]
        assert vm.policy_error is None
        assert vm.policy == DomainPolicy({NVME.target: DrivePolicy(limit=300)})
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_qemu_that_names_others_at_each_look_keeps_those_that_were_known(
    with_nvme: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(of_classes()) as source:
        for look in range(20):
            with_nvme.hidden = [qdev(f"{look}-{number}") for number in range(200)]
            await source.resync()
        looks = {target.partition("-")[0] for target in source.vms()["db1"].drives}
        assert looks == {"vda", "4"}
        assert NVME not in await source.sample(None, 30.0)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert (
        line
        == "db1: its QEMU tells of more than 1024 new drives or files; those that were known stay"
    )


async def test_one_whose_policy_goes_can_be_given_back_its_limits(with_nvme: Host) -> None:
    async with followed(of_classes()) as source:
        with_nvme.xml = re.sub("<metadata>.*</metadata>", "", with_nvme.xml, flags=re.DOTALL)
        await source.resync()
        assert source.vms()["db1"].policy is None
        assert NVME.target in source.vms()["db1"].drives
        await source.set_limits(NVME, UNLIMITED, 30.0)
        assert with_nvme.hidden_limits["iops"] == 0


async def test_one_whose_policy_went_while_no_agent_ran_is_still_seen(with_nvme: Host) -> None:
    with_nvme.xml = re.sub("<metadata>.*</metadata>", "", with_nvme.xml, flags=re.DOTALL)
    last = {"db1": LastGood(DomainPolicy({}, DrivePolicy(limit=5)))}
    async with followed(LibvirtSource("qemu:///system", {}, last)) as source:
        assert NVME.target in source.vms()["db1"].drives


async def test_a_domain_that_never_had_a_policy_is_not_asked(with_nvme: Host) -> None:
    """Or it would be tainted (custom-monitor)."""
    with_nvme.xml = re.sub("<metadata>.*</metadata>", "", with_nvme.xml, flags=re.DOTALL)
    async with followed(of_classes()) as source:
        await source.sample(None, 30.0)
        assert {*source.vms()["db1"].drives} == {"vda"}
        assert with_nvme.questions == []


async def test_one_that_is_plugged_in_past_libvirt_is_found_later(with_nvme: Host) -> None:
    (path,), with_nvme.hidden = with_nvme.hidden, []
    async with followed(of_classes()) as source:
        assert {*source.vms()["db1"].drives} == {"vda"}
        with_nvme.hidden = [path]
        await source.resync()
        await until(lambda: NVME.target in source.vms()["db1"].drives)
        with_nvme.hidden = []
        await source.resync()
        await until(lambda: NVME.target not in source.vms()["db1"].drives)


async def test_its_lifted_limits_are_read_again_too(with_nvme: Host) -> None:
    async with followed(of_classes()) as source:
        await source.set_limits(NVME, ANY_QEMU, 30.0)
        with_nvme.hidden_limits = {"iops": 0}
        await source.sample(None, 30.0)
        await until(lambda: source.vms()["db1"].drives[NVME.target].in_force == UNLIMITED)


async def test_limits_that_were_set_past_libvirt_are_read_at_the_next_ticks(host: Host) -> None:
    """QEMU and libvirt tell nobody of `block_set_io_throttle` by HMP or over another monitor."""
    host.abilities = STOCK
    changed: list[str] = []
    async with following() as source:
        await until(lambda: source.vms()["db1"].drives["vda"].in_force == UNLIMITED)
        source.on_change = changed.append
        host.tuned = {"total_iops_sec": 77}
        await source.sample(None, 30.0)
        await until(lambda: changed)
        assert source.vms()["db1"].drives["vda"].in_force == ThrottleLimits(iops_total=77)


async def test_limits_that_are_as_known_cost_one_question_a_tick(host: Host) -> None:
    host.abilities = STOCK
    others = {f"web{number}": Host(f"web{number}") for number in range(3)}
    host.running |= others
    async with following() as source:
        await until(lambda: len(source.vms()) == 4)
        handles = (host, *others.values())
        listed = host.getAllDomainStats

        def stats(kind: int, flags: int) -> list[tuple[Host, dict[str, Any]]]:
            ((_, values),) = listed(kind, flags)
            return [(each, values) for each in handles]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(host, "getAllDomainStats", stats)
            host.questions.clear()
            for number in range(1, 9):
                await source.sample(None, 30.0)
                await until(lambda: len(host.questions) >= number)  # noqa: B023
        assert host.questions == ["query-block"] * 8


async def test_a_drive_has_the_images_beneath_its_own(host: Host) -> None:
    base = "<backingStore><source file='/b'/><backingStore/></backingStore>"
    host.xml = host.xml.replace("<disk>", f"<disk><source file='/a'/>{base}")
    async with following() as source:
        drive = source.vms()["db1"].drives["vda"]
        assert (drive.path, drive.beneath) == ("/a", ("/b",))


async def test_a_domain_that_writes_its_memory_is_told_until_it_goes_on_or_ends(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SAVE
    states = [dict(zip(("state.state", "state.reason"), paused, strict=True)), {}]

    async with following() as source:

        async def saving(state: dict[str, int]) -> list[str]:
            host.stats = state
            await source.sample(None, 30.0)
            return [*source.saving()]

        assert [await saving(state) for state in (*states, *states)] == [["db1"], [], ["db1"], []]
        assert await saving(states[0]) == ["db1"]
        monkeypatch.setattr(host, "getAllDomainStats", lambda *_: [])
        assert await saving({}) == ["db1"]
        host.running = {}
        await source.resync()
        assert not source.saving()


@contextlib.contextmanager
def hurried(host: Host) -> Iterator[pytest.MonkeyPatch]:
    """Let calls that follow the reading of an XML time out soon."""
    with pytest.MonkeyPatch.context() as patched:

        def process(_name: str, uuid: str | None) -> Process | None:
            patched.setattr(_CALL_TIMEOUT_S, 0.2)
            return host.process

        patched.setattr("iokeel.hypervisors.libvirt.source.guest", process)
        yield patched


def abilities_of(source: LibvirtSource) -> Abilities | None:
    return source.vms()["db1"].drives["vda"].abilities


async def test_a_question_that_libvirt_gives_up_is_asked_again_once_qemu_is_heard_of(
    host: Host,
) -> None:
    host.refuses = libvirt.VIR_ERR_OPERATION_TIMEOUT
    async with following() as source:
        assert abilities_of(source) is None
        with pytest.raises(NoAnswer):
            await source.set_limits(VDA, ANY_QEMU, 30.0)
        host.refuses = None
        assert VDA in await source.sample(None, 30.0)
        await until(lambda: abilities_of(source) == CURVES)
        assert host.asked == 2


async def test_a_question_that_hangs_is_asked_again_once_qemu_is_heard_of(
    host: Host,
) -> None:
    host.go_on = threading.Event()
    with hurried(host) as hurry:
        async with following() as source:
            hurry.undo()
            assert abilities_of(source) is None
            host.go_on.set()
            await source.sample(None, 30.0)
            await until(lambda: abilities_of(source) == CURVES)


@pytest.mark.parametrize("code", [libvirt.VIR_ERR_OPERATION_FAILED, None])
async def test_a_qemu_that_does_not_tell_gets_limits_that_hold_with_any(
    host: Host, code: int | None
) -> None:
    """As a new guest must, which nothing else limits."""
    host.refuses = code
    if code is None:  # an answer without sense
        host.abilities = None
    async with following() as source:
        assert abilities_of(source) is None
        await source.set_limits(VDA, ANY_QEMU, 30.0)
        assert host.limits == [{"total_iops_sec": 300, "size_iops_sec": 4096}]
        with pytest.raises(ConnectionLost, match="isn't known whether its QEMU has cost curves"):
            await source.set_limits(VDA, EXACT, 30.0)
        assert len(host.limits) == 1
        assert abilities_of(source) is None


async def test_a_qemu_that_tells_when_it_gets_its_limits_is_known_from_then_on(host: Host) -> None:
    host.refuses, host.abilities = libvirt.VIR_ERR_OPERATION_FAILED, STOCK
    async with following() as source:
        host.refuses = None
        await source.set_limits(VDA, ANY_QEMU, 30.0)
        await until(lambda: abilities_of(source) == STOCK)
        assert host.asked == 2


async def test_a_qemu_without_curves_is_not_sent_the_limits_of_one(host: Host) -> None:
    host.abilities = STOCK
    async with following() as source:
        with pytest.raises(LimitsRejected, match="has no cost curves"):
            await source.set_limits(VDA, EXACT, 30.0)
    assert host.limits == []


@pytest.mark.parametrize("abilities", [STOCK, PATCHED])
async def test_limits_of_a_domain_that_migrates_are_set_past_libvirt(
    host: Host, abilities: Abilities
) -> None:
    """libvirt would wait until that ends, for hours if storage is copied."""
    host.abilities = abilities
    host.operation = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
    limits = ANY_QEMU if abilities == STOCK else EXACT
    async with following() as source:
        await source.set_limits(VDA, limits, 30.0)
        assert host.limits == []
        assert host.tuned == {"total_iops_sec": limits.iops_total}
        assert source.vms()["db1"].drives["vda"].in_force == limits
        host.operation = libvirt.VIR_DOMAIN_JOB_OPERATION_UNKNOWN
        await source.set_limits(VDA, limits, 30.0)
    assert len(host.limits) == 1, "libvirt is told once it listens"


async def test_limits_are_read_by_one_question_whatever_the_number_of_disks(host: Host) -> None:
    disks = "".join(f'<disk><target dev="vd{i}"/><alias name="vd{i}"/></disk>' for i in range(300))
    host.xml = XML.replace("<devices>", f"<devices>{disks}")
    async with following() as source:
        assert len(source.vms()["db1"].drives) == 301
    assert host.questions == ["query-block"]


@pytest.mark.parametrize("passes_none_on", [True, False])
async def test_limits_that_were_set_past_libvirt_are_known_if_it_passes_questions_on(
    host: Host, passes_none_on: bool
) -> None:
    host.abilities, host.tuned, host.passes_none_on = STOCK, {"total_iops_sec": 77}, passes_none_on
    host.xml = XML.replace("<alias", f"{iotune({'total_iops_sec': 300})}<alias")
    async with following() as source:
        found = source.vms()["db1"].drives["vda"].in_force
    assert found == ThrottleLimits(iops_total=300 if passes_none_on else 77)


async def test_a_qemu_that_refuses_to_tell_its_limits_has_those_that_libvirt_was_told(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.abilities, host.refuses_to_tell = STOCK, True
    host.xml = XML.replace("<alias", f"{iotune({'total_iops_sec': 300})}<alias")
    async with following() as source:
        await source.resync()
        await source.resync()
        found = source.vms()["db1"].drives["vda"].in_force
    assert found == ThrottleLimits(iops_total=300)
    assert source.errors["refused"] == 3
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.partition(";")[0] for line in told] == ["db1: query-block: no"]


@pytest.mark.parametrize("has_policy", [True, False])
async def test_a_domain_whose_counters_do_not_come_is_told_once_and_counted_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_policy: bool
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.libvirt.changes.LATE_S", 0.0)
    host.counts = False
    if not has_policy:
        host.xml = re.sub("<metadata>.*</metadata>", "", XML, flags=re.DOTALL)
    async with following() as source:
        for _ in range(3):
            assert await source.sample(None, 60.0) == {}
        host.counts = True
        assert VDA in await source.sample(None, 60.0)
        assert source.errors["sample"] == (3 if has_policy else 0)
        host.counts = False
        assert await source.sample(None, 60.0) == {}
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == (2 if has_policy else 0)
    assert all("db1: no counters for 0 s, so its drives keep the limits" in line for line in told)


async def test_a_domain_without_a_policy_is_asked_nothing(host: Host) -> None:
    """A question of its QEMU's monitor would mark it as tainted."""
    tuned = f"{iotune({'total_iops_sec': 300})}<alias"
    host.xml = re.sub("<metadata>.*</metadata>", "", XML, flags=re.DOTALL).replace("<alias", tuned)
    async with following() as source:
        found = source.vms()["db1"].drives["vda"].in_force
    assert found == ThrottleLimits(iops_total=300)
    assert host.questions == []


async def test_a_group_that_was_read_before_somebody_set_limits_is_read_again(host: Host) -> None:
    host.abilities = STOCK
    async with following() as source:
        assert source.vms()["db1"].drives["vda"].group == ""
        group = "<iotune><total_iops_sec>7</total_iops_sec><group_name>b</group_name></iotune>"
        host.xml = XML.replace("<alias", f"{group}<alias")
        host.tuned, host.reading = {"total_iops_sec": 7}, threading.Event()
        changed = list[DriveInfo]()
        source.on_change = lambda name: changed.append(source.vms()[name].drives["vda"])
        reading = asyncio.create_task(source.resync())
        await until(lambda: host.waits)
        source._limits.tuned("db1", {"blkdeviotune.disk": "vda", "blkdeviotune.total_iops_sec": 7})
        host.reading.set()
        await reading
        await until(lambda: source.vms()["db1"].drives["vda"].group == "b")
    told = [(drive.group, drive.in_force) for drive in changed]
    assert told == [("b", ThrottleLimits(iops_total=7))]


async def test_nothing_is_kept_of_a_domain_that_has_gone(host: Host) -> None:
    host.abilities = PATCHED
    async with following() as source:
        source._limits.tuned("db1", {"blkdeviotune.disk": "vda", "blkdeviotune.total_iops_sec": 5})
        await source.set_limits(VDA, EXACT, 30.0)
        await source.sample(None, 30.0)
        assert _kept_of_db1(source) >= {  # until it is read again, what others set, too
            *("_domains", "_limits", "_reached", "_fallbacks", "_orders", "_tunings")
        }
        host.running.clear()
        await source.resync()
        await until(lambda: _kept_of_db1(source) == set())  # it may be read again just now


def _kept_of_db1(source: LibvirtSource) -> set[str]:
    return {name for name, value in vars(source._limits).items() if "db1" in repr(value)}


async def test_limits_of_a_group_that_disks_share_are_known_as_they_were_set(host: Host) -> None:
    host.abilities = PATCHED
    host.members = ["vda", "vdb"]
    async with following() as source:
        for rate in (290, 300):
            limits = ANY_QEMU._replace(iops_total=rate)
            await source.set_limits(VDA, limits, 30.0)
            assert VDA in await source.sample(None, 30.0)
            assert source.vms()["db1"].drives["vda"].in_force == limits
        host.members = ["vda"]
        await source.sample(None, 30.0)
        found = source.vms()["db1"].drives["vda"].in_force
        assert found is not None
        assert found.cost_read == DEFAULT_CURVE, "QEMU tells of its own group"


@pytest.mark.parametrize("seen", ["gone", "another", "by its groups"])
async def test_libvirt_is_told_the_limits_again_of_a_disk_that_replaces_one(
    host: Host, seen: str
) -> None:
    """Or a QEMU that the guest migrates to wouldn't limit it."""
    host.abilities = PATCHED
    async with following() as source:
        for rate in (290, 300):
            await source.set_limits(VDA, EXACT._replace(iops_total=rate), 30.0)
            await source.sample(None, 30.0)
            await source.resync()
        assert len(host.limits) == 1, "the fallback of the first is good for the second"
        host.tuned = {}
        if seen == "gone":
            host.xml = DISKLESS
            await source.resync()
            host.xml = XML
        if seen == "by its groups":
            await source.sample(None, 30.0)
        else:
            await source.resync()
        await source.set_limits(VDA, EXACT, 30.0)
    assert len(host.limits) == 2


async def test_a_disk_that_qemu_does_not_throttle_is_told_once_and_the_others_are_served(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    passed_through = '<disk type="block" device="lun"><target dev="sda" bus="scsi"/></disk>'
    vhost = '<disk type="vhostuser"><target dev="vdb" bus="virtio"/></disk>'
    host.xml = XML.replace("</devices>", f"{passed_through}{vhost}</devices>").replace(
        "<policy", '<policy class="bronze"'
    )
    host.abilities = STOCK
    source = LibvirtSource("qemu:///system", BUILTIN_CLASSES, {})
    async with followed(source):
        await source.resync()
        assert [*source.vms()["db1"].drives] == ["vda"]
        await source.set_limits(VDA, ANY_QEMU, 30.0)
        error = source.vms()["db1"].policy_error
    assert isinstance(error, PolicyError)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "domain db1: sda can't be limited (QEMU doesn't throttle SCSI passthrough), vdb can't be"
        " limited (the I/O of a vhost-user disk doesn't pass QEMU); attach another kind of disk if"
        " it has to be limited; the other drives are served"
    ]


async def test_a_disk_that_qemu_does_not_throttle_is_no_error_without_a_policy(host: Host) -> None:
    host.xml = XML.replace(
        "</devices>", '<disk type="vhostuser"><target dev="vdb"/></disk></devices>'
    )
    async with following() as source:
        assert source.vms()["db1"].policy_error is None


async def test_another_tools_large_metadata_leaves_the_last_good_policy_in_force(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.abilities = STOCK
    async with following() as source:
        policy = source.vms()["db1"].policy
        large = (
            "<other:a xmlns:other='urn:other'>" + "<other:b/>" * 20_000 + "</other:a></metadata>"
        )
        host.xml = XML.replace("</metadata>", large).replace(
            "</devices>", '<disk><target dev="vdb"/></disk></devices>'
        )
        await source.resync()
        now = source.vms()["db1"]
    assert [*now.drives] == ["vda", "vdb"]
    assert now.policy == policy
    assert str(now.policy_error).startswith("domain db1: more than 20000 tags")
    assert "the last good policy stays" in caplog.text


async def test_another_tools_large_metadata_hides_no_policy(host: Host) -> None:
    host.abilities = STOCK
    host.own_policy = '<policy>\n  <drive target="vda" limit="5"/>\n</policy>'
    large = "<other:a xmlns:other='urn:other'>" + "<other:b/>" * 20_000 + "</other:a></metadata>"
    host.xml = XML.replace("</metadata>", large)
    async with following() as source:
        vm = source.vms()["db1"]
    assert vm.policy == DomainPolicy({"vda": DrivePolicy(limit=5)})
    assert vm.policy_error is None


async def test_domains_whose_names_look_alike_have_each_its_own_last_good_policy(
    host: Host,
) -> None:
    """In XML the last name reads like the one before: a carriage return ends a line there."""
    limits = {"db1": 300, "db1 ": 301, " db1": 302, "db1\n": 303, "db1\r": 304}
    for name, limit in limits.items():
        host.running[name] = Host(name)
        host.running[name].xml = host.running[name].xml.replace('"300"', f'"{limit}"')
    async with following() as source:
        await until(lambda: source.vms().keys() == limits.keys())
        for each in host.running.values():
            each.xml = each.xml.replace('limit="', 'limit="x')
        await source.resync()
        vda = {name: vm.policy and vm.policy.for_drive("vda") for name, vm in source.vms().items()}
    assert vda == {name: DrivePolicy(limit=limit) for name, limit in limits.items()}


async def test_a_guest_that_hangs_when_the_agent_starts_keeps_no_other_from_being_read(
    host: Host,
) -> None:
    host.reading = threading.Event()
    source = LibvirtSource("qemu:///system", {}, {})
    running = asyncio.create_task(source.run())
    await until(lambda: source.unread() == {"db1"})
    host.running["web1"] = Host("web1")
    source.announce("web1")
    await until(source.vms)
    assert source.unread() == {"db1"}
    host.reading.set()
    await until(lambda: len(source.vms()) == 2)
    running.cancel()


async def test_guests_whose_processes_cannot_be_told_are_silent_and_hold_nothing_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc doesn't answer as long as something holds a process's memory map."""
    go_on = threading.Event()

    def told(name: str, uuid: str | None) -> Process | None:
        if name != "web1":
            go_on.wait(_HANG_S)
        return host.process

    monkeypatch.setattr("iokeel.hypervisors.libvirt.source.guest", told)
    monkeypatch.setattr(_CALL_TIMEOUT_S, 0.2)
    hung = [f"db{number}" for number in range(1, 41)]  # more than an executor has threads
    host.running |= {name: Host(name) for name in hung[1:]}
    source = LibvirtSource("qemu:///system", {}, {})
    running = asyncio.create_task(source.run())
    await until(lambda: source.errors["refresh"] >= len(hung))
    assert source.unread() == {*hung}
    await asyncio.wait_for(asyncio.to_thread(int), 30.0)
    monkeypatch.setattr(_CALL_TIMEOUT_S, 60.0)
    host.running["web1"] = Host("web1")
    source.announce("web1")
    await until(source.vms)
    go_on.set()
    running.cancel()


async def test_a_guest_that_starts_slowly_is_read_once_it_answers(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only one, so nothing but the sample can tell that it answers."""
    host.reading = threading.Event()
    started, host.running = host.running, {}
    source = LibvirtSource("qemu:///system", {}, {})
    running = asyncio.create_task(source.run())
    await until(lambda: source.unread() is not None)
    host.running = started
    with monkeypatch.context() as hurry:
        hurry.setattr(_CALL_TIMEOUT_S, 0.2)
        source.announce("db1")
        await until(lambda: source.errors["refresh"])
    assert source.unread() == {"db1"}
    host.reading.set()
    await source.sample(None, 30.0)
    await until(source.vms)
    running.cancel()


async def test_a_guest_that_starts_after_a_list_was_made_is_not_forgotten_by_it(host: Host) -> None:
    async with following() as source:
        host.listing, lists = threading.Event(), host.lists
        resync = asyncio.create_task(source.resync())
        await until(lambda: host.lists > lists)
        host.running["web1"] = Host("web1")
        source.announce("web1")
        await until(lambda: "web1" in source.vms())
        host.listing.set()
        await resync
        assert source.vms().keys() == {"db1", "web1"}
        del host.running["web1"]
        await source.resync()
        assert source.vms().keys() == {"db1"}


async def test_a_guest_that_starts_again_after_a_list_was_made_is_not_forgotten_by_it(
    host: Host,
) -> None:
    async with following() as source:
        del host.running["db1"]
        host.listing, lists = threading.Event(), host.lists
        resync = asyncio.create_task(source.resync())
        await until(lambda: host.lists > lists)
        host.running["db1"], host.process = host, Process(8, 80)
        source.announce("db1")
        await until(lambda: source.vms()["db1"].process == Process(8, 80))
        host.listing.set()
        await resync
        assert source.vms().keys() == {"db1"}


async def test_a_qemu_that_runs_on_is_known_though_it_can_not_be_told_any_more(host: Host) -> None:
    """It overwrote its command line, and libvirt's pid file is in a container."""
    host.process = runs = process(os.getpid())
    async with following() as source:
        host.process = None
        await source.resync()
        assert source.vms()["db1"].process == runs
        host.number += 1
        await source.resync()
        assert source.vms()["db1"].process is None


async def test_domains_are_read_again_after_a_fault_that_nobody_thought_of(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source.RESYNC_S", 0.01)
    async with following() as source:
        host.fault = RuntimeError("made up")
        await until(lambda: "please report it" in caplog.text)
        assert source.errors == {"internal": 1}
        host.xml = XML.replace('limit="300"', 'limit="200"')
        policy = DomainPolicy({"vda": DrivePolicy(limit=200)})
        await until(lambda: source.vms()["db1"].policy == policy)


async def test_a_storage_pool_that_hangs_keeps_no_guest_from_its_limits(host: Host) -> None:
    host.xml, host.abilities = VOLUME, STOCK
    async with following() as libvirt:
        assert libvirt.vms()["db1"].drives["vda"].path == "/nfs/a.raw"
        host.pool = threading.Event()
        with hurried(host):
            await libvirt.resync()
        assert libvirt.vms()["db1"].drives["vda"].path == "/nfs/a.raw"
        await libvirt.set_limits(VDA, ANY_QEMU, 30.0)
        host.pool.set()
    assert len(host.limits) == 1


async def test_a_guest_runs_on_with_its_path_once_its_storage_pool_is_stopped(host: Host) -> None:
    host.xml = VOLUME
    async with following() as source:
        host.stopped = True
        await source.resync()
        assert source.vms()["db1"].drives["vda"].path == "/nfs/a.raw"
        host.xml = VOLUME.replace('volume="a"', 'volume="b"')  # another disk in its place
        await source.resync()
        assert source.vms()["db1"].drives["vda"].path is None


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "hangs"])
async def test_the_path_of_a_volume_is_unknown_until_its_pool_is_read(
    host: Host, stopped: bool
) -> None:
    pool = threading.Event()
    host.xml, host.stopped, host.pool = VOLUME, stopped, None if stopped else pool
    with hurried(host) as hurry:
        async with following() as source:
            hurry.undo()
            assert source.vms()["db1"].drives["vda"].path is None
            host.stopped = False
            pool.set()
            async with asyncio.timeout(30):  # the call that hung may end later
                while source.vms()["db1"].drives["vda"].path != "/nfs/a.raw":
                    await source.resync()


async def test_limits_that_are_set_while_a_domain_is_read_outlast_the_reading(host: Host) -> None:
    host.xml, host.abilities = VOLUME, STOCK
    async with following() as libvirt:
        host.pool = threading.Event()
        reading = asyncio.create_task(libvirt.resync())
        await until(lambda: host.waits)
        await libvirt.set_limits(VDA, ANY_QEMU, 30.0)
        host.tuned = {"total_iops_sec": 50}  # somebody else does later, and libvirt posts no event
        host.pool.set()
        await reading
        assert libvirt.vms()["db1"].drives["vda"].in_force == ANY_QEMU
        theirs = ThrottleLimits(iops_total=50)
        await until(lambda: libvirt.vms()["db1"].drives["vda"].in_force == theirs)
