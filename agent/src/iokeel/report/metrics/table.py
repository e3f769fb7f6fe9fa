"""Every metric of the agent. docs/metrics.md is made from this table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from iokeel.errors import PolicyError
from iokeel.report.metrics.types import (
    DIRECTION_LABELS,
    DRIVE_LABELS,
    Description,
    Metric,
    MetricOf,
    Sample,
    of_agent,
    of_direction,
    of_domain,
    of_drive,
    of_fleet,
    of_shared_storage,
    of_storage,
    of_tenant,
    of_throttle,
)
from iokeel.report.records import BudgetInFleet, FleetSnapshot
from iokeel.report.snapshot import Snapshot
from iokeel.rules.known import INFO, info_of

_IOPS = "normalized I/O operations a second"


def _pressure(snapshot: Snapshot) -> list[Sample]:
    pressure = snapshot.pressure
    if pressure is None:
        return []
    return [(("some",), pressure.some_ratio), (("full",), pressure.full_ratio)]


def _errors(snapshot: Snapshot) -> Iterator[Sample]:
    # Kinds that haven't occurred are 0, because increase() overlooks a counter that begins at 1.
    counts = dict.fromkeys(ERROR_KINDS, 0) | dict(snapshot.errors)
    return (((kind,), count) for kind, count in sorted(counts.items()))


def _info(snapshot: Snapshot) -> Iterator[Sample]:
    for name, drive in snapshot.drives.items():
        more = (drive.storage, drive.tenant, drive.mode, drive.rule, drive.class_name)
        yield (*name, *(text or "" for text in more)), 1


def _domain_info(snapshot: Snapshot) -> Iterator[Sample]:
    for name, vm in snapshot.vms.items():
        facts = vm.by_rules.facts.vm if vm.by_rules is not None else {}
        yield (name, vm.report.uuid or "", vm.report.tenant or "", *info_of(facts)), 1


def _promises(snapshot: Snapshot) -> Iterator[Sample]:
    for name, drive in snapshot.drives.items():
        for promise, (kept_s, missed_s) in drive.promises.items():
            yield (*name, promise, "kept"), kept_s
            yield (*name, promise, "missed"), missed_s


def _rules(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.fleet is not None:
        yield (snapshot.fleet.rules,), 1


def _refused(fleet: FleetSnapshot) -> int:
    budgets = (*fleet.tenants.values(), *fleet.storages.values())
    return sum(budget.report.error is not None for budget in budgets)


def _coordinated(fleet: FleetSnapshot, budgets: Mapping[str, BudgetInFleet]) -> int:
    if fleet.error is not None:  # another host may have taken them over
        return 0
    return sum(budget.report.coordinator == fleet.host for budget in budgets.values())


def _of_each_budget(kind: str, of: MetricOf[BudgetInFleet]) -> tuple[Metric, ...]:
    """Return the metrics that tenants and storages of the fleet both have."""
    return (
        of(
            "allowed_iops",
            _IOPS,
            f"What the {kind}'s drives on this host may do now.",
            lambda b: b.report.allowed_iops,
        ),
        of(
            "floor_iops",
            _IOPS,
            "What they may do if etcd can't be reached.",
            lambda b: b.report.floor_iops,
        ),
        of(
            "charged_iops",
            _IOPS,
            f"What this host is charged for the {kind}, because its QEMUs may be held to that.",
            lambda b: b.charged_iops,
        ),
        of(
            "held_iops",
            _IOPS,
            "What the QEMUs here may be held to, orders on their way included. +Inf if a drive has"
            " no limit.",
            lambda b: inf if b.report.held_iops is None else b.report.held_iops,
        ),
        of(
            "stale_seconds",
            "seconds",
            f"Time since the {kind}'s ledger was read, or since this host takes part. From 11 s on,"
            " the host is at its floor.",
            lambda b: b.report.stale_s,
        ),
    )


CONFIG_VALID = Description(
    "iokeel_agent_config_valid",
    "0 or 1",
    "1 if the configuration is in force as it was last read. 0: it was refused, and what was in"
    " force before stays.",
)
TICK_SECONDS = Description(
    "iokeel_agent_tick_seconds",
    "seconds",
    "Time from the start of a tick until its last order was sent.",
    is_histogram=True,
)
TICK_CPU_SECONDS = Description(
    "iokeel_agent_tick_cpu_seconds",
    "seconds",
    "CPU time that the agent's process used in a tick.",
    is_histogram=True,
)
REQUEST_SIZE_BYTES = Description(
    "iokeel_drive_request_size_bytes",
    "bytes",
    "Requests by size, in powers of two: le=8191 counts those below 8 KiB. Only if QEMU counts.",
    DIRECTION_LABELS,
    is_histogram=True,
)

METRICS = (
    of_agent(
        "domains",
        "VMs",
        "Running VMs that the agent knows.",
        lambda s: len(s.vms),
    ),
    of_agent(
        "drives",
        "drives",
        "Drives of those VMs.",
        lambda s: len(s.drives),
    ),
    of_agent(
        "domains_without_policy",
        "VMs",
        "Those of the VMs that have no policy. It rises if a policy is lost, as by `virsh define`"
        " of an XML without metadata.",
        lambda s: sum(not vm.report.has_policy for vm in s.vms.values()),
    ),
    of_agent(
        "drives_without_policy",
        "drives",
        "Drives that are left alone: those of VMs without a policy, and those that their VM's"
        " policy doesn't cover.",
        lambda s: sum(not drive.has_policy for drive in s.drives.values()),
    ),
    of_agent(
        "set_aside",
        "drives and storages",
        "Drives and storages whose limits stay as they are because the control law fails on them."
        " The log says why, again each hour.",
        lambda s: s.set_aside,
    ),
    of_agent(
        "reconnects_total",
        "connections",
        "Connections to libvirt or to a QMP socket that were made again.",
        lambda s: s.reconnects,
    ),
    Metric(
        Description(
            "iokeel_agent_errors_total",
            "errors",
            "Errors of the agent, by kind.",
            ("kind",),
        ),
        _errors,
    ),
    Metric(
        Description(
            "iokeel_host_io_pressure_ratio",
            "ratio, 0 to 1",
            "Part of the last 10 s in which some or all of the host's tasks waited for I/O (PSI).",
            ("kind",),
        ),
        _pressure,
    ),
    of_domain(
        "policy_valid",
        "0 or 1",
        "1 if the VM's whole policy is in force. 0: it can't be used, and the last valid one stays"
        " in force, or it can't be used as it is for some drives.",
        lambda vm: float(not isinstance(vm.policy_error, PolicyError)),
    ),
    of_domain(
        "has_policy",
        "0 or 1",
        "1 if the VM has a policy, also one that can't be used. 0: its drives are left alone.",
        lambda vm: float(vm.report.has_policy),
    ),
    of_domain(
        "observed",
        "0 or 1",
        "1 if nothing of the VM's policy is enforced: its limits, shares and credit are what they"
        " would be.",
        lambda vm: float(vm.report.observed),
    ),
    of_domain(
        "limit_iops",
        _IOPS,
        "Limit of the VM's policy, for all its drives together.",
        lambda vm: vm.report.limit_iops,
    ),
    of_domain(
        "allowed_iops",
        _IOPS,
        "Rate that the VM's policy allows its drives together now: its limit or open burst.",
        lambda vm: vm.report.allowed_iops,
    ),
    of_domain(
        "credit_seconds",
        "seconds",
        "Burst credit that the VM has saved. Only if its policy has a burst.",
        lambda vm: vm.report.credit_s if vm.policy and vm.policy.burst is not None else None,
    ),
    Metric(
        Description(
            "iokeel_domain_info",
            "always 1",
            "1 for each VM: its UUID, its tenant, and its project and name on its platform, to join"
            " others with.",
            ("domain", "uuid", "tenant", *INFO),
        ),
        _domain_info,
    ),
    of_storage(
        "capacity_iops",
        _IOPS,
        "The storage's capacity, as configured on this host or calibrated. None while BFQ divides"
        " the storage by weight.",
        lambda s: s.capacity_iops,
    ),
    of_storage(
        "usable_iops",
        _IOPS,
        "Rate that the storage's drives may share now: its capacity, corrected by its latency,"
        " or this host's part of a storage that hosts share.",
        lambda s: s.usable_iops,
    ),
    of_storage(
        "normalized_iops",
        _IOPS,
        "Sum of the rates of the storage's drives.",
        lambda s: s.normalized_iops,
    ),
    of_storage(
        "reserved_iops",
        _IOPS,
        "Sum of the reservations of the storage's drives.",
        lambda s: s.reserved_iops,
    ),
    of_storage(
        "reservations_kept_ratio",
        "ratio, 0 to 1",
        "Part of the reservations in use that the storage can keep now.",
        lambda s: s.reservations_kept,
    ),
    of_storage(
        "room_ratio",
        "ratio, 0 to 1",
        "Part that drives without a latency target may use. Only if another drive has one.",
        lambda s: s.room_ratio,
    ),
    of_storage(
        "latency_exhausted",
        "0 or 1",
        "1 if a drive is above its latency target, and cutting the others further is not possible"
        " or does not help.",
        lambda s: float(s.exhausted),
    ),
    of_storage(
        "latency_seconds",
        "seconds",
        "Mean latency of the storage's requests in the last interval.",
        lambda s: s.latency_s,
    ),
    of_storage(
        "latency_target_seconds",
        "seconds",
        "Latency above which the storage counts as overloaded, as configured on this host. None"
        " while BFQ divides the storage by weight.",
        lambda s: s.latency_target_s,
    ),
    of_storage(
        "queue_requests",
        "requests",
        "Mean number of requests in flight on the storage.",
        lambda s: s.queue,
    ),
    Metric(
        Description(
            "iokeel_drive_info",
            "always 1",
            "1 for each drive: its storage, its tenant, how it is held, the rule that gives its"
            " limit, and the class that its policy names, to join others with.",
            (*DRIVE_LABELS, "storage", "tenant", "mode", "rule", "class"),
        ),
        _info,
    ),
    of_drive(
        "normalized_iops",
        _IOPS,
        "The drive's rate in the last interval.",
        lambda d: d.normalized_iops,
    ),
    of_drive(
        "limit_iops",
        _IOPS,
        "Limit of the drive's policy, of both budgets together if it has two.",
        lambda d: d.limit_iops,
    ),
    of_drive(
        "allowed_iops",
        _IOPS,
        "Rate that the drive may have now: its limit or open burst, at most its share; of both"
        " budgets together if it has two.",
        lambda d: d.allowed_iops,
    ),
    of_drive(
        "credit_seconds",
        "seconds",
        "Burst credit that the drive has saved.",
        lambda d: d.credit_s,
    ),
    of_direction(
        "normalized_operations_total",
        "normalized I/O operations",
        "Operations since the agent has known the drive, by its cost curve. Missing: those before"
        " the first reading after a start of the agent or of the guest, those of an interval in"
        " which QEMU's counters went back, and large zeroes, which stock limits forgive.",
        lambda d: d.read_operations,
        lambda d: d.write_operations,
    ),
    Metric(
        Description(
            "iokeel_drive_promise_seconds_total",
            "seconds",
            "Time in which a promise to the drive was kept or missed. Neither counts while the"
            " drive is idle, or if nobody can tell.",
            (*DRIVE_LABELS, "promise", "outcome"),
        ),
        _promises,
    ),
    of_drive(
        "throttled_seconds_total",
        "seconds",
        "Time in which a limit held the drive back.",
        lambda d: d.throttled_s,
    ),
    of_drive(
        "would_hold_seconds_total",
        "seconds",
        "Time in which an observed drive did more than it would have been held to.",
        lambda d: d.above_s if d.mode == "observe" else None,
    ),
    of_drive(
        "would_hold_operations_total",
        "normalized operations",
        "Operations of an observed drive above what it would have been held to.",
        lambda d: d.above_operations if d.mode == "observe" else None,
    ),
    of_drive(
        "retunes_total",
        "changes",
        "Changes of the drive's limits after the first.",
        lambda d: d.retunes,
    ),
    of_drive(
        "limits_overwritten_total",
        "times",
        "Times the drive's limits were put back after somebody else had changed them.",
        lambda d: d.overwritten,
    ),
    of_drive(
        "errors_total",
        "orders",
        "Changes of the drive's limits that failed.",
        lambda d: d.errors,
    ),
    of_direction(
        "requests_total",
        "requests",
        "Requests since the guest started.",
        lambda d: d.read_requests,
        lambda d: d.write_requests,
    ),
    of_direction(
        "bytes_total",
        "bytes",
        "Bytes since the guest started.",
        lambda d: d.read_bytes,
        lambda d: d.write_bytes,
    ),
    of_drive(
        "flushes_total",
        "requests",
        "Flushes since the guest started. Only if they are counted; no limit holds them.",
        lambda d: d.flush_requests,
    ),
    of_drive(
        "flush_seconds_total",
        "seconds",
        "Time that flushes took, summed. Only if they are counted.",
        lambda d: d.flush_s,
    ),
    of_drive(
        "discards_total",
        "requests",
        "Discards since the guest started. Only over QMP: libvirt doesn't count them.",
        lambda d: d.discard_requests,
    ),
    of_drive(
        "discarded_bytes_total",
        "bytes",
        "Bytes of those discards. Only over QMP.",
        lambda d: d.discard_bytes,
    ),
    of_drive(
        "discard_seconds_total",
        "seconds",
        "Time that they took, summed, with any wait for a throttle. Only over QMP.",
        lambda d: d.discard_s,
    ),
    of_direction(
        "latency_seconds",
        "seconds",
        "Mean latency in the last interval, the throttle's wait included.",
        lambda d: d.read_latency_s,
        lambda d: d.write_latency_s,
    ),
    of_direction(
        "device_latency_seconds",
        "seconds",
        "Mean latency in the last interval below the throttle, or without its wait. Only if QEMU"
        " counts.",
        lambda d: d.read_device_latency_s,
        lambda d: d.write_device_latency_s,
    ),
    of_throttle(
        "cost_total",
        "normalized I/O operations",
        "Cost that QEMU charged for requests. Only if QEMU counts.",
        lambda t: t.cost,
    ),
    of_throttle(
        "waited_requests_total",
        "requests",
        "Requests that had to wait for the throttle. Only if QEMU counts.",
        lambda t: t.waited,
    ),
    of_throttle(
        "wait_seconds_total",
        "seconds",
        "Time that requests waited for the throttle, summed. Only if QEMU counts.",
        lambda t: t.wait_s,
    ),
    of_throttle(
        "waiting_requests",
        "requests",
        "Requests that wait for the throttle now. Only if QEMU counts.",
        lambda t: t.waiting,
    ),
    of_fleet(
        "connected",
        "1 or 0",
        "1 if etcd can be used, and no fault of the agent's own prevents it, else 0. Only with"
        " [fleet], as all metrics of the fleet.",
        lambda f: f.error is None,
    ),
    of_fleet(
        "round_trips_total",
        "answers",
        "Answers of etcd since the agent started.",
        lambda f: f.trips,
    ),
    of_fleet(
        "member_failures_total",
        "failures",
        "How often a member of etcd failed, and another one was asked.",
        lambda f: f.failures,
    ),
    of_fleet(
        "refused_budgets",
        "tenants and storages",
        "Tenants and storages whose last step here was refused, as all are if etcd is full, or that"
        " still charge this host's former name.",
        _refused,
    ),
    Metric(
        Description(
            "iokeel_fleet_rules_info",
            "always 1",
            "1, with a digest of the host's rules and classes, which is the same on hosts that have"
            " the same; empty without rules.",
            ("digest",),
        ),
        _rules,
    ),
    of_fleet(
        "coordinated_tenants",
        "tenants",
        "Tenants whose limit this host divides among all hosts.",
        lambda f: _coordinated(f, f.tenants),
    ),
    of_fleet(
        "coordinated_storages",
        "storages",
        "Shared storages whose capacity this host divides among all hosts.",
        lambda f: _coordinated(f, f.storages),
    ),
    of_tenant(
        "limit_iops",
        _IOPS,
        "The tenant's limit over all hosts.",
        lambda t: t.report.limit_iops,
    ),
    *_of_each_budget("tenant", of_tenant),
    of_shared_storage(
        "capacity_iops",
        _IOPS,
        "The shared storage's capacity as it is set.",
        lambda s: s.report.set_iops,
    ),
    of_shared_storage(
        "usable_iops",
        _IOPS,
        "The same as latency has corrected it, less the rates of drives without a policy.",
        lambda s: s.report.limit_iops,
    ),
    *_of_each_budget("storage", of_shared_storage),
)

DESCRIPTIONS = (
    CONFIG_VALID,
    *(metric.description for metric in METRICS),
    REQUEST_SIZE_BYTES,
    TICK_SECONDS,
    TICK_CPU_SECONDS,
)

#: The values of the label `kind` of iokeel_agent_errors_total.
ERROR_KINDS = {
    "absurd": "a QEMU told counters that no drive can reach; they count for nothing",
    "busy": "a QMP socket serves another client",
    "cgroup": "the kernel refused a setting of a VM's cgroup, or its counters can't be read",
    "closed": "a QMP connection has ended",
    "config": "a bad configuration, or a table gone from it (what was stays), a socket that"
    " can't be served, a port in use, or a VM without libvirt that has the name of one of"
    " libvirt's",
    "connect": "libvirt or a QMP socket can't be reached",
    "controller": "a VM's cgroup has no I/O controller",
    "fleet": "etcd, or a budget there, can't be used; the host goes down to its floor",
    "flood": "a QEMU sent too much over its QMP socket; it is left alone for a minute",
    "internal": "a fault of the agent's own: please report what its log says",
    "jobs": "QEMU or libvirt told no block jobs, or refused a job its speed",
    "missing": "a QMP socket is not there",
    "permission": "the agent may not use a QMP socket or write a cgroup",
    "policy": "a policy can't be used",
    "protocol": "what a QMP socket answers is not QMP",
    "refresh": "libvirt couldn't describe a VM",
    "refused": "QEMU refused to tell of its drives, their counters or its throttle groups",
    "rejected": "QEMU or libvirt refused limits; the next try is in 30 s",
    "sample": "libvirt couldn't read counters",
    "set": "limits couldn't be sent; the next try is after a tick, later ones after up to 30 s",
    "shared": "a cgroup is not a VM's alone",
    "stale": "nobody serves a QMP socket, or its path is not a socket",
    "store": "the agent's state can't be written",
    "timeout": "libvirt or QEMU didn't answer in time",
}
