"""Every metric of the agent. docs/metrics.md is made from this table (metrics_doc.py)."""

from __future__ import annotations

from iokeel.host.disk_counters import read_pressure
from iokeel.report.metric_types import (
    DIRECTION_LABELS,
    Description,
    Kind,
    Metric,
    Sample,
    of_agent,
    of_direction,
    of_drive,
    of_storage,
    of_throttle,
)
from iokeel.report.snapshot import Snapshot

_IOPS = "normalized I/O operations a second"


def _pressure(_: Snapshot) -> list[Sample]:
    pressure = read_pressure()
    if pressure is None:
        return []
    return [(("some",), pressure.some_ratio), (("full",), pressure.full_ratio)]


TICK_SECONDS = Description(
    "iokeel_agent_tick_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Time from the start of a tick until its last order was sent.",
)
TICK_CPU_SECONDS = Description(
    "iokeel_agent_tick_cpu_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "CPU time that the agent's process used in a tick.",
)
REQUEST_SIZE_BYTES = Description(
    "iokeel_drive_request_size_bytes",
    Kind.HISTOGRAM,
    "bytes",
    "Requests by size, in powers of two: le=8191 counts those below 8 KiB. Only if QEMU counts.",
    DIRECTION_LABELS,
)

METRICS = (
    of_agent(
        "agent_domains",
        Kind.GAUGE,
        "VMs",
        "Running VMs that the agent knows.",
        lambda s: len(s.vms),
    ),
    of_agent(
        "agent_drives",
        Kind.GAUGE,
        "drives",
        "Drives of the VMs that the agent knows.",
        lambda s: sum(len(vm.drives) for vm in s.vms.values()),
    ),
    of_agent(
        "agent_reconnects_total",
        Kind.COUNTER,
        "connections",
        "Connections to libvirtd or to a QMP socket that were made again.",
        lambda s: s.reconnects,
    ),
    Metric(
        Description(
            "iokeel_agent_errors_total",
            Kind.COUNTER,
            "errors",
            "Errors of the agent, by kind.",
            ("kind",),
        ),
        lambda s: (((kind,), count) for kind, count in sorted(s.errors.items())),
    ),
    Metric(
        Description(
            "iokeel_host_io_pressure_ratio",
            Kind.GAUGE,
            "ratio, 0 to 1",
            "Part of the last 10 s in which some tasks, or all, waited for I/O: the host's PSI.",
            ("kind",),
        ),
        _pressure,
    ),
    Metric(
        Description(
            "iokeel_domain_policy_valid",
            Kind.GAUGE,
            "0 or 1",
            "1 if the VM's policy is valid. While it is 0, the last valid policy stays in force.",
            ("domain",),
        ),
        lambda s: (((vm.name,), float(vm.policy_error is None)) for vm in s.vms.values()),
    ),
    of_storage(
        "capacity_iops",
        _IOPS,
        "The capacity that was configured or calibrated.",
        lambda s: s.capacity_iops,
    ),
    of_storage(
        "usable_iops",
        _IOPS,
        "What its drives may do together now: its capacity, corrected by its latency.",
        lambda s: s.usable_iops,
    ),
    of_storage(
        "normalized_iops", _IOPS, "What its drives do together.", lambda s: s.normalized_iops
    ),
    of_storage(
        "reserved_iops", _IOPS, "The sum of its drives' reservations.", lambda s: s.reserved_iops
    ),
    of_storage(
        "reservations_kept_ratio",
        "ratio, 0 to 1",
        "Part of the reservations asked for now that it can keep. Below 1, it is oversold.",
        lambda s: s.reservations_kept,
    ),
    of_storage(
        "room_ratio",
        "ratio, 0 to 1",
        "Part of it that drives without a latency target may use. Only if another drive has one.",
        lambda s: s.room_ratio,
    ),
    of_storage(
        "latency_seconds",
        "seconds",
        "Mean latency of its requests in the last interval.",
        lambda s: s.latency_s,
    ),
    of_storage(
        "latency_target_seconds",
        "seconds",
        "The latency above which it counts as overloaded.",
        lambda s: s.latency_target_s,
    ),
    of_storage(
        "queue_requests", "requests", "Mean number of requests in flight.", lambda s: s.queue
    ),
    of_drive(
        "normalized_iops",
        Kind.GAUGE,
        _IOPS,
        "What the drive did in the last interval.",
        lambda d: d.normalized_iops,
    ),
    of_drive(
        "limit_iops",
        Kind.GAUGE,
        _IOPS,
        "The limit of its policy.",
        lambda d: d.policy.limit if d.policy else None,
    ),
    of_drive(
        "allowed_iops",
        Kind.GAUGE,
        _IOPS,
        "What it may do now: its limit or open burst, and never more than its share.",
        lambda d: d.allowed_iops,
    ),
    of_drive(
        "credit_seconds", Kind.GAUGE, "seconds", "Burst credit it has saved.", lambda d: d.credit_s
    ),
    of_drive(
        "throttled_seconds_total",
        Kind.COUNTER,
        "seconds",
        "Time in which a limit held it.",
        lambda d: d.throttled_s,
    ),
    of_drive(
        "retunes_total",
        Kind.COUNTER,
        "changes",
        "Changes of its limits after the first.",
        lambda d: d.retunes,
    ),
    of_drive(
        "limits_overwritten_total",
        Kind.COUNTER,
        "times",
        "Times its limits were put back after somebody else had changed them.",
        lambda d: d.overwritten,
    ),
    of_drive(
        "errors_total",
        Kind.COUNTER,
        "orders",
        "Changes of its limits that failed.",
        lambda d: d.errors,
    ),
    of_direction(
        "requests_total",
        Kind.COUNTER,
        "requests",
        "Requests since the guest started.",
        lambda d: d.requests,
    ),
    of_direction(
        "bytes_total", Kind.COUNTER, "bytes", "Bytes since the guest started.", lambda d: d.bytes
    ),
    of_direction(
        "latency_seconds",
        Kind.GAUGE,
        "seconds",
        "Mean latency in the last interval, the throttle's wait included.",
        lambda d: d.latency_s,
    ),
    of_direction(
        "device_latency_seconds",
        Kind.GAUGE,
        "seconds",
        "Mean latency in the last interval without the throttle's wait. Only if QEMU counts.",
        lambda d: d.device_latency_s,
    ),
    of_throttle(
        "cost_total",
        Kind.COUNTER,
        "normalized I/O operations",
        "What QEMU charged for its requests. Only if QEMU counts.",
        lambda t: t.cost,
    ),
    of_throttle(
        "waited_requests_total",
        Kind.COUNTER,
        "requests",
        "Requests that had to wait for the throttle. Only if QEMU counts.",
        lambda t: t.waited,
    ),
    of_throttle(
        "wait_seconds_total",
        Kind.COUNTER,
        "seconds",
        "Sum of the requests' waits for the throttle. Only if QEMU counts.",
        lambda t: t.wait_s,
    ),
    of_throttle(
        "waiting_requests",
        Kind.GAUGE,
        "requests",
        "Requests that wait for the throttle now. Only if QEMU counts.",
        lambda t: t.waiting,
    ),
)

DESCRIPTIONS = (
    *(metric.description for metric in METRICS),
    REQUEST_SIZE_BYTES,
    TICK_SECONDS,
    TICK_CPU_SECONDS,
)
