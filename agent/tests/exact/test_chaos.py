"""Limits and cost curves hold and guests run, whatever fails on a host."""

from __future__ import annotations

import pytest

from benchmarks.chaos.run import Options, run
from benchmarks.chaos.schedule import KINDS

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU


def test_limits_and_curves_hold_whatever_fails_on_a_host() -> None:
    result = run(Options(40, 7217, "exact"))
    assert result.faults.keys() == {kind.name for kind in KINDS}
    # Rates depend on the machine. What fio's log says is for `make chaos MODE=exact` to judge.
    assert [breach for breach in result.all_breaches if breach.seen != "fio"] == []
    for guest in ("chaos0 vda", "chaos1 vda"):
        assert result.drives[guest].samples > 50
        assert result.drives[guest].seconds > 0, "fio did something"
