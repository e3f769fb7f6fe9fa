"""A scenario's file as it is written: its tables and keys, and their defaults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Value = str | int | float | bool
JobTable = dict[str, Value]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class StreamTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A table [[drives.streams]]: a part of the drive's load, beside what its job says."""

    name: str
    job: JobTable = {}
    start_s: float = 0.0
    end_s: float | None = None


class ScenarioDrive(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A table [[drives]]. count: so many alike; None: one, whose name has no number.

    caps: QEMU's limits by the setting in which the drive has them: a controller of that name.
    """

    name: str
    job: JobTable = {}
    streams: list[StreamTable] = []
    policy: dict[str, int | float] = {}
    caps: dict[str, dict[Literal["iops-total", "bps-total"], int]] = {}
    count: int | None = None
    vm: str | None = None
    guest: bool = False
    alone: bool = False
    file: str | None = None
    credit_s: float | None = None

    def all_streams(self) -> list[StreamTable]:
        """Return its streams; without any, its job is the only one."""
        return self.streams or [StreamTable("io")]


class CaseTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A table [[cases]]: other options for the jobs of some drives, by the drive's name.

    disk: parameters of the disk beside those of the scenario.
    """

    name: str
    jobs: dict[str, JobTable] = {}
    disk: dict[str, str | float] = {}


class PublishedTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The table [published]: figures by the control under which they were measured.

    source: who measured, on what. values: of the scenario's headline, one for each case. others: of
    other metrics, likewise; one that isn't in the scenario's list is shown, but no verdict goes by
    it. seconds: a rate over its limit, second by second. note: sentences on other published
    figures, and on what stands beside them here.
    """

    source: str
    values: dict[str, list[float]] = {}
    others: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, list[float]] = {}
    note: str | None = None


class ScenarioTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The file. seconds: how long it runs; begin_s: when figures begin.

    metrics: what the report shows, the headline first: a name of metrics.py, then a drive's name
    if the metric is a drive's. pair: the scenario that asks the same of iokeel, if this one can't.
    controllers: those that make sense here; none: all. caveat: what is wrong with the result.
    disk: parameters of the disk that differ from the device's own. settle_s: how much later figures
    begin in virtual time, where that costs nothing. capacity, latency_target_ms: None: as calibrate
    finds them, with its curve.
    """

    title: str
    device: str
    slowdown: float
    capacity: _Positive | None = None
    latency_target_ms: _Positive | None = None
    seconds: float
    begin_s: float
    metrics: list[str]
    drives: list[ScenarioDrive]
    curve: Literal["disk", "published"] = "disk"
    tenant_limit: int | None = None
    booted: bool = False
    pair: str | None = None
    caveat: str | None = None
    controllers: list[str] = []
    cases: list[CaseTable] = []
    disk: dict[str, str | float] = {}
    settle_s: float | None = None
    published: PublishedTable | None = None
