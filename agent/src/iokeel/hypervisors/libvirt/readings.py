"""The statistics of running domains, read at each tick.

Those of all domains come in one call, with NOWAIT: it skips a domain that another call keeps
busy, such as one whose QEMU hangs. After that, throttle groups are read from the domains that
answered, if their QEMU counts and a policy limits one of their drives.

A guest in post-copy runs on the host that it migrates to, while its counters here stand still. It
isn't idle, so it counts as not read, and keeps its reservation of the storage that both hosts
reach. One that is paused otherwise runs nowhere: also if post-copy has failed, or after a restore.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import libvirt

from iokeel.core.counters import Counters
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.passthrough import read_groups
from iokeel.hypervisors.qmp.throttle_groups import Group

log = logging.getLogger(__name__)

_STATS_FLAGS = (
    libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_PAUSED
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
)
_STATS = libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BLOCK
# libvirt pauses a guest so that its memory is written: for an internal snapshot or an external one
# with memory, by `virsh save`, or by `virsh dump`. A guest that starts may be one that is restored,
# whose QEMU reads its memory; none does any I/O of its own yet.
_MOVING_MEMORY = {
    libvirt.VIR_DOMAIN_PAUSED_SAVE,
    libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT,
    libvirt.VIR_DOMAIN_PAUSED_DUMP,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
}


class Reading(NamedTuple):
    """A domain's block statistics, and its throttle groups by target; None if not read.

    groups: see read_groups. Times are by the monotonic clock.
    """

    at_ns: int
    values: Mapping[str, Any]
    groups_at_ns: int
    groups: Mapping[str, Group | None] | None

    @property
    def is_busy(self) -> bool:
        """Whether libvirt didn't ask its QEMU, because another call about it is under way."""
        return not _counted(self.values)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether it is in post-copy, and has left this host."""
        return self._paused_for in {libvirt.VIR_DOMAIN_PAUSED_POSTCOPY}

    @property
    def is_saving(self) -> bool:
        """Whether it is paused while its memory is written to storage, or read from there."""
        return self._paused_for in _MOVING_MEMORY

    @property
    def _paused_for(self) -> object:
        is_paused = self.values.get("state.state") == libvirt.VIR_DOMAIN_PAUSED
        return self.values.get("state.reason") if is_paused else None


def read_all(
    connection: Any, names: Collection[str] | None, domains: Mapping[str, Domain]
) -> dict[str, Reading]:
    """Return the readings of all running domains (None), or of some.

    domains: those whose throttle groups are read too. Raises libvirtError.
    """
    if names is None:
        found = connection.getAllDomainStats(_STATS, _STATS_FLAGS)
    else:
        handles = [connection.lookupByName(name) for name in names]
        found = connection.domainListGetStats(handles, _STATS, _STATS_FLAGS)
    at_ns = time.monotonic_ns()
    readings = {}
    for handle, values in found:
        name = handle.name()
        groups = None
        if name in domains and _counted(values):  # else it is busy, perhaps for long
            try:
                domain = domains[name]
                groups = read_groups(handle, domain.xml, domain.abilities)
            except libvirt.libvirtError as error:
                log.debug("%s: %s", name, error)  # most likely it has just gone
        readings[name] = Reading(at_ns, values, time.monotonic_ns(), groups)
    return readings


def _counted(values: Mapping[str, Any]) -> list[str]:
    """Return the beginnings of the names of the disks' values, of disks that have counters.

    A domain that was busy has none, and a vhost-user disk never has any.
    """
    disks = (f"block.{i}." for i in range(values.get("block.count", 0)))
    return [disk for disk in disks if disk + "rd.reqs" in values]


def counters_of(reading: Reading) -> list[tuple[str, Counters]]:
    """Return the counters of a domain's disks, with their targets; none if it runs elsewhere."""
    found: list[tuple[str, Counters]] = []
    values = reading.values
    if reading.runs_elsewhere:
        return found
    for at in _counted(values):
        target = values[at + "name"]
        group = reading.groups.get(target) if reading.groups else None
        found.append(
            (
                target,
                Counters(
                    reading.at_ns,
                    values[at + "rd.reqs"],
                    values[at + "rd.bytes"],
                    values[at + "wr.reqs"],
                    values[at + "wr.bytes"],
                    values.get(at + "rd.times", 0),
                    values.get(at + "wr.times", 0),
                    group.counters(reading.groups_at_ns) if group else None,
                    values.get(at + "fl.reqs"),
                    values.get(at + "fl.times"),
                ),
            )
        )
    return found
