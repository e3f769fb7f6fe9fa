"""Ansible filters: on which host of a run a policy is set, now that its guest may have migrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def moved(hostvars: Mapping[str, Any], host: str, hosts: Sequence[str]) -> dict[str, str]:
    """Return the guests that a host has policies of, but another host has, by name.

    hosts: those of the run, each with its `__iokeel_guests`. A guest that none of them has, or
    several, isn't one: its name may be misspelt, or mean two guests.
    """
    there = {other: {*hostvars[other]["__iokeel_guests"]} for other in hosts}
    found = {}
    for guest in _policies(hostvars, host):
        others = [other for other in hosts if guest in there[other]]
        if len(others) == 1 and others != [host] and guest not in _policies(hostvars, others[0]):
            found[guest] = others[0]
    return found


def placed(hostvars: Mapping[str, Any], host: str, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the policies to set on a host: its own, and those of guests that have come."""
    gone = moved(hostvars, host, hosts)
    came = {
        guest: _policies(hostvars, other)[guest]
        for other in hosts
        for guest, now in moved(hostvars, other, hosts).items()
        if now == host
    }
    own = _policies(hostvars, host)
    return came | {guest: policy for guest, policy in own.items() if guest not in gone}


def _policies(hostvars: Mapping[str, Any], host: str) -> dict[str, Any]:
    # Another host's variables don't have the role's defaults.
    return dict(hostvars[host].get("iokeel_policies") or {})


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them."""
        return {"iokeel_moved": moved, "iokeel_placed": placed}
