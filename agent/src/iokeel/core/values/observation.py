"""Holds one snapshot of a host, and the orders that answer it: a decision's input and output."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, UnknownPolicy, VmPolicy
from iokeel.core.values.storage import StorageCounters, StorageId, StoragePolicy
from iokeel.core.values.wants import TenantLevel


class DriveSeen(NamedTuple):
    """A drive at a tick.

    policy: None if the drive validly has none; UNKNOWN if that can't be told now. counters: None if
    they can't be read now. in_force: its limits, None if they aren't known. failed: the last order
    to this drive was not carried out. abilities: those of its QEMU, None if they aren't known now.
    storage: the name of its storage, None if that can't be told now. tenant: its owner. vm: the
    promise to all drives of its VM together. default: the policy of a drive that is new if
    `policy` is UNKNOWN; None if that can't be told either. group: the throttle group that its
    limits hold, which others of its VM may share; "" for one of its own; None if that isn't known.
    found: the limits from before any agent's, as its VM carries them along; None if it doesn't.
    """

    policy: DrivePolicy | UnknownPolicy | None
    counters: Counters | None
    in_force: ThrottleLimits | None
    failed: bool = False
    abilities: Abilities | None = None
    storage: str | None = None
    tenant: str | None = None
    vm: VmPolicy | None = None
    default: DrivePolicy | None = None
    group: str | None = None
    found: ThrottleLimits | None = None


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """A storage at a tick.

    counters: None if it has none, or if they can't be read now. weighted: it is a hard disk, and
    its scheduler shares it out by the weights of all VMs with a policy there; None if that can't
    be told now.
    """

    policy: StoragePolicy
    counters: StorageCounters | None = None
    weighted: bool | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot.

    partial: other VMs exist that are not looked at this time. storages: by name, those that
    drives are on; empty in a partial snapshot. unread: drives that are not seen, but may be
    there: their VM can't be read now. gone: in a partial snapshot, those that were unplugged.
    complete: no VM that may run can't be read, known or not.
    granted: the tenants of the fleet, and what they may do on this host now; one without a
    limit there keeps what it has, and nothing is raised. granted_storages: the same of the
    storages that the fleet shares; None is without a limit. levels: what tenants' drives get on
    these on all hosts together, if they don't get all that they demand. restarted: VMs with another
    QEMU than at the last look, whose drives are new ones. booted: VMs whose guests have just
    booted, and haven't only come here or been restored.
    """

    drives: Mapping[DriveId, DriveSeen]
    partial: bool = False
    storages: Mapping[str, StorageSeen] = field(default_factory=dict)
    unread: Collection[DriveId] = ()
    gone: Collection[DriveId] = ()
    complete: bool = True
    granted: Mapping[str, TenantPolicy] = field(default_factory=dict)
    granted_storages: Mapping[StorageId, int | None] = field(default_factory=dict)
    levels: Mapping[StorageId, Mapping[str, TenantLevel]] = field(default_factory=dict)
    restarted: Collection[str] = ()
    booted: Collection[str] = ()


class Reason(Enum):
    """Why limits are set; a clause that reads on after "limits set:"."""

    POLICY = "the policy has changed"
    SHIFT = "the mix of request sizes has shifted"
    DRIFT = "the mix is now known more precisely"
    IDLE = "the drive is idle and its next mix is unknown"
    STARVED = "its limits let hardly any of the drive's last requests pass"
    ZEROES = "the drive has paid enough for zeroes; reads are held apart until no more come"
    NO_ZEROES = "the drive writes no more zeroes"
    SILENT = "nothing of the drive passed for a while, as if it waited for zeroes"
    BURST_OPENS = "the drive has saved credit and may burst"
    BURST_CLOSES = "the burst credit is spent"
    CREDIT_GREW = "the drive has more credit than its limits carry"
    SHARE = "the drive's share has changed"
    CURVE = "the storage's cost curve has changed"
    SPLIT = "the split size of large reads has changed"
    LATENCY = "what the latency target needs of QEMU has changed"
    OVERWRITTEN = "somebody else changed the limits"
    RETRY = "the last change failed"
    RELEASED = "the drive no longer has a policy or a limit"
    STOPPING = "the agent no longer serves the drive"


@dataclass(frozen=True, slots=True)
class SetLimits:
    """An order to the edges: put these limits in force on this drive."""

    drive: DriveId
    limits: ThrottleLimits
    reason: Reason
