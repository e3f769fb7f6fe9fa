"""Ansible filters: what a host's `iokeel calibrate --json` said, as variables of the host.

Ansible takes a text in a variables file for a template and evaluates it on the controller. A host
may be in other hands by now, so nothing of it gets there but numbers, sizes and a plain place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

_LINE = re.compile(r"([a-z_]+) = (.*)")
_PLACES = ("device", "path", "source")
_NUMBERS: dict[str, Callable[[float], float]] = {"capacity": int, "latency_target_ms": float}
_CURVES = ("curve_read", "curve_write")
_SIZE = re.compile(r"[0-9]{1,7}[km]")
# Without what begins a template. The operator's own word may have anything.
_PLAIN = re.compile(r"[ -z|~]{1,4096}")
_MOST = 1e15
_MOST_POINTS, _MOST_WARNINGS, _MOST_LETTERS = 100, 100, 500


def table(report: Mapping[str, Any], target: str) -> dict[str, object]:
    """Return a storage's table by a calibration's report. target: as the inventory has it.

    Raises AnsibleFilterError if the report makes no sense.
    """
    found: dict[str, object] = {}
    try:
        for line in report["config"].splitlines():
            if (parts := _LINE.fullmatch(line)) is not None:
                key, value = parts[1], json.loads(parts[2])
                if key in _PLACES:
                    found[key] = target if value == target else _plain(value)
                elif key in _NUMBERS:
                    found[key] = _NUMBERS[key](_number(value))
                elif key in _CURVES:
                    found[key] = [_point(point) for point in _listed(value)]
        if "capacity" not in found:
            raise ValueError("no capacity")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "its `iokeel calibrate` said what no iokeel says"
        raise AnsibleFilterError(f"{what} ({ascii(error)[:200]})") from None
    return found


def comments(warnings: Sequence[object], name: str) -> list[str]:
    """Return a calibration's warnings as comments about a storage, each in a line."""
    texts = [re.sub("[^ -~]+", " ", str(warning)) for warning in warnings[:_MOST_WARNINGS]]
    return [f"# {name}: {text[:_MOST_LETTERS]}" for text in texts]


def _plain(value: object) -> str:
    if not isinstance(value, str) or _PLAIN.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no place")
    return "".join(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not (math.isfinite(value) and 0 < value < _MOST):
        raise ValueError(f"{value!r} is out of range")
    return value


def _listed(value: object) -> list[object]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_POINTS:
        raise ValueError(f"{value!r} is no curve")
    return value


def _point(value: object) -> list[object]:
    match value:
        case [str(size), cost] if (known := _SIZE.fullmatch(size)) is not None:
            return [known[0], float(_number(cost))]
    raise ValueError(f"{value!r} is no point")


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them."""
        return {"iokeel_calibrated": table, "iokeel_comments": comments}
