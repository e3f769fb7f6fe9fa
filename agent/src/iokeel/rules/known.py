"""The facts that rules may ask for: their names, and who controls each.

A fact is a text that the domain's XML, or Proxmox VE's VMID.conf, tells of a VM or of one of its
drives. The platform writes
some of them by itself or by an operator's word: the flavor, the project, the name of the domain.
Others it takes from the tenant, such as the name that the tenant gave the server. Who controls a
fact controls the policy that follows from it.

Sources: nova/virt/libvirt/config.py (LibvirtConfigGuestMetaNova*), vdsm's
tests/virt/data/domain_disk_block.xml, OpenNebula's src/vmm/LibVirtDriverKVM.cc, KubeVirt's
virtwrap/util/libvirt_helper.go, and CloudStack's VirtualMachineName.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

PLATFORM, TENANT, OPERATOR = "platform", "tenant", "operator"

#: Facts of a VM, and who controls them. A name that ends with a dot begins those of many facts.
VM_FACTS = {
    "name": PLATFORM,
    "uuid": PLATFORM,
    "title": TENANT,
    "partition": PLATFORM,
    "nova.flavor": PLATFORM,
    "nova.flavor.id": PLATFORM,
    "nova.extra.": PLATFORM,
    "nova.project": PLATFORM,
    "nova.project.name": PLATFORM,
    "nova.user": PLATFORM,
    "nova.user.name": PLATFORM,
    "nova.name": TENANT,
    "nova.image": TENANT,
    "ovirt.cluster": PLATFORM,
    "ovirt.custom.": PLATFORM,
    "one.gname": PLATFORM,
    "one.gid": PLATFORM,
    "one.uname": PLATFORM,
    "one.uid": PLATFORM,
    "one.datastore": PLATFORM,
    "one.name": TENANT,
    "kubevirt.namespace": PLATFORM,
    "kubevirt.name": TENANT,
    "cloudstack.account": PLATFORM,
    "pve.vmid": PLATFORM,
    "pve.pool": PLATFORM,
    "pve.name": TENANT,
    "pve.tags": TENANT,
    "pve.tag.": TENANT,
}
#: The same of a drive.
DRIVE_FACTS = {
    "target": PLATFORM,
    "bus": PLATFORM,
    "serial": PLATFORM,
    "alias": PLATFORM,
    "source": PLATFORM,
    "pool": PLATFORM,
    "volume": PLATFORM,
    "storage": PLATFORM,
    "boot": PLATFORM,
    "readonly": PLATFORM,
    "shareable": PLATFORM,
    "size_gb": PLATFORM,
    "iotune": PLATFORM,
    "iotune.": PLATFORM,
    "ovirt.domain": PLATFORM,
    "ovirt.image": PLATFORM,
    "pve.storage": PLATFORM,
    "pve.volume": PLATFORM,
}
#: What metrics tell of a VM, and which fact says it, by platform. A VM has those of one at most.
INFO = {
    "project": {
        "OpenStack": "nova.project",
        "OpenNebula": "one.gname",
        "KubeVirt": "kubevirt.namespace",
        "CloudStack": "cloudstack.account",
        "Proxmox VE": "pve.pool",
    },
    "guest": {
        "OpenStack": "nova.name",
        "OpenNebula": "one.name",
        "KubeVirt": "kubevirt.name",
        "Proxmox VE": "pve.name",
    },
}
# Of a label's text. No platform has longer names, and each scrape has them.
_MOST_CHARACTERS = 255
#: Facts that are either of these.
EITHER = {name: ("yes", "no") for name in ("readonly", "shareable", "iotune")}


#: What the names of platforms' facts begin with.
PREFIXES = {name.partition(".")[0] for name in VM_FACTS | DRIVE_FACTS if "." in name}
_TAKEN = {name.partition(".")[0] for name in VM_FACTS | DRIVE_FACTS}
_NUMBERS = ("size_gb", "boot", "iotune.", "one.gid", "one.uid", "cloudstack.account")


def who_controls(fact: str) -> str | None:
    """Return who controls a fact: PLATFORM, TENANT or OPERATOR; None if there is no such fact.

    An operator's files add those that have a prefix of no platform's (facts_folder.py).
    """
    known = VM_FACTS | DRIVE_FACTS
    if fact in known:
        return known[fact] if not fact.endswith(".") else None
    if (who := next((who for name, who in known.items() if _begins(fact, name)), None)) is not None:
        return who
    prefix, dot, rest = fact.partition(".")
    return OPERATOR if prefix and dot and rest and prefix not in _TAKEN else None


def is_number(fact: str) -> bool:
    """Return whether a fact is a whole number."""
    return fact in _NUMBERS or _begins(fact, "iotune.")


def platform_of(fact: str) -> str | None:
    """Return the platform that writes a fact; None if any may, or none does."""
    prefix, dot, _ = fact.partition(".")
    return prefix if dot and prefix in PREFIXES - {"iotune"} else None


def info_of(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return what metrics tell of a VM, in the order of INFO; "" if it isn't known.

    facts: the VM's.
    """
    told = ([facts[fact] for fact in by.values() if fact in facts] for by in INFO.values())
    return tuple(texts[0][:_MOST_CHARACTERS] if texts else "" for texts in told)


def is_of_drive(fact: str) -> bool:
    """Return whether a fact is one of a drive's."""
    return fact in DRIVE_FACTS or any(_begins(fact, name) for name in DRIVE_FACTS)


def names() -> Iterator[str]:
    """Yield the names of facts, as an operator writes them."""
    return (f"{name}KEY" if name.endswith(".") else name for name in VM_FACTS | DRIVE_FACTS)


def is_trusted(fact: str, trusted: Iterable[str]) -> bool:
    """Return whether a rule may go by a fact. trusted: patterns of tenants' facts."""
    return who_controls(fact) != TENANT or any(fnmatchcase(fact, each) for each in trusted)


def _begins(fact: str, prefix: str) -> bool:
    return prefix.endswith(".") and fact.startswith(prefix) and fact != prefix
