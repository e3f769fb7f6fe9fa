"""Parts of a limit that never add up to more, and a busy drive among drives that do little."""

from __future__ import annotations

from itertools import cycle
from math import inf
from typing import Any

import pytest

from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Fleet
from testing.sim.guests import Guest, Phase, idle
from testing.sim.storage import Disk, steady

LIMIT = 4000
SMALL = LIMIT / 25  # more than an idle drive's foothold
SECONDS = 60


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("guests", "granted"),
    [
        ({"vm": ("db1", VmPolicy(limit=LIMIT))}, {}),
        ({"tenant": "acme"}, {"granted": {"acme": TenantPolicy(limit=LIMIT)}}),
        ({}, {"granted_storages": {"disk0": LIMIT}}),
    ],
    ids=["vm", "tenant", "storage"],
)
def test_a_busy_drive_keeps_what_drives_that_wake_up_for_little_leave(
    guests: dict[str, Any], granted: dict[str, Any], exact: bool
) -> None:
    phases = [
        iter([Phase(inf)]),
        *(cycle([idle(7.0 + i), Phase(3.0, SMALL)]) for i in range(3)),
    ]
    drives = [
        Guest(f"g{i}", DrivePolicy(), its, exact=exact, **guests) for i, its in enumerate(phases)
    ]
    disk = Disk(StoragePolicy(10 * LIMIT), steady(10 * LIMIT))
    served = Fleet(drives, [disk], **granted).run(SECONDS).served[5:]
    others = served[:, 1:].sum(axis=1)
    assert others.mean() > SMALL / 2  # they do wake up
    assert (served[:, 0] / (LIMIT - others)).mean() >= 0.83
