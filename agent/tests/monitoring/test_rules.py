"""The rules, by Prometheus' own checker. A Prometheus that scrapes is in test_prometheus.py."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from iokeel.report.metrics.prometheus import process_registry
from iokeel.report.metrics.table import DESCRIPTIONS, ERROR_KINDS
from tests.monitoring.programs import MONITORING, program

CASES = Path(__file__).parent / "alerts.yml"
RULES = ("recording-rules.yml", "alert-rules.yml", "fleet-rules.yml")

# A sum, say, that isn't by instance
_OVER_HOSTS = re.compile(r"\b(sum|count|max|min|avg) ?(\(|by \((?!.*\binstance\b))")


@cache
def rules() -> list[dict[str, Any]]:
    """Return all rules."""
    files = [yaml.safe_load((MONITORING / name).read_text()) for name in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Return the alerts."""
    return [rule for rule in rules() if "alert" in rule]


def asked(expr: str) -> set[str]:
    """Return the metrics of the agent, its process and the recording rules that a query names."""
    return set(re.findall(r"\b(?:(?:\w+:)?iokeel|process)_\w+(?::\w+)?", expr))


def known() -> set[str]:
    """Return all that can be asked for."""
    of_process = process_registry().collect()
    told = {sample.name for metric in of_process for sample in metric.samples}
    told |= {described.name for described in DESCRIPTIONS if not described.is_histogram}
    for described in DESCRIPTIONS:
        if described.is_histogram:
            told |= {f"{described.name}_{part}" for part in ("bucket", "count", "sum")}
    return told | {rule["record"] for rule in rules() if "record" in rule}


def promtool(*words: str | Path) -> None:
    """Run it, and show its words if it isn't content."""
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_and_its_rules_are_valid() -> None:
    promtool("check", "config", "--lint-fatal", MONITORING / "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", MONITORING / "fleet-rules.yml")


def test_rules_that_need_all_hosts_are_those_that_the_configuration_does_not_load() -> None:
    """A Prometheus that scrapes its own host has one instance, and would sum over that one."""
    loaded = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["rule_files"]
    for name in RULES:
        groups = yaml.safe_load((MONITORING / name).read_text())["groups"]
        exprs = [rule["expr"] for group in groups for rule in group["rules"]]
        over_hosts = [bool(_OVER_HOSTS.search(expr)) for expr in exprs]
        assert {*over_hosts} == {name not in loaded}


def test_alerts_fire_and_hold_back_as_their_cases_say() -> None:
    promtool("test", "rules", CASES)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_a_case_in_which_it_fires_and_one_just_short(alert: dict[str, Any]) -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    of_it = [case for case in cases if case["alertname"] == alert["alert"]]
    assert {bool(case["exp_alerts"]) for case in of_it} == {True, False}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_where_and_the_command(alert: dict[str, Any]) -> None:
    assert alert["labels"].keys() == {"severity"}
    assert alert["annotations"].keys() == {"summary", "description"}
    assert re.search(
        r"`(iokeel|journalctl|systemctl|promtool) ", alert["annotations"]["description"]
    )
    if alert["expr"].startswith(("absent(", "count(")):  # it is about all hosts
        return
    by = re.match(r"sum by \((tenant|storage)\)", alert["expr"])
    where = by[1] if by else "instance"
    for text in alert["annotations"].values():
        assert f"$labels.{where}" in text


@pytest.mark.parametrize(
    "rule", rules(), ids=lambda rule: str(rule.get("alert", rule.get("record")))
)
def test_a_rule_asks_for_what_the_agent_tells(rule: dict[str, Any]) -> None:
    """A misspelt metric would be an alert that never fires, and promtool knows no names."""
    assert asked(rule["expr"]) <= known()
    assert asked(rule["expr"]) or "up{" in rule["expr"]
    kinds = re.findall(r'kind=~?"([^"]+)"', rule["expr"])
    assert {kind for names in kinds for kind in names.split("|")} <= ERROR_KINDS.keys()


def test_the_page_lists_all_alerts() -> None:
    rows = re.findall(
        r"^\| `(Iokeel\w+)` \| (\w+) \|", (MONITORING / "README.md").read_text(), re.M
    )
    assert rows == [(alert["alert"], alert["labels"]["severity"]) for alert in alerts()]
