"""Limits that somebody set past libvirt, by HMP or another monitor: QEMU sends no event then.

One domain's QEMU is asked for them at each tick, so that costs the same with any number of domains.
With many, it takes long to come round. A drive that does more than its limits let through is read
again at once (core/drive/beyond.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from iokeel.core.limits import ThrottleLimits
from iokeel.errors import IokeelError
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.limits import LimitsInForce
from iokeel.hypervisors.libvirt.passthrough import query_blocks, read_limits
from iokeel.policy_xml.domain import DomainXml

log = logging.getLogger(__name__)

# As long as a tick's sample: a QEMU that hangs is found by that.
_TIMEOUT_S = 1.0


class SetPast:
    """Asks domains for their limits in turn.

    domains: those that run, by name, as their reader keeps them. changed: called with the name of a
    domain that has others than are known, to be read again.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        calls: Calls,
        limits: LimitsInForce,
        changed: Callable[[str], None],
    ) -> None:
        self._domains = domains
        self._calls = calls
        self._limits = limits
        self._changed = changed
        self._turn = 0

    def next(self, answered: Collection[str]) -> Coroutine[Any, Any, None] | None:
        """Return the question to one of the domains that have just answered; None if none needs it.

        A QEMU that counts is asked at each tick anyway, and one without a policy never.
        """
        names = [n for n in answered if (d := self._domains.get(n)) is not None and d.is_held]
        if not names:
            return None
        self._turn += 1
        name = names[self._turn % len(names)]
        return self._ask(name, self._domains[name])

    async def _ask(self, name: str, domain: Domain) -> None:
        changes = self._limits.changes(name)
        try:
            told = await self._calls.call_domain(
                name,
                lambda connection: _limits(connection, name, domain.xml),
                _TIMEOUT_S,
                reading=True,
            )
        except IokeelError as error:
            log.debug("%s", error)
            return
        if self._limits.changes(name) == changes and self._domains.get(name) is domain:
            if any(limits not in self._known(domain, target) for target, limits in told.items()):
                self._changed(name)

    def _known(self, domain: Domain, target: str) -> set[ThrottleLimits | None]:
        """Return the limits that a drive may have: its own, or the last ones of its group."""
        disks = {disk.target: disk for disk in domain.xml.disks}
        group = disks[target].iotune_group
        return {
            drive.in_force and drive.in_force.stock
            for name, drive in domain.info.drives.items()
            if name == target or (group is not None and disks[name].iotune_group == group)
        }


def _limits(connection: Any, name: str, xml: DomainXml) -> dict[str, ThrottleLimits | None]:
    """Return the limits that a domain's QEMU has, by target. Blocks."""
    handle = connection.lookupByName(name)
    blocks = query_blocks(handle, name)
    return {} if blocks is None else read_limits(handle, xml, blocks)
