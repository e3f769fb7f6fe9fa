"""The dashboard, used as Grafana uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playbooks.monitoring.panels import ONLY_IF_QEMU_COUNTS
from tests.monitoring.programs import MONITORING

DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
ALL = {variable["name"]: variable["allValue"] for variable in VARIABLES}
"""The variables when all is chosen."""


def title(panel: dict[str, Any]) -> str:
    """Return a panel's title."""
    return str(panel["title"])


def filled_in(query: str, variables: Mapping[str, str]) -> str:
    """Return a query with its variables' values."""
    for name, value in {**variables, "__rate_interval": "10s"}.items():
        query = re.sub(rf"\${name}\b", value, query)
    return query


def queries(panel: dict[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Return a panel's queries."""
    return [filled_in(target["expr"], variables) for target in panel["targets"]]


def choices(variable: dict[str, Any], variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the selector and the label whose values can be chosen."""
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", filled_in(variable["query"], variables))
    assert asked is not None
    return asked[1], asked[2]


def has_no_data(panel: dict[str, Any], *, patched: bool) -> bool:
    """Return whether a panel says that it has no data on this machine, with this QEMU."""
    says = panel["description"]
    if "(PSI)" in says and not Path("/proc/pressure/io").exists():
        return True
    return ONLY_IF_QEMU_COUNTS in says and not patched
