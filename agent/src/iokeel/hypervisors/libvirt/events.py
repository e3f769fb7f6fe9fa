"""The connection on which libvirtd posts events about its domains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import libvirt

from iokeel.hypervisors.libvirt.calls import Calls, close

# A libvirtd that has been silent for so long is lost.
_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 3
_CHANGES = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
    libvirt.VIR_DOMAIN_EVENT_ID_BLOCK_JOB_2,
)


class Events:
    """A connection for events, and nothing else.

    changed: called, in the event loop, with the name of a domain that has changed. tuned: called
    with a domain's name and a TUNABLE event's values.
    """

    def __init__(
        self,
        calls: Calls,
        changed: Callable[[str], None],
        tuned: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        self._calls = calls
        self._changed = changed
        self._tuned = tuned
        self._connection: Any = None
        self._lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def connected(self) -> bool:
        """Whether events can come."""
        return self._connection is not None

    async def connect(self, timeout_s: float) -> None:
        """Connect and subscribe. Raises ConnectionLost."""
        _start_event_loop()
        self._lost.clear()
        self._connection = await self._calls.call(lambda _: self._subscribe(), timeout_s)

    async def lost(self) -> None:
        """Wait until the connection ends."""
        await self._lost.wait()

    def disconnect(self) -> None:
        """End the connection, in a thread: that may take as long as a keepalive."""
        connection, self._connection = self._connection, None
        threading.Thread(target=close, args=(connection,), daemon=True).start()

    def _subscribe(self) -> Any:
        connection = self._calls.open()
        connection.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)

        def post(function: Callable[..., None], *args: object) -> None:
            self._loop.call_soon_threadsafe(function, *args)

        def changed(_connection: Any, domain: Any, *_details: Any) -> None:
            post(self._changed, domain.name())

        def tuned(_connection: Any, domain: Any, values: Mapping[str, Any], _opaque: Any) -> None:
            post(self._tuned, domain.name(), dict(values))

        connection.registerCloseCallback(lambda *_: post(self._lost.set), None)
        for event in _CHANGES:
            connection.domainEventRegisterAny(None, event, changed, None)
        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE, tuned, None)
        return connection


_event_loop_started = threading.Event()


def _start_event_loop() -> None:
    """Run libvirt's own event loop in a thread, once in a process."""
    if _event_loop_started.is_set():
        return
    _event_loop_started.set()
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()

    def run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=run, name="libvirt-events", daemon=True).start()
