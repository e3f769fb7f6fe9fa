"""The counters of drives that libvirt doesn't know, read each tick beside those of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from iokeel.core.counters import Counters, DriveId
from iokeel.errors import IokeelError
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.hidden import read_counters
from iokeel.hypervisors.libvirt.readings import Reading

log = logging.getLogger(__name__)


class HiddenCounters:
    """Reads them. domains: those that run, by name, as their reader keeps them."""

    def __init__(self, domains: Mapping[str, Domain], calls: Calls) -> None:
        self._domains = domains
        self._calls = calls

    async def read(
        self, readings: Mapping[str, Reading], timeout_s: float
    ) -> dict[DriveId, Counters]:
        """Return the counters of the domains with such drives. readings: libvirt's of all domains.

        A domain that doesn't answer in time is left out.
        """
        due = {
            name: domain
            for name, reading in readings.items()
            if (domain := self._domains.get(name)) is not None and _is_due(domain, reading)
        }
        found: dict[DriveId, Counters] = {}
        if due:
            asked = (self._ask(name, due[name], readings[name], timeout_s) for name in due)
            for counters in await asyncio.gather(*asked):
                found |= counters
        return found

    async def _ask(
        self, name: str, domain: Domain, reading: Reading, timeout_s: float
    ) -> dict[DriveId, Counters]:
        try:
            read = await self._calls.call_domain(
                name,
                lambda connection: read_counters(connection.lookupByName(name), domain.xml),
                timeout_s,
            )
        except IokeelError as error:
            log.debug("%s", error)
            return {}
        found = {}
        for target, counters in read.items():
            if (group := (reading.groups or {}).get(target)) is not None:
                counters = counters._replace(throttle=group.counters(reading.groups_at_ns))
            found[DriveId(name, target)] = counters
        return found


def _is_due(domain: Domain, reading: Reading) -> bool:
    """Return whether a domain has such drives, runs here, and isn't busy.

    One that has no others can't be told to be busy.
    """
    hidden = domain.xml.hidden
    if not hidden or not domain.is_held or reading.runs_elsewhere:
        return False
    return not reading.is_busy or len(hidden) == len(domain.xml.disks)
