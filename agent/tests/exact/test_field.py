"""On an ordinary host, a drive below its limit does what it would do without iokeel."""

from __future__ import annotations

import pytest

from benchmarks.field.run import Options, run

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU


def test_a_drive_loses_nothing_but_for_a_promise_to_another() -> None:
    (host,) = run(Options(0, 33, "exact")).hosts
    assert host.breaches == []
    assert all(drive.with_iops > 0 for drive in host.drives.values())
