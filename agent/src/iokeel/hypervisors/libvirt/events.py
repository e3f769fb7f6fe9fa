"""The connection on which libvirtd posts events about its domains."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import libvirt
import libvirt_qemu

from iokeel.hypervisors.libvirt.calls import Calls, close
from iokeel.hypervisors.qemu.jobs import JOB_EVENT

# A libvirtd that has been silent for so long is lost.
_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 3
_CHANGES = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
)

# Of a job's states, those with which it begins and ends. A new image is a job, too, such as that of
# a snapshot.
_JOB_STATES = ('"status":"running"', '"status":"null"')


class Events:
    """A connection for events, and nothing else.

    changed: called, in the event loop, with the name of a domain that has changed. tuned: called
    with a domain's name and a TUNABLE event's values. job: called with the name of a domain one of
    whose block jobs may have begun or ended. libvirt's own event only tells that they end.
    """

    def __init__(
        self,
        calls: Calls,
        changed: Callable[[str], None],
        tuned: Callable[[str, Mapping[str, object]], None],
        job: Callable[[str], None],
    ) -> None:
        self._calls = calls
        self._changed = changed
        self._tuned = tuned
        self._job = job
        self._attempt: object = None  # the last to connect
        self._subscription: _Subscription | None = None
        self._lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def connected(self) -> bool:
        """Whether events can come."""
        return self._subscription is not None

    async def connect(self, timeout_s: float) -> None:
        """Connect and subscribe. Raises ConnectionLost, but a connection may come later.

        `disconnect` ends that, too.
        """
        _start_event_loop()
        self._lost.clear()
        attempt = self._attempt = object()
        await self._calls.call(lambda _: self._subscribe(attempt), timeout_s)

    async def lost(self) -> None:
        """Wait until the connection ends."""
        await self._lost.wait()

    def disconnect(self) -> None:
        """End the connection if there is one, or will be."""
        subscription, self._subscription, self._attempt = self._subscription, None, None
        if subscription is not None:
            subscription.end_soon()

    def _subscribe(self, attempt: object) -> None:
        """Connect, subscribe, and hand that over to the event loop. Blocks."""
        subscription = _Subscription(self._calls.open())
        connection = subscription.connection

        def post(function: Callable[..., None], *args: object) -> None:
            self._loop.call_soon_threadsafe(function, *args)

        posted: set[str] = set()

        def change(name: str) -> None:
            posted.discard(name)
            self._changed(name)

        def changed(_connection: Any, domain: Any, *_details: Any) -> None:
            if (name := domain.name()) not in posted:
                posted.add(name)
                post(change, name)

        def tuned(_connection: Any, domain: Any, values: Mapping[str, Any], _opaque: Any) -> None:
            post(self._tuned, domain.name(), dict(values))

        def job(connection: Any, domain: Any, *_details: Any) -> None:
            changed(connection, domain)
            post(self._job, domain.name())

        def job_moved(connection: Any, domain: Any, *details: Any) -> None:
            if any(state in str(details[-2]) for state in _JOB_STATES):
                job(connection, domain)

        try:
            connection.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)
            connection.registerCloseCallback(lambda *_: post(self._lost.set), None)
            for event in _CHANGES:
                subscription.register(event, changed)
            subscription.register(libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE, tuned)
            subscription.register(libvirt.VIR_DOMAIN_EVENT_ID_BLOCK_JOB_2, job)
            subscription.register_qemu(JOB_EVENT, job_moved)
            post(self._subscribed, attempt, subscription)
        except BaseException:
            subscription.end()
            raise

    def _subscribed(self, attempt: object, subscription: _Subscription) -> None:
        if attempt is self._attempt:
            self._subscription = subscription
        else:  # it took too long
            subscription.end_soon()


class _Subscription:
    """A connection and the events that are posted on it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._callbacks: list[int] = []
        self._qemu_callbacks: list[int] = []

    def register(self, event: int, callback: Callable[..., None]) -> None:
        """Have a callback called with each event of a kind. Raises libvirtError."""
        self._callbacks.append(self.connection.domainEventRegisterAny(None, event, callback, None))

    def register_qemu(self, event: str, callback: Callable[..., None]) -> None:
        """Have a callback called with each of QEMU's own events of a name, if libvirt passes them.

        Unlike a command, that doesn't taint a domain.
        """
        with contextlib.suppress(libvirt.libvirtError):
            self._qemu_callbacks.append(
                libvirt_qemu.qemuMonitorEventRegister(
                    self.connection, None, event, callback, None, 0
                )
            )

    def end_soon(self) -> None:
        """End it in a thread: that may take as long as a keepalive."""
        threading.Thread(target=self.end, daemon=True).start()

    def end(self) -> None:
        """Close the connection, which stays open as long as it has a callback. Blocks."""
        with contextlib.suppress(libvirt.libvirtError):  # it has none yet
            self.connection.unregisterCloseCallback()
        for callback in self._callbacks:
            with contextlib.suppress(libvirt.libvirtError):  # libvirtd is gone
                self.connection.domainEventDeregisterAny(callback)
        for callback in self._qemu_callbacks:
            with contextlib.suppress(libvirt.libvirtError):
                libvirt_qemu.qemuMonitorEventDeregister(self.connection, callback)
        close(self.connection)


_event_loop_started = threading.Event()


def _start_event_loop() -> None:
    """Run libvirt's own event loop in a thread, once in a process."""
    if _event_loop_started.is_set():
        return
    _event_loop_started.set()
    libvirt.virEventRegisterDefaultImpl()

    def run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=run, name="libvirt-events", daemon=True).start()
