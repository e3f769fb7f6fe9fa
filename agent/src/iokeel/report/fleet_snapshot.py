"""A snapshot of this host's part in the fleet, for all reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iokeel.errors import IokeelError
from iokeel.report.records import ErrorReport, FleetBudgetReport, FleetReport


class BudgetInFleet(NamedTuple):
    """A tenant or storage of the fleet, as this host knows it: its record, and more.

    charged_iops: what this host is charged; 0 if it has no part yet. others: other hosts' amounts,
    by name.
    """

    report: FleetBudgetReport
    charged_iops: int
    others: Mapping[str, int]


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

    @property
    def report(self) -> FleetReport:
        """Its record."""
        return FleetReport(
            host=self.host,
            error=ErrorReport.of(self.error) if self.error else None,
            tenants=[tenant.report for tenant in self.tenants.values()],
            storages=[storage.report for storage in self.storages.values()],
        )
