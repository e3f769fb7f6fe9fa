"""A snapshot of this host's part in the fleet, for all reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iokeel.errors import IokeelError


class BudgetInFleet(NamedTuple):
    """A tenant or storage of the fleet, as this host knows it.

    Rates are normalized I/O operations a second. set_iops: over all hosts, as an operator has set
    it; limit_iops: the same, corrected by a storage's latency, less the rate of its drives without
    a policy. allowed_iops: the allowance of its drives here; None: what they have, because etcd
    hasn't answered since the agent's start. floor_iops, charged_iops: this host's; 0 if it has no
    part yet. held_iops: the most that its QEMUs may be held to; None: without an end. stale_s: the
    age of the last read of etcd; None: there was none since the agent's start. others: other hosts'
    amounts, by name; silent: those of them that don't report. charges: of all hosts, by name.
    coordinator: None if there is none.
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
    charges: Mapping[str, int]
    coordinator: str | None
    error: IokeelError | None


class FleetSnapshot(NamedTuple):
    """This host's part in the fleet.

    host: its name there. error: etcd's; None if it has none. trips, failures: etcd's answers, and
    how often one of its members failed. tenants, storages: those whose drives are here.
    """

    host: str
    error: IokeelError | None
    trips: int
    failures: int
    tenants: Mapping[str, BudgetInFleet]
    storages: Mapping[str, BudgetInFleet]
