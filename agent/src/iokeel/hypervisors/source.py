"""What a way to reach VMs (libvirt, or QMP sockets) offers to the agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import Counters, DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.core.policy import DomainPolicy
from iokeel.errors import IokeelError
from iokeel.host.process import Process


@dataclass(frozen=True, slots=True)
class DriveInfo:
    """A drive of a running VM.

    path: the file, device or URL behind it, of the topmost image where there are several (URLs as
    iokeel.host.network_storage has them); None where it is not known. in_force: its limits as
    last read from QEMU or libvirt, or as last set; None where they can't be read. abilities:
    those of its QEMU.
    """

    target: str
    path: str | None = None
    in_force: ThrottleLimits | None = None
    abilities: Abilities = STOCK


@dataclass(frozen=True, slots=True)
class VmInfo:
    """A running VM, its drives by target, and the last good policy with what is wrong since.

    process: its QEMU; None where that isn't on this host, or isn't found.
    """

    name: str
    drives: Mapping[str, DriveInfo]
    policy: DomainPolicy | None = None
    policy_error: IokeelError | None = None
    process: Process | None = None


class Reports:
    """What a source tells of itself: what went wrong, and the VMs that run."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self.known: dict[str, VmInfo] = {}


class Source(Protocol):
    """A way to reach VMs. Every method but `run` returns within its timeout."""

    #: What went wrong, by kind ("timeout", "protocol", "rejected", "permission", ...).
    errors: Counter[str]
    #: How often the connection (to libvirtd, or to any QMP socket) was made again.
    reconnects: int
    #: Called with a VM's name, in the event loop, when it appeared, went, changed its drives or
    #: its policy, or when its limits were changed by somebody else.
    on_change: Callable[[str], None]

    async def run(self) -> None:
        """Connect, keep connected and follow what VMs there are, until cancelled."""

    def announce(self, domain: str) -> None:
        """Look at a domain again soon: somebody says that it comes, goes or changes."""

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running VMs by name, as last seen. Does no I/O."""

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all VMs' drives, or of some domains' only.

        Returns what has arrived when the timeout ends; a VM that hangs is left out, and never
        delays the others.
        """

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force, every field of them, 0 where nothing is limited.

        Only a QEMU with the ability takes a curve.

        Raises DriveGone, LimitsRejected or ConnectionLost; limits that held still hold then.
        """
