"""Drives' figures under each control, as results/shares-*.json hold them."""

from __future__ import annotations

import msgspec


class DriveFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One drive in one run; see run.py. Those of a reservation only if it has one."""

    rate: float
    share: float
    bytes: int
    latency_mean_ms: float | None
    latency_p99_ms: float | None
    worst_second_of_reservation: float | None = None
    of_reservation_by_second: list[float] | None = None


class RunFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of all drives. total_ratio: over the total with no control."""

    total_rate: float
    total_ratio: float
    drives: dict[str, DriveFigures]
    stolen_ratio: float | None = None


#: The runs by control: one for each repeat.
Controls = dict[str, list[RunFigures]]


class Result(msgspec.Struct, frozen=True):
    """A result file."""

    scenario: str
    device: str
    controls: Controls
