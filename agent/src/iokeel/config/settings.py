"""The agent's settings, as its configuration gives them or by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iokeel.config.paths import DEFAULT_FACTS
from iokeel.config.tables import (
    AgentConfig,
    CgroupConfig,
    HistoryConfig,
    HookConfig,
    JobsConfig,
    LibvirtConfig,
)
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, TenantPolicy
from iokeel.core.values.storage import StorageId, StoragePolicy
from iokeel.errors import IokeelError
from iokeel.libvirt_xml.ceiling import Ceiling
from iokeel.rules.rule import Rules

if TYPE_CHECKING:  # only [fleet] needs it
    from iokeel.config.etcd_access import Access

#: The kinds of tables that stay in force after they have gone (last.py).
KINDS = ("tenants", "storage")


@dataclass(frozen=True, slots=True)
class VmConfig:
    """[[vm]]: a QEMU that libvirt doesn't run: its QMP socket, and its drives' policy.

    shared: the socket has another owner, so the agent connects by turns. by_rules: [[discover]] has
    found it, so rules give its policy, and this one is empty.
    """

    name: str
    socket: Path
    policy: DomainPolicy = field(default_factory=lambda: DomainPolicy({}))
    shared: bool = False
    by_rules: bool = False


@dataclass(frozen=True, slots=True)
class DiscoverConfig:
    """[[discover]]: QEMUs by their QMP sockets, which have another owner.

    sockets: a path with one *, which stands for a VM's name. facts: that of the file in which its
    platform describes a VM, with {name} for its name; None if there is none that is read.
    """

    sockets: str
    facts: str | None = None

    def vm(self, socket: str) -> VmConfig | None:
        """Return the VM of a socket; None if the path isn't one of these."""
        before, _, after = self.sockets.partition("*")
        name = socket[len(before) : len(socket) - len(after)]
        is_here = name and "/" not in name and before + name + after == socket
        return VmConfig(name, Path(socket), shared=True, by_rules=True) if is_here else None


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """[storage.NAME]: a storage, and its policy.

    device: it is this block device. devices: it is these together, by paths that may have wildcards
    (fnmatch). path: it is whatever this file or folder is on. source: it is
    this network storage, by iokeel's name (rbd:pool). drives: it holds the drives that match
    these patterns of VM/DRIVE (fnmatch). If none is given, it is the storage that iokeel finds
    under the name NAME.
    """

    policy: StoragePolicy
    device: Path | None = None
    path: Path | None = None
    source: StorageId | None = None
    drives: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[object, ...]:
        """The device, path, source, drives and devices that it is, those of them that are given."""
        given = (self.device, self.path, self.source, self.drives or None, self.devices or None)
        return tuple(place for place in given if place is not None)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """[fleet]: how etcd is reached, and this host's name in the fleet."""

    access: Access
    host: str


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration. classes: the built-in ones too. fleet: None if there is no [fleet].

    ceilings: in their order; a domain has the first one that its name matches. rules: those of
    policies that aren't in metadata. facts_dir: the folder of the operator's files of facts.
    tables: the tables of tenants and storages as they are written, by kind (KINDS) and name. gone:
    those that it lacks, with their errors. Their last good ones are in force, if they can be read.
    text: the whole file.
    """

    agent: AgentConfig = field(default_factory=AgentConfig)
    libvirt: LibvirtConfig = field(default_factory=LibvirtConfig)
    hook: HookConfig = field(default_factory=HookConfig)
    model: CostModel = DEFAULT_MODEL
    classes: Mapping[str, DrivePolicy] = field(default_factory=lambda: BUILTIN_CLASSES)
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    vms: tuple[VmConfig, ...] = ()
    discover: tuple[DiscoverConfig, ...] = ()
    storages: Mapping[StorageId, StorageConfig] = field(default_factory=dict)
    cgroup: CgroupConfig = field(default_factory=CgroupConfig)
    jobs: JobsConfig = field(default_factory=JobsConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    fleet: FleetConfig | None = None
    ceilings: tuple[Ceiling, ...] = ()
    rules: Rules = field(default_factory=Rules)
    facts_dir: Path = DEFAULT_FACTS
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    gone: Mapping[tuple[str, str], IokeelError] = field(default_factory=dict)
    text: bytes = field(default=b"", compare=False, repr=False)

    def discovered(self, vm: VmConfig) -> VmConfig | None:
        """Return a VM as a [[discover]] has it; None if it isn't at a socket of theirs."""
        found = filter(None, (each.vm(str(vm.socket)) for each in self.discover))
        return next((each for each in found if each.name == vm.name), None)
