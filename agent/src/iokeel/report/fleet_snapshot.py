"""A snapshot of this host's part in the fleet, for all reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iokeel.errors import IokeelError


class BudgetInFleet(NamedTuple):
    """A tenant or storage of the fleet, as this host knows it.

    Rates are normalized I/O operations a second. set_iops: over all hosts, as an operator has set
    it; limit_iops: the same, as a storage's latency has corrected it, and without its drives that
    have no policy. allowed_iops: what its drives here may do now; None: what they have,
    because etcd hasn't answered since the agent's start. floor_iops, charged_iops: this host's; 0
    if it has no part yet. held_iops: what its QEMUs may be held to; None: that has no end.
    stale_s: since when etcd wasn't read; None: since the agent's start. others: what other hosts
    may do, by name; silent: those of them that don't report. coordinator: None if there is none.
    """

    name: str
    set_iops: int
    limit_iops: int
    allowed_iops: int | None
    floor_iops: int
    charged_iops: int
    held_iops: int | None
    stale_s: float | None
    others: Mapping[str, int]
    silent: tuple[str, ...]
    coordinator: str | None
    error: IokeelError | None


class FleetSnapshot(NamedTuple):
    """This host's part in the fleet.

    host: its name there. error: what is wrong with etcd; None if nothing is. trips, failures:
    etcd's answers, and how often one of its members failed. tenants, storages: those whose drives
    are here.
    """

    host: str
    error: IokeelError | None
    trips: int
    failures: int
    tenants: Mapping[str, BudgetInFleet]
    storages: Mapping[str, BudgetInFleet]
