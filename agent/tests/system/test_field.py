"""On ordinary hosts, a drive below its limit does what it would do without iokeel."""

from __future__ import annotations

import pytest

from benchmarks.field.broken_agent import Break
from benchmarks.field.draw import Mode
from benchmarks.field.run import HostResult, Options, run
from benchmarks.field.verdict import unclear_ratio

# Alone, because it compares rates.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("mode", "seed"), [("stock", 21), ("trixie", 33)])
def test_a_drive_loses_nothing_but_for_a_promise_to_another(mode: Mode, seed: int) -> None:
    result = run(Options(0, seed, mode))
    (host,) = result.hosts
    assert host.breaches == []
    drives = host.drives.values()
    assert all(drive.with_iops > 0 for drive in drives)
    skip_if_unclear(host)


@pytest.mark.bench  # of whether it finds what is broken
@pytest.mark.parametrize(
    ("broken", "seed", "harmed"),
    [("strangers", 33, "b"), ("waits", 21, "b"), ("bounds", 15, "a"), ("jobs", 2, "b")],
)
def test_an_agent_that_breaks_a_promise_is_found(broken: Break, seed: int, harmed: str) -> None:
    (host,) = run(Options(0, seed, "stock", broken)).hosts
    if not host.drives[harmed].harm_ratio:
        skip_if_unclear(host)
    assert host.drives[harmed].harm_ratio > 0.05


def skip_if_unclear(host: HostResult) -> None:
    if unclear_ratio(host.drives) > 0.5:
        pytest.skip("the machine was too busy to tell")
