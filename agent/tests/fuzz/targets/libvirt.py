"""libvirt: what QEMU answers past it, and its events of changed limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import libvirt_qemu

from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_CURVE
from iokeel.core.values.limits import ThrottleLimits
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.limits import LimitsInForce
from iokeel.hypervisors.libvirt.passthrough import ask_abilities, put_patched, read_groups
from iokeel.hypervisors.qemu.limits import from_group
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.domain import LIBVIRT_NAMES, Disk, DomainXml
from testing.hypervisors.abilities import PATCHED
from tests.fuzz.budget import limits_make_sense, only
from tests.fuzz.targets.target import Target

_VDA = DriveId("db1", "vda")
_DISK = Disk("vda", "/a.raw", ("limit0",), "virtio-disk0")
_XML = DomainXml("db1", (_DISK, Disk("vdb", "/b.raw", (), "virtio-disk1")))
_EXACT = ThrottleLimits(iops_total=1000, cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE)
_WORDS = [
    *(b"return error class desc id name meta-type members command qdev device inserted".split()),
    *(b"limits read write requests bytes cost waited wait-total-ns waiting sizes size".split()),
    *(b"iops-total cost-read cost-write idle-credit-ms split-size query-throttle-groups".split()),
    *(b"__iokeel_extra __iokeel_query-throttle-groups __iokeel_keeps-levels features".split()),
    *(b"max-in-flight latency in-flight ended latency-total-ns latencies least".split()),
    *(b"throttle-limit0 virtio-disk0 virtio-disk1 drive-virtio-disk0 node-name group".split()),
    *(b"/machine/peripheral/virtio-disk0/virtio-backend file json: throttle-group".split()),
    *(b"{}", b'{"return": {}}', b"\0"),
]
_TUNABLE = "blkdeviotune."
_EVENT_WORDS = [f'"{_TUNABLE}{name}"'.encode() for name in (*LIBVIRT_NAMES.values(), "disk")]
# An event without one of these isn't taken over.
_UNLIMITED = {f"{_TUNABLE}{name}": 0 for name in LIBVIRT_NAMES.values()}
_MOST_INT = (1 << 64) - 1


def passthrough(data: bytes) -> None:
    """Each answer is limits, counters and abilities that make sense, or is refused.

    The input is QEMU's answers, with a NUL between two of them; the last one answers the rest.
    """
    *answers, last = data.decode(errors="replace").split("\0")
    _ANSWERS[:] = [last, *reversed(answers)]
    abilities = ask_abilities(_Handle())
    for group in (read_groups(_Handle(), _XML, abilities) or {}).values():
        if group is not None:
            limits_make_sense(from_group(bytes(group.limits)))
            assert group.counters(0).read.requests is not None
    for throttle_group in (None, "limit0"):
        with only(LimitsRejected):
            put_patched(_Handle(), _VDA, _DISK, throttle_group, _EXACT, PATCHED, None)


class _Handle:
    def name(self) -> str:
        """Return the domain's name."""
        return "db1"


def _answer(_handle: object, _command: str, _flags: int) -> str:
    return _ANSWERS.pop() if len(_ANSWERS) > 1 else _ANSWERS[0]


def tunable(data: bytes) -> None:
    """An event of libvirt's tells a drive's limits, or nothing. The input is its values as JSON."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        _LOOP.run_until_complete(_tuned({str(k): v for k, v in values.items() if _is_typed(v)}))


def _is_typed(value: object) -> bool:
    """Return whether libvirt has a type for a parameter with a value."""
    return isinstance(value, str | float) or (
        isinstance(value, int) and -(_MOST_INT >> 1) <= value <= _MOST_INT
    )


async def _tuned(values: dict[str, Any]) -> None:
    info = VmInfo("db1", {"vda": DriveInfo("vda", None, ThrottleLimits(), PATCHED)})
    domains = {"db1": Domain(_XML, info, 1, PATCHED)}
    calls = Calls("test:///default")
    limits = LimitsInForce(domains, calls, SourceNews(), lambda _: None)
    limits.tuned("db1", values)
    limits.tuned("db1", _UNLIMITED | values)
    for drive in domains["db1"].info.drives.values():
        limits_make_sense(drive.in_force)


_ANSWERS: list[str] = []
_LOOP = asyncio.new_event_loop()
libvirt_qemu.qemuMonitorCommand = _answer

TARGETS = [
    Target("passthrough", passthrough, 1 << 18, _WORDS),
    Target("tunable", tunable, 1 << 12, [*_EVENT_WORDS, b'"vda"', b'"vdb"']),
]
