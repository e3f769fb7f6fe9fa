"""A Prometheus with the project's rules, each second instead of each 15."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testing.agents import free_port
from testing.processes import end, ready
from tests.monitoring.programs import MONITORING, program


class Alert(NamedTuple):
    """state: "pending" or "firing"."""

    instance: str
    name: str
    state: str


class Prometheus:
    """It serves loopback, and keeps its files in a folder.

    targets: ports, by the instance. more: what the job has besides, such as `tls_config`.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, int], more: Mapping[str, object] | None = None
    ) -> None:
        self._port = free_port()
        (folder / "prometheus.yml").write_text(_configuration(targets, more or {}))
        for file in ("recording-rules.yml", "alert-rules.yml"):
            shutil.copy(MONITORING / file, folder)
        words = [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=error",
        ]
        self._process = subprocess.Popen(
            [program("prometheus"), *words], stderr=subprocess.PIPE, text=True
        )
        ready(self._process, lambda: self.ask("query", query="1"), "prometheus")

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """Return a query's series, each by its last value."""
        return [float(series["value"][1]) for series in self.ask("query", query=query)["result"]]

    def scrape_error(self) -> str:
        """Return why its last scrape of its first target failed; "" if it didn't."""
        return str(self.ask("targets")["activeTargets"][0]["lastError"])

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return the values of a label, as Grafana asks for them."""
        values: list[str] = self.ask(f"label/{label}/values", **{"match[]": selector})
        return values

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def alerts_since_the_start(self) -> set[Alert]:
        """Return each alert whose expression was true at any time, in each state that it had."""
        answer = self.ask("query", query="count_over_time(ALERTS[1h])")
        found = [series["metric"] for series in answer["result"]]
        return {
            Alert(labels.get("instance", ""), labels["alertname"], labels["alertstate"])
            for labels in found
        }

    def end(self) -> None:
        """End it."""
        end(self._process)


def _configuration(targets: Mapping[str, int], more: Mapping[str, object]) -> str:
    found = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    found["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = found["scrape_configs"]
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": instance}}
        for instance, port in targets.items()
    ]
    job |= more
    return str(yaml.safe_dump(found))
