"""Domains whose counters don't come, although libvirt lists and describes them.

libvirt skips a domain that another call keeps busy, and says as little of a QEMU that refuses to
tell its counters.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

log = logging.getLogger(__name__)

#: Longer than most calls keep a domain busy.
LATE_S = 60.0


class Uncounted:
    """The domains that samples leave out, by when each did first or was last told of."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, missing: Collection[str], now_s: float) -> int:
        """Note the domains that a sample left out, and return how many it has for LATE_S.

        Each counts once in that time, and the log tells of it once until its counters come.
        """
        self._since = {name: self._since.get(name, now_s) for name in missing}
        late = [name for name, since in self._since.items() if now_s - since >= LATE_S]
        for name in late:
            self._since[name] = now_s
            if name not in self._told:
                log.error(
                    "%s: no counters for %g s, so its drives keep the limits that they have; see"
                    " whether it is migrating or being saved (`virsh domjobinfo`), or its QEMU"
                    " refuses query-blockstats (its log)",
                    name,
                    LATE_S,
                )
        self._told = (self._told | {*late}) & self._since.keys()
        return len(late)
