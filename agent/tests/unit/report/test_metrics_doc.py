"""docs/metrics.md is what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import iokeel
from iokeel.report.metrics.table import DESCRIPTIONS, ERROR_KINDS
from iokeel.report.metrics.types import Description
from testing.metrics_doc import page

SOURCES = Path(iokeel.__file__).parent
# An error of a QMP connection has its kind as its first argument.
MAKES_A_KIND = ("MonitorLost", "self._fail", "self._error")
PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make metrics-doc`"


@pytest.mark.parametrize("described", DESCRIPTIONS, ids=lambda described: described.name)
def test_a_metric_is_described_as_prometheus_wants_it(described: Description) -> None:
    assert re.fullmatch("iokeel_[a-z_]+", described.name)
    assert described.unit
    assert re.fullmatch(r"[A-Z1].*\.", described.help)


def test_every_kind_of_error_is_explained() -> None:
    counted = set()
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.AugAssign) and ".errors[" in ast.unparse(node.target):
                counted |= set(re.findall(r"'([a-z]+)'", ast.unparse(node.target)))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKES_A_KIND:
                counted |= set(re.findall(r"^'([a-z]+)'$", ast.unparse(node.args[0])))
    assert {"policy", "timeout", "protocol", "store"} <= counted
    assert counted <= ERROR_KINDS.keys()
