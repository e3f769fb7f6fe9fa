"""Drives of a QEMU with cost curves, to measure the cost of exact mode.

Replies to query-throttle-groups have the members, order and length of the patched QEMU's
(qemu-patches), 2.2 kB a drive with the former ones, and less with today's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.agent_cost.synthetic.drive import (
    LENGTHS,
    LIMITS,
    QUEUE_DEPTH,
    Arguments,
    CostPoint,
    Drive,
)
from iokeel.core.values.curve import CostCurve
from iokeel.hypervisors.qemu.limits import DIALECTS, qapi_name

_WORDS = next(iter(DIALECTS.values()))
QUERY_GROUPS = _WORDS.query_groups
_EXTRA = [qapi_name(field) for field in _WORDS.fields]
_LIMITS = (
    "bps-read-max-length iops-read-max-length bps-read-max bps-total iops-total-max-length "
    "iops-total iops-write-max bps-write bps-total-max bps-write-max "
    "iops-size iops-read iops-write-max-length iops-write bps-total-max-length iops-read-max "
    "bps-read bps-write-max-length iops-total-max"
).split()
_WAYS = {"rd": "read", "wr": "write"}
#: The agent looks for the first entries. The rest make it as long as the patched QEMU's.
SCHEMA: list[object] = [
    *({"name": name, "meta-type": "command", "arg-type": "1", "ret-type": "2"}
      for name in (QUERY_GROUPS, "device_add", *(f"command-{i}" for i in range(200)))),
    {"name": "3", "meta-type": "object", "features": [_WORDS.keeps_levels],
     "members": [{"name": n, "type": "int"} for n in _LIMITS] + [
         {"name": _WORDS.extra, "type": "4"}]},
    {"name": "4", "meta-type": "object", "members": [{"name": n, "type": "5"} for n in _EXTRA]},
    *({"name": str(i), "meta-type": "object",
       "members": [{"name": f"member-{k}", "type": "str"} for k in range(8)]}
      for i in range(5, 900)),
]  # fmt: skip


def _object_name(name: str) -> str:
    """Return a field of block_set_io_throttle as ThrottleLimits has it: bps_rd is bps-read."""
    unit, *rest = name.split("_")
    way = _WAYS[rest.pop(0)] if rest and rest[0] in _WAYS else "total"
    return "-".join(["iops-size"] if name == "iops_size" else [unit, way, *rest])


class ExactDrive(Drive):
    """A drive whose requests are charged by a curve once it has one."""

    def __init__(self, vm: str, number: int, seed: int, idle: bool = False) -> None:
        super().__init__(vm, number, seed, idle)
        self._patched: dict[str, object] = {
            "split-size": 0, "idle-credit-ms": 100, "max-in-flight": 0, "latency": False,
        }  # fmt: skip
        self._curves: dict[str, list[CostPoint]] = {}
        self._prices: dict[str, CostCurve] = {}
        self._costs = {"read": 0.0, "write": 0.0}
        self._waited = {"read": 0, "write": 0}

    def set_limits(self, arguments: Arguments) -> str | None:
        """Put limits, curves and the patches' other options in force."""
        if complaint := super().set_limits(arguments):
            return complaint
        extra = arguments.get(_WORDS.extra, {})
        assert isinstance(extra, dict)
        self._patched = {name: extra.get(name, old) for name, old in self._patched.items()}
        for name in ("cost-read", "cost-write"):
            if isinstance(points := extra.get(name), list):
                self._curves[name] = points
            points = self._curves.setdefault(name, [])
            curve = tuple((p["size"], p["cost"]) for p in points)
            self._prices[name] = CostCurve(curve or ((1, 1.0),))
        return None

    def _charges(self, size_bytes: int, read_ratio: float) -> Iterator[tuple[str, float]]:
        """Yield each limit in force, and a request's mean charge on it."""
        if "iops" not in self.limits or not self._prices:
            yield from super()._charges(size_bytes, read_ratio)
            return
        cost = read_ratio * self._prices["cost-read"].cost(size_bytes)
        yield "iops", cost + (1 - read_ratio) * self._prices["cost-write"].cost(size_bytes)

    def _advance(self, to_s: float) -> None:
        size_bytes, reads, writes = self._workload[0], self._reads, self._writes
        held = self._is_held
        super()._advance(to_s)
        for way, count in (("read", self._reads - reads), ("write", self._writes - writes)):
            price = self._prices.get(f"cost-{way}")
            self._costs[way] += count * (price.cost(size_bytes) if price else 1.0)
            self._waited[way] += count * held

    @property
    def _is_held(self) -> bool:
        return self.achieved_iops() < self._workload[2]

    def group(self) -> str | None:
        """Return the drive's element of query-throttle-groups; None if nothing limits it."""
        if not self.limits:
            return None
        self._catch_up()
        fields: dict[str, object] = {
            **{_object_name(name): self.limits.get(name, 0) for name in (*LIMITS, "iops_size")},
            **{_object_name(name): self.limits.get(name, 1) for name in LENGTHS},
            _WORDS.extra: {**self._patched, **self._curves},
        }
        least = 1 << (self._workload[0].bit_length() - 1)
        stats = {
            way: {
                "bytes": total, "cost": self._costs[way], "requests": count,
                "sizes": [{"least": 4096, "requests": 12_345}, {"least": least, "requests": count}],
                "in-flight": 0, "ended": 0, "latency-total-ns": 0, "latencies": [],
                "waiting": QUEUE_DEPTH if self._is_held else 0,
                "wait-total-ns": self._waited[way] * 10_000_000, "waited": self._waited[way],
            }
            for way, count, total in (
                ("read", self._reads, self._read_bytes), ("write", self._writes, self._write_bytes)
            )
        }  # fmt: skip
        member = {"node-name": f"{self.target}-format", "qdev": self.qdev}
        return json.dumps(
            {"name": self.qdev, "limits": {name: fields[name] for name in (*_LIMITS, _WORDS.extra)},
             "members": [member], **stats}
        )  # fmt: skip
