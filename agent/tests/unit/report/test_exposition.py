"""The text of metrics, against prometheus_client's own reader and writer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from iokeel.report.metrics.prometheus import LabelTexts, histogram_text, samples_text
from iokeel.report.metrics.types import Description

NAMES = ("domain", "direction")
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

# A lone surrogate has no place in UTF-8. The library's reader splits at any end of line.
words = st.text(st.characters(codec="utf-8")).filter(
    lambda text: len(text.replace("\n", "").splitlines()) <= 1
)
labels = st.tuples(words, words)


def read(text: str) -> list[tuple[str, str, str, list[object]]]:
    """Return what the library reads of a text: each metric's name, type, help and samples."""
    return [
        (
            family.name,
            family.type,
            family.documentation,
            [(s.name, s.labels, s.value) for s in family.samples],
        )
        for family in text_string_to_metric_families(text)
    ]


def written(family: Family) -> str:
    """Return a metric as the library writes it."""

    class Only(Collector):
        def collect(self) -> list[Family]:
            return [family]

    registry = CollectorRegistry()
    registry.register(Only())
    return generate_latest(registry).decode()


@given(st.dictionaries(labels, st.floats(allow_nan=False) | st.integers(0, 2**64)))
def test_a_counter_and_a_gauge_read_as_the_library_writes_them(
    samples: dict[tuple[str, str], float],
) -> None:
    counter = CounterMetricFamily("asked_total", "How often.", labels=NAMES)
    gauge = GaugeMetricFamily("rate", "How fast.", labels=NAMES)
    for values, value in samples.items():
        counter.add_metric(values, value)
        gauge.add_metric(values, value)
    counted = Description("asked_total", "times", "How often.", NAMES)
    measured = Description("rate", "a second", "How fast.", NAMES)
    assert read(samples_text(counted, samples.items(), LabelTexts(NAMES))) == read(written(counter))
    assert read(samples_text(measured, samples.items(), LabelTexts(NAMES))) == read(written(gauge))


@given(st.dictionaries(labels, st.tuples(st.lists(st.integers(0, 2**64)), st.integers(0, 2**64))))
def test_a_histogram_reads_as_the_library_writes_it(
    histograms: dict[tuple[str, str], tuple[list[int], int]],
) -> None:
    family = HistogramMetricFamily("size", "How large.", labels=NAMES)
    ours = []
    for values, (counts, total) in histograms.items():
        bounds = [*(str(2**power - 1) for power in range(len(counts))), "+Inf"]
        buckets = dict(zip(bounds, [*counts, sum(counts)], strict=True))
        family.add_metric(values, [(bound, float(n)) for bound, n in buckets.items()], total)
        ours.append((values, buckets, total))
    described = Description("size", "bytes", "How large.", NAMES, is_histogram=True)
    assert read(histogram_text(described, ours, LabelTexts(NAMES))) == read(written(family))


def test_a_metric_without_labels_has_no_braces() -> None:
    described = Description("up", "0 or 1", "Whether it runs.")
    lines = samples_text(described, [((), 1)], LabelTexts(())).splitlines()
    assert lines == ["# HELP up Whether it runs.", "# TYPE up gauge", "up 1.0"]


def test_a_sample_that_is_not_known_has_no_line() -> None:
    described = Description("rate", "a second", "How fast.", ("domain",))
    text = samples_text(described, [(("db1",), None), (("web1",), 2.5)], LabelTexts(("domain",)))
    assert text.splitlines()[2:] == ['rate{domain="web1"} 2.5']


def test_a_number_that_no_float_holds_has_no_line_and_the_others_do() -> None:
    described = Description("rate", "a second", "How fast.", ("domain",))
    samples: list[tuple[tuple[str, ...], float]] = [(("evil",), 10**400), (("web1",), 2.5)]
    text = samples_text(described, samples, LabelTexts(("domain",)))
    assert text.splitlines()[2:] == ['rate{domain="web1"} 2.5']
    counted = Description("size", "bytes", "How large.", ("domain",), is_histogram=True)
    histograms = [(("evil",), {"+Inf": 1}, 10**400), (("web1",), {"+Inf": 1}, 2)]
    text = histogram_text(counted, histograms, LabelTexts(("domain",)))
    assert [line for line in text.splitlines() if "evil" in line] == []
    assert 'size_sum{domain="web1"} 2.0' in text
