"""How the lab reads the groups of patched QEMUs."""

from __future__ import annotations

from typing import Any

import pytest

from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.qmp_client import QmpError

POINTS = [{"size": 4096, "cost": 1.0}]
FORMER = {"iops-total": 9, "cost-read": POINTS, "idle-credit-ms": 10}
TODAYS = {
    "iops-total": 9,
    "__iokeel_extra": {"cost-read": POINTS, "cost-write": [], "idle-credit-ms": 10},
}


@pytest.mark.parametrize(
    ("command", "limits"),
    [("query-throttle-groups", FORMER), ("__iokeel_query-throttle-groups", TODAYS)],
)
def test_groups_of_either_series_are_read_alike(command: str, limits: dict[str, Any]) -> None:
    def ask(asked: str) -> Any:
        if asked != command:
            raise QmpError(asked)
        return [{"name": "a", "limits": limits}]

    assert throttle_groups(ask) == [{"name": "a", "limits": FORMER}]


def test_a_qemu_without_the_patches_tells_no_groups() -> None:
    def ask(asked: str) -> Any:
        raise QmpError(asked)

    assert throttle_groups(ask) == []
