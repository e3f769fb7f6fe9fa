"""A real Prometheus scrapes real agents whose drives are under load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from testing.lab.host import PROJECT
from tests.monitoring.grafana import ALL, PANELS, VARIABLES, choices, has_no_data, queries, title
from tests.monitoring.hypervisors import CHOSEN, Watched, watched

SHOWN = [panel for panel in PANELS if not has_no_data(panel, patched=False)]
EMPTY = [panel for panel in PANELS if has_no_data(panel, patched=False)]
_, _, AFTER = (PROJECT / "docs/operations.md").read_text().partition("\n## Billing and SLOs\n")
BILLING = re.findall(r"^```promql\n(.+?)^```", AFTER.partition("\n## ")[0], re.M | re.S)


@pytest.fixture(scope="module")
def stock() -> Iterator[Watched]:
    """Hypervisors with this machine's QEMU."""
    with watched() as made:
        yield made


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: str(variable["name"]))
def test_what_is_there_can_be_chosen(stock: Watched, variable: dict[str, Any]) -> None:
    asked = choices(variable, CHOSEN)
    wanted = CHOSEN[variable["name"]]
    stock.eventually(lambda: wanted in stock.prometheus.label_values(*asked))


@pytest.mark.parametrize("panel", SHOWN, ids=title)
def test_a_panel_has_data(stock: Watched, panel: dict[str, Any]) -> None:
    for query in (*queries(panel, CHOSEN), *queries(panel, ALL)):
        stock.wait_for_data(query)


@pytest.mark.parametrize("panel", EMPTY, ids=title)
def test_a_panel_is_empty_if_it_says_so(stock: Watched, panel: dict[str, Any]) -> None:
    stock.wait_for_data("iokeel_drive_latency_seconds")  # all that there will be is there
    assert [stock.prometheus.values(query) for query in queries(panel, ALL)] == [[]]


@pytest.mark.parametrize("query", BILLING)
def test_the_page_on_billing_asks_for_what_there_is(stock: Watched, query: str) -> None:
    stock.wait_for_data(query.replace(":5m]", ":1s]"))  # it runs for less than 5 minutes


def test_the_page_on_billing_has_queries() -> None:
    assert len(BILLING) == 4


def test_every_rule_evaluates(stock: Watched) -> None:
    stock.eventually(lambda: all(rule["health"] != "unknown" for rule in stock.prometheus.rules()))
    rules = stock.prometheus.rules()
    assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}
    for rule in rules:
        if rule["type"] == "recording":
            stock.wait_for_data(rule["name"])


def test_alerts_are_those_of_what_is_wrong_and_no_other(stock: Watched) -> None:
    assert stock.has_alerts_of_what_is_wrong_only()
