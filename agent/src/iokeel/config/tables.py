"""The tables and keys that may be written in the agent's configuration.

A key that wasn't written is None here. Defaults are those of iokeel.config.settings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from iokeel.config.values import (
    AbsolutePath,
    Devices,
    Drive,
    LoopbackAddress,
    Name,
    NetworkStorage,
    Pattern,
    Point,
    Socket,
    Uri,
    Whole,
)
from iokeel.core.policy import LEAST_JOB_BPS, MOST_IOPS, MOST_JOB_BPS, MOST_LATENCY_MS

JobBps = Annotated[int, Field(ge=LEAST_JOB_BPS, le=MOST_JOB_BPS)]


class Table(BaseModel):
    """A table. Takes no other key and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AgentTable(Table):
    """[agent]."""

    socket: Socket | None = None
    state_dir: AbsolutePath | None = None
    tick_seconds: Annotated[float, Field(ge=0.2, le=10)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    metrics_address: LoopbackAddress | None = None


class LibvirtTable(Table):
    """[libvirt]."""

    enabled: bool | None = None
    uri: Uri | None = None


class HookTable(Table):
    """[hook]."""

    strict: bool | None = None


class CurveTable(Table):
    """[curve]."""

    read: list[Point] | None = None
    write: list[Point] | None = None


class ClassTable(Table):
    """[classes.NAME]."""

    reservation: Whole | None = None
    limit: Whole | None = None
    burst: Whole | None = None
    burst_seconds: Whole | None = None
    weight: Whole | None = None
    latency_target_ms: float | None = None
    budget: Literal["shared", "separate"] | None = None


class DriveTable(ClassTable):
    """[vm.drives.DEVICE]."""

    class_: Name | None = Field(None, alias="class")


class TenantTable(Table):
    """[tenants.NAME]."""

    reservation: Whole | None = None
    limit: Whole | None = None
    weight: Whole | None = None


class CeilingTable(Table):
    """[ceilings.NAME]."""

    domains: list[str] | None = None
    tenant: Name | None = None
    limit: Whole
    burst: Whole | None = None
    burst_seconds: Whole | None = None
    reservation: Whole | None = None
    weight: Whole | None = None
    latency_target_ms: float | None = None
    job_bps: JobBps | None = None


class StorageTable(Table):
    """[storage.NAME]."""

    device: AbsolutePath | None = None
    devices: list[Devices] | None = None
    path: AbsolutePath | None = None
    source: NetworkStorage | None = None
    drives: list[Pattern] | None = None
    capacity: Annotated[int, Field(ge=1, le=MOST_IOPS)] | None = None
    latency_target_ms: Annotated[float, Field(ge=0.001, le=MOST_LATENCY_MS)] | None = None
    least_ratio: Annotated[float, Field(ge=0.01, le=1)] | None = None
    most_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    curve_read: list[Point] | None = None
    curve_write: list[Point] | None = None


class CgroupTable(Table):
    """[cgroup]."""

    enabled: bool | None = None
    margin: Annotated[float, Field(ge=1, le=100)] | None = None


class JobsTable(Table):
    """[jobs]."""

    bps: JobBps | None = None


class FleetTable(Table):
    """[fleet]."""

    etcd: list[str]
    host: Name | None = None
    prefix: str | None = None
    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None
    user: str | None = None
    password_file: AbsolutePath | None = None
    insecure: bool | None = None


class VmTable(Table):
    """[[vm]]."""

    name: Name
    socket: Socket
    tenant: Name | None = None
    class_: Name | None = Field(None, alias="class")
    reservation: Whole | None = None
    limit: Whole | None = None
    burst: Whole | None = None
    burst_seconds: Whole | None = None
    job_bps: JobBps | None = None
    drives: dict[Drive, DriveTable] = {}


class Root(Table):
    """The whole file."""

    agent: AgentTable = AgentTable()
    libvirt: LibvirtTable = LibvirtTable()
    hook: HookTable = HookTable()
    curve: CurveTable = CurveTable()
    classes: dict[Name, ClassTable] = {}
    tenants: dict[Name, TenantTable] = {}
    ceilings: dict[Name, CeilingTable] = {}
    storage: dict[Name, StorageTable] = {}
    cgroup: CgroupTable = CgroupTable()
    jobs: JobsTable = JobsTable()
    fleet: FleetTable | None = None
    vm: list[VmTable] = []
