"""Records as the agent sends them, for tests of what shows them."""

from __future__ import annotations

from typing import Any

from iokeel.report.records import DriveReport, StorageReport, VmReport

_UNKNOWN: dict[str, Any] = dict.fromkeys(DriveReport.__struct_fields__)
_UNKNOWN_STORAGE: dict[str, Any] = dict.fromkeys(StorageReport.__struct_fields__)


def drive(target: str = "vda", *, domain: str = "db1", rate: float | None = 0.0,
          allowed: float | None = 1000.0, tenant: str | None = "acme", storage: str = "sda",
          **more: Any) -> DriveReport:  # fmt: skip
    """Return a drive that is held to 1,000 iops."""
    known: dict[str, Any] = {
        "domain": domain,
        "target": target,
        "tenant": tenant,
        "storage": storage,
        "normalized_iops": rate,
        "allowed_iops": allowed,
        "limit_iops": None if allowed is None else int(allowed),
        "reservation_iops": 0,
        "credit_s": 0.0,
        "burst_open": False,
        "bursts": False,
        "binding": [],
        "throttled_s": 0.0,
        "retunes": 0,
        "overwritten": 0,
        "errors": 0,
        "verdict": "it is idle",
        "has_policy": True,
        "limits_in_force": {},
        "above_s": 0.0,
        "above_operations": 0.0,
        "read_operations": 0.0,
        "write_operations": 0.0,
        "promises": {},
    }
    return DriveReport(**_UNKNOWN | known | more)


def vm(*drives: DriveReport, **more: Any) -> VmReport:
    """Return the VM of some drives."""
    known: dict[str, Any] = {
        "domain": drives[0].domain,
        "tenant": drives[0].tenant,
        "limit_iops": None,
        "allowed_iops": None,
        "reservation_iops": 0,
        "credit_s": 0.0,
        "burst_open": False,
        "policy_error": None,
        "cgroup": {},
        "drives": [*drives],
    }
    return VmReport(**known | more)


def storage(name: str = "sda", **more: Any) -> StorageReport:
    """Return a storage that keeps its promises."""
    known: dict[str, Any] = {
        "storage": name,
        "drives": 2,
        "capacity_iops": 2000,
        "usable_iops": 2000.0,
        "normalized_iops": 0.0,
        "reserved_iops": 100.0,
        "reservations_kept": 1.0,
        "oversold": False,
        "cut_iops": 0.0,
        "suffering": [],
        "exhausted": False,
        "by_weight": False,
    }
    return StorageReport(**_UNKNOWN_STORAGE | known | more)
