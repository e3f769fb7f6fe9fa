"""What the page says of a storage: its capacity, and whether it can keep what it promises."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import expect

from testing.cockpit import Cockpit
from testing.simulated_api import steady_guest
from tests.page.conftest import BUILT, Open, picture, violations
from tests.page.simulated import OtherStorage, served

UNKNOWN: Mapping[str, object] = {"capacity_iops": None, "usable_iops": None}
BY_WEIGHT = {**UNKNOWN, "by_weight": True}
SLOW: Mapping[str, object] = {"usable_iops": 500.0}
RESERVED: Mapping[str, object] = {"reserved_iops": 900.0}


def host(told: Mapping[str, object]) -> OtherStorage:
    made = OtherStorage([steady_guest("db1", 300, 400)], told)
    made.run(5)
    return made


@pytest.mark.parametrize(
    ("told", "capacity", "promised"),
    [
        ({**SLOW, **RESERVED}, "500 now, of 20,000 iops", "900 iops more than it can keep"),
        ({**UNKNOWN, **RESERVED}, "unknown", "900 iops not guaranteed"),
        (BY_WEIGHT, "by weight", "\u2013"),
    ],
    ids=["slow", "unknown", "by weight"],
)
def test_the_capacity_of_a_storage_and_its_promises(
    folder: Path, opened: Open, told: Mapping[str, object], capacity: str, promised: str
) -> None:
    socket = folder / "agent.sock"
    with served(host(told).served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        row = page.locator("table[aria-label=Storages] tbody tr")
        expect(row.locator("td[data-label=Capacity]")).to_have_text(capacity)
        expect(row.locator("td[data-label=Promised]")).to_have_text(promised)
        assert violations(page) == []
        picture(page, f"storage-{capacity.partition(' ')[0]}")
