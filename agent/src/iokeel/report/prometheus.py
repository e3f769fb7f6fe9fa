"""The agent's metrics in Prometheus' text format, made when somebody asks for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from iokeel.report.metric_table import (
    METRICS,
    REQUEST_SIZE_BYTES,
    TICK_CPU_SECONDS,
    TICK_SECONDS,
)
from iokeel.report.metric_types import Description, Kind, Metric, throttles
from iokeel.report.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # they are not in the format that is served, and look like gauges there
_TICK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
# Sizes are counted by powers of two, the upper bound not included.
_SIZE_BUCKETS = tuple(2**power for power in range(10, 22))
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Metrics:
    """The registry behind /metrics, and the agent's own counters."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self._registry = process_registry()
        self._ticks = self._histogram(TICK_SECONDS)
        self._tick_cpu = self._histogram(TICK_CPU_SECONDS)

    def tick(self, elapsed_s: float, cpu_s: float) -> None:
        """Count one tick."""
        self._ticks.observe(elapsed_s)
        self._tick_cpu.observe(cpu_s)

    async def text(self, snapshot: Snapshot) -> bytes:
        """Return all metrics in the text format of CONTENT_TYPE.

        With thousands of drives it takes a while. So after each metric the event loop is left to
        others for as long as that metric took.
        """
        parts = [generate_latest(self._registry)]
        started = time.monotonic()
        for family in _families(snapshot):
            parts.append(generate_latest(_Only(family)))
            await asyncio.sleep(time.monotonic() - started)
            started = time.monotonic()
        return b"".join(parts)

    def _histogram(self, described: Description) -> Histogram:
        return Histogram(
            described.name, described.help, buckets=_TICK_BUCKETS_S, registry=self._registry
        )


def process_registry() -> CollectorRegistry:
    """Return a registry of the metrics that the Prometheus client has of each process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> tuple[Family]:
        return (self._family,)


def _families(snapshot: Snapshot) -> Iterator[Family]:
    for metric in METRICS:
        yield _family(metric, snapshot)
    yield _request_sizes(snapshot)


def _family(metric: Metric, snapshot: Snapshot) -> Family:
    described = metric.description
    kind = CounterMetricFamily if described.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(described.name, described.help, labels=described.labels)
    for labels, value in metric.samples(snapshot):
        if value is not None:
            family.add_metric(labels, value)
    return family


def _request_sizes(snapshot: Snapshot) -> Family:
    described = REQUEST_SIZE_BYTES
    family = HistogramMetricFamily(described.name, described.help, labels=described.labels)
    for labels, throttle in throttles(snapshot):
        family.add_metric(labels, _buckets(throttle.sizes), throttle.bytes)
    return family


def _buckets(sizes: Mapping[int, int]) -> list[tuple[str, float]]:
    """Return cumulative counts of requests by the largest size that they count."""
    counts = [
        (str(bound - 1), float(sum(n for least, n in sizes.items() if least < bound)))
        for bound in _SIZE_BUCKETS
    ]
    return [*counts, ("+Inf", float(sum(sizes.values())))]
