"""A calibration as a table for the agent's configuration."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from iokeel import __version__
from iokeel.calibrate.result import Calibration
from iokeel.calibrate.target import Target
from iokeel.core.curve import KIB, CostCurve
from iokeel.words.quoting import escaped

_MIB = KIB**2
# The keys that TOML takes without quotes.
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def config_text(name: str, target: Target, calibration: Calibration, fio_version: str) -> str:
    """Return the table to paste, with its origin and the warnings as comments."""
    today = datetime.now(UTC).date()
    comments = (
        f"Calibrated on {today} by iokeel {__version__} with {fio_version}.",
        *calibration.warnings,
    )
    lines = [f"# {escaped(comment)}" for comment in comments]
    table = config_table(name, target.config_key, target.config_value, calibration)
    return "\n".join(lines) + "\n" + table


def config_table(name: str, key: str, value: str, calibration: Calibration) -> str:
    """Return the storage's TOML table. key, value: say which storage it is."""
    fitted = calibration.fit
    lines = [
        f"[storage.{name if _BARE_KEY.fullmatch(name) else _quoted(name)}]",
        f"{key} = {_quoted(value)}",
        f"capacity = {fitted.capacity}",
        f"latency_target_ms = {calibration.latency_target_ms}",
        f"curve_read = {_points(fitted.read)}",
    ]
    if fitted.write is not None:
        lines.append(f"curve_write = {_points(fitted.write)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as TOML has it, with escapes for what a terminal would act upon."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _points(curve: CostCurve) -> str:
    return json.dumps([[_size(size), cost] for size, cost in curve.points])


def _size(size_bytes: int) -> str:
    """Return a size as the configuration has it: 4k, 1m."""
    return f"{size_bytes // _MIB}m" if size_bytes % _MIB == 0 else f"{size_bytes // KIB}k"
