"""What the dashboard shows of a patched QEMU, in a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testing.lab.qemu import binaries
from tests.monitoring.grafana import ALL, PANELS, has_no_data, queries, title
from tests.monitoring.hypervisors import CHOSEN, Watched, watched

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
SHOWN = [panel for panel in PANELS if not has_no_data(panel, patched=True)]


@pytest.fixture(scope="module")
def patched() -> Iterator[Watched]:
    """Hypervisors with a patched QEMU."""
    folder = binaries()
    firmware = ("-L", "/usr/share/qemu", "-L", "/usr/share/seabios")
    qemu = (folder / "qemu-system-x86_64", *firmware)
    with watched(qemu, folder / "qemu-storage-daemon") as made:
        yield made


@pytest.mark.parametrize("panel", SHOWN, ids=title)
def test_a_panel_has_data(patched: Watched, panel: dict[str, Any]) -> None:
    for query in (*queries(panel, CHOSEN), *queries(panel, ALL)):
        patched.wait_for_data(query)


def test_a_storage_daemons_drives_have_rates(patched: Watched) -> None:
    of_alice = '{domain="sd1", target_device="alice"}'
    patched.wait_for_data(f"iokeel_drive_normalized_iops{of_alice} > 0")
    patched.wait_for_data(f"rate(iokeel_drive_throttle_cost_total{of_alice}[10s]) > 0")


def test_alerts_are_those_of_what_is_wrong_and_no_other(patched: Watched) -> None:
    assert patched.has_alerts_of_what_is_wrong_only()
