"""What a source keeps of its domains when libvirtd comes back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine

import libvirt
import pytest

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.host.process import Process
from iokeel.hypervisors.libvirt.source import LibvirtSource
from testing.libvirt_error import refusal
from testing.waiting import until

CURVES = Abilities(cost_curve=True)
VDA = DriveId("db1", "vda")
ANY_QEMU = ThrottleLimits(iops_total=300, iops_size=4096)
XML = """
<domain>
  <name>db1</name>
  <metadata>
    <policy xmlns="urn:iokeel:policy:1"><drive target="vda" limit="300"/></policy>
  </metadata>
  <devices><disk><target dev="vda"/></disk></devices>
</domain>
"""


class Host:
    """libvirt's connection, its events and the handle of its one domain."""

    def __init__(self) -> None:
        self.process: Process | None = Process(7, 70)
        self.refuses: int | None = None  # libvirt's number of an error
        self.abilities = CURVES
        self.asked = 0
        self.connected = False
        self.limits: list[dict[str, int]] = []
        self.xml = XML
        self.pool: threading.Event | None = None  # its storage pool answers only then

    def ask(self, _handle: object) -> Abilities:
        self.asked += 1
        if self.refuses is not None:
            raise refusal(self.refuses)
        return self.abilities

    # Events

    async def connect(self, _timeout_s: float) -> None:
        self.connected = True
        self._lost = asyncio.Event()

    async def lost(self) -> None:
        await self._lost.wait()

    def disconnect(self) -> None:
        self.connected = False

    # The connection

    def listAllDomains(self, _flags: int) -> list[Host]:
        return [self]

    def lookupByName(self, _name: str) -> Host:
        return self

    def close(self) -> None:
        pass

    # The domain

    def name(self) -> str:
        return "db1"

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return 1

    def XMLDesc(self, _flags: int) -> str:
        return self.xml

    # Its storage pool, and the volume in it

    def storagePoolLookupByName(self, _name: str) -> Host:
        if self.pool is not None:
            self.pool.wait(30)
        return self

    def storageVolLookupByName(self, _name: str) -> Host:
        return self

    def path(self) -> str:
        return "/nfs/a.raw"

    def setBlockIoTune(self, _target: str, values: dict[str, int], _flags: int) -> None:
        self.limits.append({name: value for name, value in values.items() if value})

    def blockIoTune(self, _target: str, _flags: int) -> dict[str, int]:
        return {}

    # A run

    def after_libvirtd(self, change: Callable[[], object]) -> Abilities:
        """Return the abilities that a source goes by once it has found libvirtd again."""
        return asyncio.run(self._reconnect(change))

    async def _reconnect(self, change: Callable[[], object]) -> Abilities:
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
    source = "iokeel.hypervisors.libvirt.source"
    monkeypatch.setattr("libvirt.open", lambda _uri: made)
    monkeypatch.setattr(f"{source}.Events", lambda *_: made)
    monkeypatch.setattr(f"{source}.guest", lambda _name: made.process)
    monkeypatch.setattr(f"{source}.ask_abilities", made.ask)
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
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source._AGAIN_S", 0.01)
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


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[LibvirtSource]:
    """A source that has read its domain."""
    source = LibvirtSource("qemu:///system", {}, {})
    running = asyncio.create_task(source.run())
    try:
        await until(lambda: source.vms().get("db1") is not None)
        yield source
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_storage_pool_that_hangs_keeps_no_guest_from_its_limits(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source._CALL_TIMEOUT_S", 0.2)
    source = '<disk type="volume"><source pool="nfs" volume="a"/><target'
    host.xml, host.abilities = XML.replace("<disk><target", source), STOCK
    async with following() as libvirt:
        assert libvirt.vms()["db1"].drives["vda"].path == "/nfs/a.raw"
        host.pool = threading.Event()
        await libvirt.resync()
        assert libvirt.vms()["db1"].drives["vda"].path == "/nfs/a.raw"
        await libvirt.set_limits(VDA, ANY_QEMU, 1.0)
        host.pool.set()
    assert len(host.limits) == 1
