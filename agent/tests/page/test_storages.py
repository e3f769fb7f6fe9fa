"""What the page says of a storage: its capacity, and whether it can keep what it promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import expect

from testing.cockpit import Cockpit
from testing.simulated_api import steady_guest
from tests.page.conftest import BUILT, Open, violations
from tests.page.simulated import OtherStorage, served

UNKNOWN: Mapping[str, object] = {"capacity_iops": None, "usable_iops": None}
BY_WEIGHT = {**UNKNOWN, "by_weight": True}
SLOW: Mapping[str, object] = {"usable_iops": 500.0}
RESERVED: Mapping[str, object] = {"reserved_iops": 900.0}
IDS = ["slow", "shared", "unknown", "by weight"]

# All that the form needs of libvirt: a domain without a policy.
VIRSH = """#!/bin/sh
case " $* " in *" list "*) echo "c7a5fdbd-cdaf-9455-926a-d65c16db1809 db1" ;; esac
"""


def host(told: Mapping[str, object], *, is_shared: bool = False) -> OtherStorage:
    made = OtherStorage([steady_guest("db1", 300, 400)], told, is_shared=is_shared)
    made.run(5)
    return made


@pytest.mark.parametrize(
    ("told", "is_shared", "capacity", "promised"),
    [
        ({**SLOW, **RESERVED}, False, "500 now, of 20,000 iops", "900 iops more than it can keep"),
        ({**SLOW, **RESERVED}, True, "500 now, of 20,000 iops", "900 iops"),
        ({**UNKNOWN, **RESERVED}, False, "unknown", "900 iops not guaranteed"),
        (BY_WEIGHT, False, "by weight", "\u2013"),
    ],
    ids=IDS,
)
def test_the_capacity_of_a_storage_and_its_promises(
    folder: Path,
    opened: Open,
    told: Mapping[str, object],
    is_shared: bool,
    capacity: str,
    promised: str,
) -> None:
    made, socket = host(told, is_shared=is_shared), folder / "agent.sock"
    with served(made.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        row = page.locator("table[aria-label=Storages] tbody tr")
        expect(row.locator("td[data-label=Capacity]")).to_have_text(capacity)
        expect(row.locator("td[data-label=Promised]")).to_have_text(promised)
        assert violations(page) == []


@pytest.mark.parametrize(
    ("told", "is_shared", "kind", "said"),
    [
        (SLOW, False, "warning", "disk0 then promises 900 of the 500 iops that it can serve."),
        (SLOW, True, "info", "disk0 then promises 900 iops to the drives of this host."),
        (UNKNOWN, False, "warning", "because the capacity of disk0 is not known."),
        (BY_WEIGHT, False, "info", "disk0 then promises 900 iops to the drives of this host."),
    ],
    ids=IDS,
)
def test_the_form_warns_of_a_reservation_only_if_it_is_known_not_to_be_kept(
    folder: Path,
    opened: Open,
    told: Mapping[str, object],
    is_shared: bool,
    kind: str,
    said: str,
) -> None:
    (virsh := folder / "virsh").write_text(VIRSH)
    virsh.chmod(0o755)
    made, socket = host(told, is_shared=is_shared), folder / "agent.sock"
    with (
        served(made.served, socket),
        Cockpit(folder / "c", BUILT, socket, programs=folder) as cockpit,
    ):
        page = opened(f"{cockpit.url}#/drive/db1/vda")
        page.get_by_role("button", name="Change its policy").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reservation", exact=True).fill("900")
        alert = dialog.locator(".pf-v6-c-alert")
        expect(alert).to_contain_text(said)
        expect(alert).to_have_class(re.compile(f"pf-m-{kind}"))
        assert violations(page) == []
