"""Events that libvirtd posts, by a connection that posts them from another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import libvirt
import pytest

from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.events import Events
from testing.waiting import until


class Connection:
    """libvirt's connection, and a domain on it."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[..., None]] = {}

    def name(self) -> str:
        return "db1"

    def setKeepAlive(self, _interval_s: int, _count: int) -> None:
        pass

    def registerCloseCallback(self, _callback: object, _opaque: object) -> None:
        pass

    def unregisterCloseCallback(self) -> None:
        pass

    def domainEventRegisterAny(
        self, _domain: object, event: int, callback: Callable[..., None], _opaque: object
    ) -> int:
        self.callbacks[event] = callback
        return event

    def domainEventDeregisterAny(self, _callback: int) -> None:
        pass

    def close(self) -> None:
        pass


async def test_events_that_come_faster_than_they_are_heard_count_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, changed = Connection(), list[str]()
    monkeypatch.setattr("libvirt.open", lambda _uri: connection)
    monkeypatch.setattr("libvirt_qemu.qemuMonitorEventRegister", lambda *_: 1)
    monkeypatch.setattr("libvirt_qemu.qemuMonitorEventDeregister", lambda *_: None)
    events = Events(Calls("qemu:///system"), changed.append, lambda *_: None, lambda _: None)
    await events.connect(30)
    await until(lambda: events.connected)
    post = connection.callbacks[libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE]

    def flood() -> None:
        for _ in range(1000):  # as of a QEMU that stops and goes on without end
            post(connection, connection, 3, 0, None)

    for times in (1, 2):
        thread = threading.Thread(target=flood)
        thread.start()
        thread.join()  # the event loop hears nothing meanwhile
        await asyncio.sleep(0)
        await until(lambda times=times: len(changed) >= times)  # type: ignore[misc]
        assert changed == ["db1"] * times
    events.disconnect()
