"""Which claims and offices count: those of hosts that are there.

A host is there as long as its key below `hosts/` is, under its lease. Its claims and offices have
the same lease, or for a while the one of before its agent started again. So a claim under the lease
that its host's key once had is as good as that key, and needs no other look at it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from iokeel.core.fleet.claims import HostClaim
from iokeel.errors import FleetRefused, NewerSchema
from iokeel.fleet.etcd import Etcd, Found, TooMuch
from iokeel.fleet.keys import Keys, last_part
from iokeel.fleet.records import HostRecord, LeaderRecord, claim_of, decoded, wants_in

# No budget has more: etcd takes no ledger of so many hosts (docs/fleet.md).
MOST_CLAIMS = 15_000
# Hosts whose demands by level are beyond this count by their sums, those with the longest first. It
# bounds a division, which takes 0.15 s for each MiB of levels.
MOST_WANTS_BYTES = 2 << 20
# etcd takes this many keys in one question by default, and a few more.
MOST_NAMES = 100
# Hosts that are known to be there. Beyond so many, all are asked for again.
_MOST_KNOWN = 50_000


class Presence:
    """The hosts that are there. me: this host's name."""

    def __init__(self, etcd: Etcd, keys: Keys, me: str) -> None:
        self._etcd = etcd
        self._keys = keys
        self._me = me
        self._known: dict[str, tuple[str, int]] = {}  # instances and leases, by name

    async def leader_in(
        self, found: Found, key: str, asked: Collection[str]
    ) -> tuple[str | None, Mapping[str, bytes | None]]:
        """Return who has an office, and the value of that host's own key.

        An office is vacant if its host isn't there, or if its record ends with no lease. asked: the
        keys that were asked for.
        """
        raw = found.values.get(key)
        if raw is None:
            return None, {}
        try:
            name = decoded(LeaderRecord, key, raw).host
        except NewerSchema:
            raise
        except FleetRefused:  # whoever campaigns replaces it
            return None, {}
        leased = key in found.leases
        if name == self._me:
            return (name if leased else None), {}
        host = self._keys.host(name)
        values = found.values if host in asked else (await self._etcd.read([host])).values
        value = values.get(host)
        return (name if leased and value is not None else None), {host: value}

    async def claims_in(
        self, found: Found, prefix: str, wants_prefix: str
    ) -> Mapping[str, HostClaim]:
        """Return the claims below a prefix by host, without those that can't be used.

        wants_prefix: of their demands by level. Those under another lease than the claim are from
        before an older agent took the host over. A claim without a lease doesn't count, nor one of
        a host that isn't there. Raises TooMuch.
        """
        claims: dict[str, HostClaim] = {}
        by_level: dict[str, str] = {}
        unsure = []
        for key, raw in found.values.items():
            if not key.startswith(prefix) or not (lease := found.leases.get(key)):
                continue
            name, wants = last_part(key), wants_prefix + key.removeprefix(prefix)
            with contextlib.suppress(FleetRefused):
                claims[name] = claim = claim_of(key, raw)
                if found.leases.get(wants) == lease:
                    by_level[name] = wants
                if self._known.get(name) != (claim.instance, lease):
                    unsure.append(name)
        instances = await self._instances(unsure) if unsure else {}
        for name in unsure:
            if instances.get(name) != claims[name].instance:
                del claims[name]
                by_level.pop(name, None)
        if len(claims) > MOST_CLAIMS:
            raise TooMuch(f"etcd {prefix}", f"has more than {MOST_CLAIMS}")
        left = MOST_WANTS_BYTES
        for name, key in sorted(by_level.items(), key=lambda item: len(found.values[item[1]])):
            if (left := left - len(found.values[key])) < 0:
                break
            with contextlib.suppress(FleetRefused):
                claims[name] = replace(claims[name], wants=wants_in(key, found.values[key]))
        return claims

    async def _instances(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the instances of those hosts that are there, under a lease."""
        keys = {self._keys.host(name): name for name in names}
        if len(keys) > MOST_NAMES:
            found = await self._etcd.read([], [self._keys.hosts])
        else:
            found = await self._etcd.read([*keys])
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        instances = {}
        for key in keys.keys() & found.leases.keys():
            with contextlib.suppress(FleetRefused):
                instance = decoded(HostRecord, key, found.values[key]).instance
                instances[keys[key]] = instance
                self._known[keys[key]] = (instance, found.leases[key])
        return instances
