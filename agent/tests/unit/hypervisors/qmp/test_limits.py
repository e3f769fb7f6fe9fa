"""Limits in QMP's words: those that make no sense are unknown, and none is lifted by that."""

from __future__ import annotations

from typing import Any

import pytest

from iokeel.core.values.limits import ThrottleLimits
from iokeel.hypervisors.qemu.limits import from_block, from_group


@pytest.mark.parametrize(
    "raw",
    [
        b'{"iops-total": -5}',
        b'{"iops-total": []}',
        b'{"iops-total": [{"size": 4096, "cost": 1.0}], "bps-total": 5}',
        b'{"iops-total": 400, "idle-credit-ms": -1}',
        b'{"iops-total": 400, "split-size": []}',
        b'{"iops-total": true}',
        b'{"iops-total": 1e400}',
        b'{"\xff": 1}',
        b"{",
        b"[" * 100_000,
    ],
)
def test_limits_of_a_group_that_make_no_sense_are_unknown(raw: bytes) -> None:
    assert from_group(raw) is None


def test_a_groups_other_members_are_ignored() -> None:
    assert from_group(b'{"iops-total": 400, "new": 5}') == ThrottleLimits(iops_total=400)


@pytest.mark.parametrize("value", [-5, "400", None, True, 4.5, [], {}])
def test_limits_of_a_drive_that_make_no_sense_are_unknown(value: Any) -> None:
    assert from_block({"iops": value, "bps": 0}) is None
    assert from_block({"iops": 400, "iops_max": value}) is None
