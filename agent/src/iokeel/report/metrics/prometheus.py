"""Metrics of a snapshot and of the agent itself in Prometheus' text format, made when asked for.

prometheus_client writes the same text (generate_latest), but makes several objects a sample, so
that it takes four times as long.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from iokeel.report.metrics.table import (
    CONFIG_VALID,
    METRICS,
    REQUEST_SIZE_BYTES,
    TICK_CPU_SECONDS,
    TICK_SECONDS,
)
from iokeel.report.metrics.types import Description, Labels, Sample, throttles
from iokeel.report.snapshot import Snapshot

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LabelTexts(dict[Labels, str]):
    """The texts of labels by their values, each made once. names: of the labels."""

    def __init__(self, names: Labels) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, values: Labels) -> str:
        text = self[values] = self._text(values)
        return text

    def _text(self, values: Labels) -> str:
        if not self._names:
            return ""
        pairs = zip(self._names, values, strict=True)
        texts = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
        return f"{{{texts}}}"


def samples_text(described: Description, samples: Iterable[Sample], labels: LabelTexts) -> str:
    """Return a counter's or a gauge's text, without samples that can't be written."""
    name = described.name
    lines = [
        f"{name}{labels[values]} {text}\n"
        for values, value in samples
        if value is not None and (text := _number(value)) is not None
    ]
    return _head(described) + "".join(lines)


def _number(value: float) -> str | None:
    """Return a number's text; None for an integer that no float comes near."""
    try:
        return "+Inf" if value == inf else repr(float(value))
    except OverflowError:
        return None


def histogram_text(
    described: Description,
    histograms: Iterable[tuple[Labels, Mapping[str, int], int]],
    labels: LabelTexts,
) -> str:
    """Return a histogram's text.

    histograms: the labels' values, the cumulative counts by their upper bounds (the last is +Inf),
    and the sum of what was counted.
    """
    name, lines = described.name, [_head(described)]
    for values, counts, total in histograms:
        own, sum_text = labels[values], _number(total)
        if sum_text is None:
            continue
        rest = f",{own[1:]}" if own else "}"
        lines += [f'{name}_bucket{{le="{bound}"{rest} {n}.0\n' for bound, n in counts.items()]
        lines.append(f"{name}_count{own} {counts['+Inf']}.0\n{name}_sum{own} {sum_text}\n")
    return "".join(lines)


def _head(described: Description) -> str:
    kind = described.kind
    return f"# HELP {described.name} {described.help}\n# TYPE {described.name} {kind}\n"


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
