"""Limits hold and guests run, whatever fails on a host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.chaos.host import ChaosHost, chaos_host
from benchmarks.chaos.run import Options, make_faults
from benchmarks.chaos.schedule import KINDS

# Alone, because it gives the agent a time to mend what a hand has changed.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]


@pytest.fixture
def chaos() -> Iterator[ChaosHost]:
    with chaos_host(exact=False) as made:
        yield made


def test_limits_hold_and_guests_run_whatever_fails_on_a_host(chaos: ChaosHost) -> None:
    result = make_faults(chaos, Options(40, 7217, "stock"))
    assert result.faults.keys() == {kind.name for kind in KINDS}
    # Rates depend on the machine. What fio's log says is for `make chaos` to judge.
    assert [breach for breach in result.all_breaches if breach.seen != "fio"] == []
    for guest in ("chaos0 vda", "chaos1 vda"):
        assert result.drives[guest].samples > 50
        assert result.drives[guest].seconds > 0, "fio did something"
