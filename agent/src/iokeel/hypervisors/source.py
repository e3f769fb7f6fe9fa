"""A source of VMs (libvirt, or QMP sockets): its methods, and the VMs and drives it tells of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from iokeel.config.settings import Config, VmConfig
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.policy import UNKNOWN, ToldPolicy
from iokeel.core.values.state import DriveState
from iokeel.errors import IokeelError
from iokeel.host.process import Process
from iokeel.rules.compose import ByRules


@dataclass(frozen=True, slots=True)
class DriveInfo:
    """A drive of a running VM.

    path: the file, device or URL behind it (URLs as in iokeel.host.network_storage), of the
    topmost image if there are several; None if unknown. in_force: its limits as last read from
    QEMU or libvirt, or as last set; None if they can't be read. abilities: those of its QEMU; None
    if they aren't known. beneath: the paths or URLs of the other images that it reads, and of data
    files; "" for one that isn't known. group, found: as in DriveSeen.
    """

    target: str
    path: str | None = None
    in_force: ThrottleLimits | None = None
    abilities: Abilities | None = None
    beneath: tuple[str, ...] = ()
    group: str | None = None
    found: ThrottleLimits | None = field(default=None, compare=False)  # no news, but a record


@dataclass(frozen=True, slots=True)
class VmInfo:
    """A running VM.

    drives: by target. policy: the last good one; None if it validly has none, UNKNOWN if no good
    one was read yet. policy_error: what is wrong with its policy now; None if nothing is. process:
    its QEMU; None if that isn't on this host, or isn't found. uuid: the same on each host that it
    migrates to; None if unknown. empty: the targets of drives without a medium, which keep limits
    that can't be read or set until there is one. from_libvirt: whether libvirt tells of it and has
    its policy; if not, it is a [[vm]] or found by [[discover]]. by_rules: what the rules make of
    it; None if they know nothing of it. would: the policy, if it is only observed; `policy` is None
    then. booted: its guest has booted in this QEMU (`has_booted` in host/process.py).
    """

    name: str
    drives: Mapping[str, DriveInfo]
    policy: ToldPolicy | None = UNKNOWN
    policy_error: IokeelError | None = None
    process: Process | None = None
    uuid: str | None = None
    empty: frozenset[str] = frozenset()
    from_libvirt: bool = True
    by_rules: ByRules | None = field(default=None, compare=False)  # no news for a drive
    would: ToldPolicy | None = None
    booted: bool = field(default=False, compare=False)

    @property
    def told(self) -> ToldPolicy | None:
        """The policy, enforced or observed."""
        return self.policy if self.would is None else self.would


class SourceNews:
    """The news that a source has for the agent: errors, new connections, changes.

    errors: how often something went wrong, by kind ("timeout", "protocol", "rejected",
    "permission", ...). reconnects: how often a connection (to libvirtd, or to a QMP socket) was
    made again. on_change: called with a VM's name, in the event loop, when it appeared or went,
    when its drives or its policy changed, or when somebody else changed its limits. on_job: the
    same when one of its block jobs may have begun or ended. known_of: asked with a drive and the
    QEMU of its VM; returns what the law knows of that drive in that QEMU, None if nothing.
    """

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self.on_job: Callable[[str], None] = lambda _: None
        self.known_of: Callable[[DriveId, Process | None], DriveState | None] = lambda *_: None

    def leaves(self, config: Config) -> Mapping[str, VmConfig]:
        """Return the VMs, by name, that it would no longer follow with another configuration."""
        return {}

    def sockets(self) -> Mapping[str, str]:
        """Return the sockets of the VMs that it reaches by those, by name."""
        return {}

    def resting(self) -> Collection[str]:
        """Return the VMs whose QEMUs have done nothing since their last reading. Does no I/O."""
        return ()

    async def forget_records(self) -> None:
        """Remove the records of what was found."""


class Source(Protocol):
    """A source of VMs. Every method but `run` returns within its timeout.

    Its attributes are those of SourceNews.
    """

    errors: Counter[str]
    reconnects: int
    on_change: Callable[[str], None]
    on_job: Callable[[str], None]
    known_of: Callable[[DriveId, Process | None], DriveState | None]

    async def run(self) -> None:
        """Connect, stay connected and follow the VMs, until cancelled."""

    def leaves(self, config: Config) -> Mapping[str, VmConfig]:
        """Return the VMs, by name, that it would no longer follow with another configuration."""

    def sockets(self) -> Mapping[str, str]:
        """Return the sockets of the VMs that it reaches by those, by name."""

    def configure(self, config: Config) -> None:
        """Go on with another configuration: read all policies by it soon."""

    def announce(self, domain: str) -> None:
        """Look at a domain again soon: somebody says that it starts, ends or changes."""

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running VMs by name, as last seen. Does no I/O."""

    def unread(self) -> Collection[str] | None:
        """Return the names of VMs that aren't in vms() but may run; None if any may.

        A VM that can't be read for long is in either of them until it certainly doesn't run.
        """

    def resting(self) -> Collection[str]:
        """Return the VMs whose QEMUs have done nothing since their last reading. Does no I/O."""

    async def forget_records(self) -> None:
        """Remove what was written into VMs beside limits.

        Raises IokeelError if some can't be removed now.
        """

    def saving(self) -> Collection[str]:
        """Return the names of VMs that are paused while their memory is written, or read.

        As the last sample found them. Does no I/O.
        """

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all VMs' drives (None), or of some domains' only.

        After the timeout it returns the counters that have arrived. A VM that hangs is left out
        and doesn't delay the others.
        """

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force, all fields of them.

        Limits with a curve are for a QEMU with `cost_curve`, and rejected otherwise. The idle
        credit is sent to such a QEMU only, the split size to one with `splits`. Raises DriveGone,
        LimitsRejected or ConnectionLost; the old limits then still hold.
        """

    async def jobs(self, domain: str, timeout_s: float) -> list[BlockJob]:
        """Return a VM's block jobs. Raises DriveGone, LimitsRejected or ConnectionLost."""

    async def set_job_speed(self, domain: str, job: str, bps: int, timeout_s: float) -> None:
        """Set the speed of a VM's block job, in bytes a second; 0 for none.

        Raises DriveGone, LimitsRejected or ConnectionLost; the old speed then still holds.
        """
