"""What an operator does and sees on a machine that runs the agent and a guest."""

from __future__ import annotations

import json
from typing import Any

from iokeel.libvirt_xml.schema import NAMESPACE
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.machines.guest import IMAGES, domain, limits
from testing.machines.host import Host
from testing.waiting import eventually

LIMIT = 500  # normalized iops
IMAGE = f"{IMAGES}/db1.img"
_POLICY = f"<policy xmlns='{NAMESPACE}'><drive target='vda' limit='{LIMIT}'/></policy>"
CONFIG = "/etc/iokeel/agent.toml"


def start_guest(machine: Host) -> None:
    """Start the guest db1, which has a policy, and wait for its limits, of a stock QEMU."""
    create_guest(machine)
    eventually(lambda: is_held(machine), what="the guest has limits")


def create_guest(machine: Host) -> None:
    """Start the guest db1, which has a policy."""
    machine.run("truncate", "--size=16M", IMAGE)
    machine.run("virsh", "create", "/dev/stdin", input=domain("db1", _POLICY))


def is_held(machine: Host) -> bool:
    """Return whether the guest's limits let no size of requests above its policy's limit."""
    shown = {key: int(value) for key, value in limits(machine, "db1").items() if value.isdigit()}
    return highest_rate(shown) <= TOLERANCE * LIMIT


def show(machine: Host, name: str) -> str:
    """Return a property of iokeel.service."""
    return machine.run("systemctl", "show", "--value", f"--property={name}", "iokeel").strip()


def journal(machine: Host) -> str:
    """Return the agent's log."""
    return machine.run("journalctl", "--unit=iokeel", "--output=cat", "--no-pager")


def stats(machine: Host) -> list[dict[str, Any]]:
    """Return what `iokeel stats --json` prints."""
    answer: list[dict[str, Any]] = json.loads(machine.run("iokeel", "stats", "--json"))
    return answer


def mode(machine: Host) -> str:
    """Return how the limits of the only guest's only drive are enforced."""
    (vm,) = stats(machine)
    (drive,) = vm["drives"]
    found: str = drive["mode"]
    return found


def configure(machine: Host, text: str) -> None:
    """Write the agent's configuration."""
    machine.run("sh", "-c", f"cat >{CONFIG}", input=text)
