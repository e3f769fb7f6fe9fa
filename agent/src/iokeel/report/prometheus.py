"""The metrics of a snapshot and of the agent itself, made when somebody asks for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from iokeel.report.exposition import LabelTexts, histogram_text, samples_text
from iokeel.report.metric_table import (
    CONFIG_VALID,
    METRICS,
    REQUEST_SIZE_BYTES,
    TICK_CPU_SECONDS,
    TICK_SECONDS,
)
from iokeel.report.metric_types import Description, throttles
from iokeel.report.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # they are not in the format that is served, and look like gauges there
# Finer where a tick comes near its second.
_TICK_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0),
)
# Sizes are counted by powers of two, the upper bound not included.
_SIZE_BUCKETS = tuple(2**power for power in range(10, 22))


class Metrics:
    """The registry behind /metrics, and the agent's own counters."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self._registry = process_registry()
        self._config_valid = Gauge(CONFIG_VALID.name, CONFIG_VALID.help, registry=self._registry)
        self.set_config_valid(True)
        self._ticks = self._histogram(TICK_SECONDS)
        self._tick_cpu = self._histogram(TICK_CPU_SECONDS)

    def set_config_valid(self, is_valid: bool) -> None:
        """Tell whether the configuration that was last read is in force."""
        self._config_valid.set(is_valid)

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
        for text in _texts(snapshot):
            parts.append(text.encode(errors="replace"))  # half of a surrogate pair has no UTF-8
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


def _texts(snapshot: Snapshot) -> Iterator[str]:
    described = REQUEST_SIZE_BYTES, *(metric.description for metric in METRICS)
    labels = {names: LabelTexts(names) for names in {each.labels for each in described}}
    for metric in METRICS:
        texts = labels[metric.description.labels]
        yield samples_text(metric.description, metric.samples(snapshot), texts)
    sizes = ((of, _buckets(t.sizes), t.bytes) for of, t in throttles(snapshot))
    yield histogram_text(REQUEST_SIZE_BYTES, sizes, labels[REQUEST_SIZE_BYTES.labels])


def _buckets(sizes: Mapping[int, int]) -> dict[str, int]:
    """Return cumulative counts of requests by the largest size that they count."""
    counts = {
        str(bound - 1): sum(n for least, n in sizes.items() if least < bound)
        for bound in _SIZE_BUCKETS
    }
    return counts | {"+Inf": sum(sizes.values())}
