"""The demo's scenario: its phases, its guests, and the bounds that decide the verdict."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

BENCHMARKS = Path(__file__).resolve().parents[1]

Stream = Literal["small", "large"]
STREAM_BYTES: dict[Stream, int] = {"small": 8 << 10, "large": 64 << 10}


@dataclass(frozen=True)
class Phase:
    """A stretch of time and the streams that run in it. end_s: from the first request."""

    name: str
    end_s: float
    streams: frozenset[Stream]


@dataclass(frozen=True)
class Change:
    """A policy's new limit, and when it is set, in seconds from the guest's first request."""

    at_s: float
    limit: int


@dataclass(frozen=True)
class Guest:
    """A guest's policy and load. limit: normalized iops. depth: requests in each stream."""

    name: str
    tenant: str
    limit: int
    read_percent: int
    depth: int
    change: Change | None = None


@dataclass(frozen=True)
class Bounds:
    """How far a drive may be off its limit; conformance.py explains each."""

    within_ratio: float
    settled_s: float
    mean_ratio: float
    window_ratio: float


@dataclass(frozen=True)
class Scenario:
    """The content of scenario.toml."""

    phases: tuple[Phase, ...]
    disk_mib: int
    bounds: Bounds
    guests: tuple[Guest, ...]

    @property
    def length_s(self) -> float:
        """The length of a stage, in seconds."""
        return self.phases[-1].end_s


def load_scenario() -> Scenario:
    """Return the scenario of benchmarks/demo/scenario.toml."""
    table = tomllib.loads(Path(__file__).with_name("scenario.toml").read_text())
    return TypeAdapter(Scenario).validate_python(table)
