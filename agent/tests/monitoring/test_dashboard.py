"""The dashboard as a file. Its queries are asked of a real Prometheus in test_prometheus.py."""

from __future__ import annotations

from typing import Any

import pytest

from playbooks.monitoring.dashboard import build
from playbooks.monitoring.panels import ONLY_IF_QEMU_COUNTS
from tests.monitoring.grafana import DASHBOARD, PANELS, title
from tests.monitoring.programs import MONITORING
from tests.monitoring.test_rules import asked, known


def test_the_file_is_what_the_script_makes() -> None:
    assert (MONITORING / "dashboard.json").read_text() == build(), "run `make dashboard`"


@pytest.mark.parametrize("panel", PANELS, ids=title)
def test_a_panel_has_queries_and_a_unit(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    assert all(target["expr"] and target["datasource"] for target in panel["targets"])
    assert len({target["legendFormat"] for target in panel["targets"]}) == len(panel["targets"])
    assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("panel", PANELS, ids=title)
def test_a_panel_asks_for_what_the_agent_or_a_rule_tells(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert asked(target["expr"]) <= known()


@pytest.mark.parametrize("panel", PANELS, ids=title)
def test_a_panel_says_if_only_a_patched_qemu_has_its_data(panel: dict[str, Any]) -> None:
    metrics = {name for target in panel["targets"] for name in asked(target["expr"])}
    patched = [n for n in metrics if "_throttle_" in n or "device_latency" in n or "_size_" in n]
    assert (ONLY_IF_QEMU_COUNTS in panel["description"]) == bool(patched)


def test_panels_are_told_apart() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len({*cells}) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
