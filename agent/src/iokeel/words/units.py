"""Sizes, rates and times as people write and read them."""

from __future__ import annotations

import re

from iokeel.errors import ConfigError
from iokeel.words.quoting import shown

_SIZE = re.compile(r"([0-9]{1,15}) ?([kmg])?(?:i?b)?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,9}) ?(s|m|min|h|d)?", re.ASCII)
_BPS = re.compile(r"([0-9]{1,13})([kMG])?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_FACTORS = {None: 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_THOUSANDS = {None: 1, "k": 10**3, "M": 10**6, "G": 10**9}
_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DECIMAL = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def parse_size(text: str) -> int:
    """Return a size such as "4k", "1M", "64 KiB" or "4096" in bytes; k, m and g are binary.

    Raises ConfigError for anything else.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(shown(text), "not a size", "give bytes, or write it like 4k or 1m")
    return int(match[1]) * _FACTORS[match[2] and match[2].lower()]


def parse_bps(text: str) -> int:
    """Return a rate such as "200M" or "200000000" in bytes a second; k, M and G are decimal.

    Raises ConfigError for anything else.
    """
    match = _BPS.fullmatch(text)
    if match is None:
        mend = "give bytes a second, or write it like 200M or 1G"
        raise ConfigError(shown(text), "not a rate in bytes", mend)
    return int(match[1]) * _THOUSANDS[match[2]]


def parse_duration(text: str) -> int:
    """Return a time such as "90", "90s", "10m", "1h" or "7d" in seconds.

    Raises ConfigError for anything else.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(shown(text), "not a time", "give seconds, or write it like 90s or 10m")
    return int(match[1]) * _SECONDS[match[2]]


def size(count: float) -> str:
    """Return a number of bytes with a binary unit: 8 KiB, 27.5 KiB, 512 B."""
    for unit, factor in _BINARY:
        if count >= factor:
            return f"{_short(count / factor)} {unit}"
    return f"{_short(count)} B"


def rate(count: float, unit: str = "") -> str:
    """Return a rate with a decimal prefix: 950, 12.4k, or with a unit 98.3 MB/s."""
    for prefix, factor in _DECIMAL:
        if count >= 10 * factor or (unit and count >= factor):
            return f"{_short(count / factor)}{' ' if unit else ''}{prefix}{unit}"
    return f"{_short(count)}{' ' + unit if unit else ''}"


def iops(count: float) -> str:
    """Return a normalized rate: 4000 iops, 12.5k iops."""
    return f"{rate(count)} iops"


def bytes_rate(count: float) -> str:
    """Return a rate in bytes: 950 B/s, 200 MB/s."""
    return rate(count, "B/s")


def percent(ratio: float) -> str:
    """Return a ratio in percent: 0.98 is 98 %."""
    return f"{100 * ratio:.0f} %"


def percent_kept(ratio: float) -> str:
    """Return a ratio in percent, but less than 100 % if it is below 1."""
    return percent(ratio if ratio >= 1 else min(ratio, 0.99))


def duration(seconds: float) -> str:
    """Return a time: 380 us, 4.2 ms, 1.3 s, 12 min, 3 h."""
    if 0 < seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if 0 < seconds < 1:
        return f"{_short(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{_short(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _short(value: float) -> str:
    text = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return text.removesuffix(".0")
