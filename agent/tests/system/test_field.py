"""On ordinary hosts, a drive below its limit does what it would do without iokeel."""

from __future__ import annotations

import pytest

from benchmarks.field.draw import Mode
from benchmarks.field.run import Options, run

# Alone, because it compares rates.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("mode", "seed"), [("stock", 21), ("trixie", 33)])
def test_a_drive_loses_nothing_but_for_a_promise_to_another(mode: Mode, seed: int) -> None:
    result = run(Options(0, seed, mode))
    (host,) = result.hosts
    assert host.breaches == []
    drives = host.drives.values()
    assert all(drive.with_iops > 0 for drive in drives)
    if sum(drive.unclear for drive in drives) > sum(drive.windows for drive in drives) / 2:
        pytest.skip("the machine was too busy to tell")
