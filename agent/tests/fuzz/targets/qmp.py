"""QMP: a QEMU's greeting, replies and events, in any pieces, and what the agent makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from iokeel.config.settings import VmConfig
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import STOCK, ThrottleLimits
from iokeel.core.values.policy import DomainPolicy
from iokeel.errors import IokeelError
from iokeel.host.network_storage import network_place
from iokeel.hypervisors.qemu.drives import setting
from iokeel.hypervisors.qemu.limits import from_group
from iokeel.hypervisors.qmp.connection import ANYTHING, QmpConnection
from iokeel.hypervisors.qmp.counters import DriveCounters, Round
from iokeel.hypervisors.qmp.discovery import query_abilities, query_drives, query_groups
from iokeel.hypervisors.source import SourceNews
from tests.fuzz.budget import Broken, one_line, only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b"QMP return error class desc event id execute device qdev inserted file group".split()),
    *(b"stats rd_operations rd_bytes wr_operations wr_bytes rd_total_time_ns".split()),
    *(b"wr_total_time_ns name type child<throttle-group> meta-type members command".split()),
    *(b"iops-total cost-read cost-write idle-credit-ms split-size device_add size cost".split()),
    *(b"query-throttle-groups limits read write requests bytes waited wait-total-ns".split()),
    *(b"__iokeel_extra __iokeel_query-throttle-groups __iokeel_keeps-levels features".split()),
    *(b"max-in-flight latency in-flight ended latency-total-ns latencies least".split()),
    *(b"waiting sizes node-name drv throttle throttle-group driver json: bps iops".split()),
    *(b"iops_rd iops_wr iops_max iops_max_length iops_size nbd rbd iscsi server".split()),
    *(b"filename host port path export pool image portal target url namespace".split()),
    *(
        b'"id":1',
        b'"id":2',
        b'"id":3',
        b'"id":4',
        b'"id":5',
        b"\0",
        b"\n",
        b"},{",
        b'{"event":"E"}\n',
    ),
]
_LIMITS = ThrottleLimits(iops_total=1000, iops_size=5856)
_TIMEOUT_S = 60.0
# The steps of the event loop in which the agent sends its next command.
_STEPS = 6
# More would measure the event loop.
_MOST_PIECES = 100


class _Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        """Take a command."""

    def abort(self) -> None:
        """Take the end."""


def qmp(data: bytes) -> None:
    """Every question gets one answer, and no limit is below 1 or made up.

    The input is what QEMU sends. A NUL parts what comes at once from what comes a little later.
    """
    _LOOP.run_until_complete(_talk(data.split(b"\0", _MOST_PIECES)))
    if _BROKEN:
        raise _BROKEN.pop()


async def _talk(pieces: Iterable[bytes]) -> None:
    connection = QmpConnection(Path("/run/db1.sock"), one_name)
    connection.connection_made(_Transport())
    agent = asyncio.create_task(_agent(connection))
    for piece in pieces:
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        while piece and not connection.lost.done():
            buffer = connection.get_buffer(-1)
            part, piece = piece[: len(buffer)], piece[len(buffer) :]
            buffer[: len(part)] = part
            connection.buffer_updated(len(part))
    for _ in range(_STEPS):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    one_line(str(connection.lost.result()))
    await agent


def one_name(event: str) -> None:
    """Take an event."""
    assert isinstance(event, str)


async def _agent(connection: QmpConnection) -> None:
    """Ask as the agent does (monitor.py), until the connection ends."""
    with only(IokeelError):
        await connection.execute("qmp_capabilities", {}, ANYTHING, _TIMEOUT_S)
        abilities = await query_abilities(connection)
        blocks, drives, _ = await query_drives(connection, guest_devices=abilities.guest_devices)
        for drive in drives.values():
            _check(drive.in_force)
            network_place(drive.path or "")
        groups = await query_groups(connection, abilities) if abilities.counts else []
        for group in groups:
            _check(from_group(group.limits))
        of = {(d.qdev, d.device): DriveId("db1", d.target) for d in drives.values()}
        counters = DriveCounters(_VM, SourceNews(), lambda: None, lambda _, limits: _check(limits))
        counters.connected(abilities)
        counters.follow(
            {(b.qdev, b.device): of.get((b.qdev, b.device)) for b in blocks},
            {d.throttle_group: of[d.qdev, d.device] for d in drives.values() if d.throttle_group},
            {(b.qdev, b.device): b.inserted.node_name for b in blocks if b.inserted},
        )
        round_ = Round(asyncio.get_running_loop().create_future())
        counters.ask(connection, round_)
        round_.came()
        await round_.done
        for drive in drives.values():
            command, arguments = setting(drive, _LIMITS, abilities.throttle or STOCK)
            await connection.execute(command, arguments, ANYTHING, _TIMEOUT_S)


def _check(limits: ThrottleLimits | None) -> None:
    if limits is not None:
        assert all(value is None or value > 0 for _, value in limits.items()), limits
        assert limits.idle_credit_ms >= 0, limits


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _BROKEN.append(context.get("exception") or Broken(context["message"]))


_VM = VmConfig("db1", Path("/run/db1.sock"), DomainPolicy({}))
_BROKEN: list[BaseException] = []
_LOOP = asyncio.new_event_loop()
_LOOP.set_exception_handler(_note)

TARGETS = [Target("qmp", qmp, 1 << 18, _WORDS)]
