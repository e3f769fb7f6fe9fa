"""Sizes, rates and times, read and written as people do."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.errors import ConfigError
from iokeel.words.units import duration, iops, parse_size, percent, percent_kept, rate, size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("512", 512),
        ("4k", 4096),
        ("4K", 4096),
        ("4kb", 4096),
        ("4KiB", 4096),
        ("64 KiB", 65536),
        ("1m", 1 << 20),
        ("2G", 2 << 30),
        ("7B", 7),
        ("007", 7),
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text",
    ["", " ", "k", "-1", "+1", "1.5k", "4x", "4 k b", "4kk", "1e3", "0x10", "\u0664k", "4k\n"],
)
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        parse_size(text)


@given(st.text())
def test_any_text_is_a_size_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_size(text) >= 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (4096, "4 KiB"),
        (28160, "27.5 KiB"),
        (204_800_000, "195 MiB"),
        (1 << 30, "1 GiB"),
    ],
)
def test_sizes_are_written(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (0.4, "0.4"), (950, "950"), (9999, "9999"), (12_400, "12.4k"), (25e6, "25M")],
)
def test_rates_are_written(count: float, text: str) -> None:
    assert rate(count) == text
    assert iops(count) == f"{text} iops"


def test_a_rate_with_a_unit_has_a_space() -> None:
    assert rate(98.3e6, "B/s") == "98.3 MB/s"
    assert rate(98, "B/s") == "98 B/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00038, "380 us"),
        (0.0042, "4.2 ms"),
        (1.3, "1.3 s"),
        (119, "119 s"),
        (720, "12 min"),
        (10_800, "3 h"),
    ],
)
def test_times_are_written(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percent() -> None:
    assert percent(0.984) == "98 %"


def test_a_promise_that_is_nearly_kept_is_not_kept_to_100_percent() -> None:
    ratios = (1.0, 0.99999, 0.9981, 0.987, 0.5)
    assert [percent_kept(ratio) for ratio in ratios] == ["100 %", "99 %", "99 %", "99 %", "50 %"]


@given(st.integers(1, 10**9), st.sampled_from([1, 1024, 1 << 20]))
def test_a_size_is_written_as_it_is_read_to_a_part_in_twenty(count: int, factor: int) -> None:
    number, unit = size(count * factor).split()
    back = float(number) * parse_size(f"1{unit}")
    assert back == pytest.approx(count * factor, rel=0.05, abs=0.5)


@given(st.floats(0, 1e12))
def test_nothing_is_written_longer_than_a_column(value: float) -> None:
    assert len(rate(value)) <= 7
    assert len(size(value)) <= 9
    assert len(duration(min(value, 1e6))) <= 8
