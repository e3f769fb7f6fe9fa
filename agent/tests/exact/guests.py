"""The throttle groups of a libvirt guest, by QEMU itself."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from iokeel.core.values.curve import DEFAULT_CURVE
from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.qmp_client import QmpError
from testing.lab.host import Host
from testing.machines.host import Host as Machine

#: The published curve in QAPI's words.
POINTS = [{"size": size, "cost": cost} for size, cost in DEFAULT_CURVE.points]


def monitor(host: Host | Machine, command: str, **arguments: Any) -> Any:
    """Send a QMP command to the QEMU of db1, bypassing libvirt."""
    return _ask("db1", host, command, **arguments)


def _ask(vm: str, host: Host | Machine, command: str, /, **arguments: Any) -> Any:
    request = json.dumps({"execute": command, "arguments": arguments})
    reply = json.loads(host.virsh("qemu-monitor-command", vm, request))
    if "error" in reply:
        raise QmpError(f"{command}: {reply['error']['desc']}")
    return reply["return"]


def groups(host: Host | Machine, vm: str = "db1") -> list[dict[str, Any]]:
    """Return the throttle groups of a guest."""
    return throttle_groups(partial(_ask, vm, host))


def exact(host: Host | Machine, limit: int, count: int = 1) -> bool:
    """Return True if `count` drives have this limit and the curve, and no other has limits."""
    limits = [group["limits"] for group in groups(host)]
    return len(limits) == count and all(
        each["iops-total"] == limit
        and each.get("cost-read") == each.get("cost-write") == POINTS
        and not each["bps-total"]
        and each.get("idle-credit-ms") == 10
        and not each.get("split-size")
        for each in limits
    )
