"""Samples in Prometheus' text format, for metrics with thousands of them.

prometheus_client writes the same text (generate_latest), but makes several objects a sample, so
that it takes four times as long.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from iokeel.report.metric_types import Description, Labels, Sample

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


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
    kind = described.kind.value
    return f"# HELP {described.name} {described.help}\n# TYPE {described.name} {kind}\n"
