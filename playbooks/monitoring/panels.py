"""What the dashboard shows, in rows of panels. dashboard.py makes dashboard.json of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ONLY_IF_QEMU_COUNTS = "Only if QEMU counts: a stock QEMU has no data here."
"""In the description of each panel that is empty on stock QEMU."""

HOST = 'instance=~"$instance"'
STORAGE = f'{HOST}, storage=~"$storage"'
TENANT = f'{HOST}, tenant=~"$tenant"'
VM = f'{HOST}, domain=~"$domain"'
DRIVE = f'{VM}, target_device=~"$drive"'
# Joins a drive's metric with its storage and tenant.
WITH_INFO = "* on (job, instance, domain, target_device) group_left (storage, tenant)"
OF_STORAGE = "{{instance}} {{storage}}"
OF_DRIVE = "{{domain}}/{{target_device}}"
OF_DIRECTION = f"{OF_DRIVE} {{{{direction}}}}"

VARIABLES = {
    "instance": ("host", 'label_values(up{job="iokeel"}, instance)'),
    "storage": ("storage", f"label_values(iokeel_drive_info{{{HOST}}}, storage)"),
    "tenant": ("tenant", f"label_values(iokeel_drive_info{{{HOST}}}, tenant)"),
    "domain": ("VM", f'label_values(iokeel_drive_info{{{STORAGE}, tenant=~"$tenant"}}, domain)'),
    "drive": ("drive", f"label_values(iokeel_drive_info{{{VM}}}, target_device)"),
}
"""Each variable's label and query, by its name."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of lines over time. unit: as Grafana calls it. queries: by their legend."""

    title: str
    unit: str
    description: str
    queries: Mapping[str, str]


class Figure(Panel):
    """A panel with one number."""


class Faults(Figure):
    """A panel with one number, which is red above 0."""


class Heatmap(Panel):
    """A panel of a histogram over time."""


def rate(metric: str, labels: str) -> str:
    """Return a query for a counter's rate."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def per_request(metric: str) -> str:
    """Return a query for a drive's counter over its requests."""
    return f"{rate(metric, DRIVE)} / {rate('iokeel_drive_requests_total', DRIVE)}"


ROWS: Mapping[str, tuple[Panel, ...]] = {
    "Host": (
        Figure(
            "Agents that answer",
            "short",
            "The limits on a host whose agent doesn't answer stay as they are.",
            {"": f'sum(up{{job="iokeel", {HOST}}})'},
        ),
        Figure("VMs", "short", "Running VMs.", {"": f"sum(iokeel_agent_domains{{{HOST}}})"}),
        Figure("Drives", "short", "Their drives.", {"": f"sum(iokeel_agent_drives{{{HOST}}})"}),
        Faults(
            "Invalid policies",
            "short",
            "VMs whose policy can't be used. Their last good one stays in force.",
            {"": f"sum(1 - iokeel_domain_policy_valid{{{HOST}}})"},
        ),
        Faults(
            "Failed changes in an hour",
            "short",
            "Changes of limits that failed. The limits before stay in force.",
            {"": f"sum(increase(iokeel_drive_errors_total{{{HOST}}}[1h]))"},
        ),
        Faults(
            "Alerts",
            "short",
            "Alerts of the rule files that fire, on all hosts.",
            {"": 'count(ALERTS{alertname=~"Iokeel.*", alertstate="firing"}) or vector(0)'},
        ),
        Panel(
            "Drives by mode",
            "short",
            "exact: QEMU charges by the cost curve. retune: the agent adjusts the limits. "
            "Without a mode: nothing limits them.",
            {"{{mode}}": f"count by (mode) (iokeel_drive_info{{{HOST}}})"},
        ),
        Panel(
            "Changes of limits",
            "cps",
            "retunes: to fit the workload. overwritten: put back after somebody else's change.",
            {
                f"{{{{instance}}}} {what}": f"sum by (instance) ({rate(metric, HOST)})"
                for what, metric in (
                    ("retunes", "iokeel_drive_retunes_total"),
                    ("overwritten", "iokeel_drive_limits_overwritten_total"),
                )
            },
        ),
        Panel(
            "Errors",
            "cps",
            "Errors of the agent by kind, and connections that were made again.",
            {
                "{{kind}}": f"sum by (kind) ({rate('iokeel_agent_errors_total', HOST)})",
                "reconnects": f"sum({rate('iokeel_agent_reconnects_total', HOST)})",
            },
        ),
        Panel(
            "Time of a tick, 99 %",
            "s",
            "From the start of a tick until its last order was sent.",
            {
                "{{instance}}": "histogram_quantile(0.99, sum by (instance, le) "
                f"({rate('iokeel_agent_tick_seconds_bucket', HOST)}))"
            },
        ),
        Panel(
            "CPU of the agent",
            "percentunit",
            "Of one core.",
            {"{{instance}}": rate("process_cpu_seconds_total", f'job="iokeel", {HOST}')},
        ),
        Panel(
            "I/O pressure of the host",
            "percentunit",
            "Part of the time in which some or all tasks waited for I/O. "
            "Only if the kernel counts it (PSI).",
            {"{{instance}} {{kind}}": f"iokeel_host_io_pressure_ratio{{{HOST}}}"},
        ),
    ),
    "Storage": (
        Panel(
            "Rate and capacity",
            "iops",
            "usable: the capacity, corrected by latency. "
            "A storage whose capacity isn't known has no capacity and no usable line.",
            {
                OF_STORAGE: f"iokeel_storage_normalized_iops{{{STORAGE}}}",
                f"{OF_STORAGE} usable": f"iokeel_storage_usable_iops{{{STORAGE}}}",
                f"{OF_STORAGE} capacity": f"iokeel_storage_capacity_iops{{{STORAGE}}}",
                f"{OF_STORAGE} reserved": f"iokeel_storage_reserved_iops{{{STORAGE}}}",
            },
        ),
        Panel(
            "Latency",
            "s",
            "Mean of the storage's own requests. The target is for 4 KiB reads; "
            "larger requests may take longer.",
            {
                OF_STORAGE: f"iokeel_storage_latency_seconds{{{STORAGE}}}",
                f"{OF_STORAGE} target": f"iokeel_storage_latency_target_seconds{{{STORAGE}}}",
            },
        ),
        Panel(
            "Requests in flight",
            "short",
            "Mean number.",
            {OF_STORAGE: f"iokeel_storage_queue_requests{{{STORAGE}}}"},
        ),
        Panel(
            "Reservations kept",
            "percentunit",
            "Part of the reservations in use that the storage can keep.",
            {OF_STORAGE: f"iokeel_storage_reservations_kept_ratio{{{STORAGE}}}"},
        ),
        Panel(
            "Room beside latency targets",
            "percentunit",
            "Part that drives without a latency target may use, if another drive has one. "
            "exhausted: a target is missed, and less for them is not possible or does not help.",
            {
                OF_STORAGE: f"iokeel_storage_room_ratio{{{STORAGE}}}",
                f"{OF_STORAGE} exhausted": f"iokeel_storage_latency_exhausted{{{STORAGE}}}",
            },
        ),
        Panel(
            "The busiest drives",
            "iops",
            "Ten at most.",
            {
                OF_DRIVE: f"topk(10, iokeel_drive_normalized_iops{{{HOST}}} {WITH_INFO} "
                f"iokeel_drive_info{{{STORAGE}}})"
            },
        ),
    ),
    "Tenant": (
        Panel(
            "Rate",
            "iops",
            "Of all of a tenant's drives on a host.",
            {"{{tenant}} {{instance}}": f"tenant:iokeel_normalized_iops:sum{{{TENANT}}}"},
        ),
        Panel(
            "Bytes",
            "binBps",
            "Mean of 5 minutes.",
            {"{{tenant}} {{instance}} {{direction}}": f"tenant:iokeel_bytes:rate5m{{{TENANT}}}"},
        ),
        Panel(
            "Operations by project",
            "iops",
            "Normalized, as they are billed. Mean of 5 minutes. "
            "Without a project: no platform tells one.",
            {
                "{{project}} {{direction}}": "sum by (project, direction) "
                f"(domain:iokeel_normalized_operations:rate5m{{{TENANT}}})"
            },
        ),
        Panel(
            "Throttled",
            "percentunit",
            "Part of 5 minutes in which limits held the tenant's drive that they held most.",
            {"{{tenant}} {{instance}}": f"tenant:iokeel_throttled:max_ratio_rate5m{{{TENANT}}}"},
        ),
        Panel(
            "The most throttled drives",
            "percentunit",
            "Ten at most. `iokeel why VM DRIVE` says which limit holds.",
            {OF_DRIVE: f"topk(10, drive:iokeel_throttled:ratio_rate5m{{{TENANT}}})"},
        ),
    ),
    "VM": (
        Panel(
            "Rate",
            "iops",
            "Of all drives of a VM. Only a VM with a limit of its own has the other lines.",
            {
                "{{domain}}": f"sum by (instance, domain) (iokeel_drive_normalized_iops{{{VM}}})",
                "{{domain}} allowed": f"iokeel_domain_allowed_iops{{{VM}}}",
                "{{domain}} limit": f"iokeel_domain_limit_iops{{{VM}}}",
            },
        ),
        Panel(
            "Burst credit",
            "s",
            "Only VMs with a burst of their own.",
            {"{{domain}}": f"iokeel_domain_credit_seconds{{{VM}}}"},
        ),
        Panel(
            "Policy",
            "bool",
            "False while a policy can't be used: `iokeel policy check VM` says why.",
            {"{{domain}} is valid": f"iokeel_domain_policy_valid{{{VM}}}"},
        ),
    ),
    "Drive": (
        Panel(
            "Rate",
            "iops",
            "allowed: the limit or open burst, at most its share. "
            "Only a drive with a limit has the other lines.",
            {
                OF_DRIVE: f"iokeel_drive_normalized_iops{{{DRIVE}}}",
                f"{OF_DRIVE} allowed": f"iokeel_drive_allowed_iops{{{DRIVE}}}",
                f"{OF_DRIVE} limit": f"iokeel_drive_limit_iops{{{DRIVE}}}",
            },
        ),
        Panel(
            "Throttled",
            "percentunit",
            "Part of 5 minutes in which limits held the drive.",
            {OF_DRIVE: f"drive:iokeel_throttled:ratio_rate5m{{{DRIVE}}}"},
        ),
        Panel(
            "Promises missed",
            "percentunit",
            "Part of 5 minutes' seconds with requests in which a promise to the drive was missed.",
            {f"{OF_DRIVE} {{{{promise}}}}": f"drive:iokeel_promise_missed:ratio_rate5m{{{DRIVE}}}"},
        ),
        Panel(
            "Latency",
            "s",
            "Mean, the wait for the throttle included.",
            {OF_DIRECTION: f"iokeel_drive_latency_seconds{{{DRIVE}}}"},
        ),
        Panel(
            "Requests",
            "reqps",
            "Not normalized.",
            {OF_DIRECTION: rate("iokeel_drive_requests_total", DRIVE)},
        ),
        Panel("Bytes", "binBps", "", {OF_DIRECTION: rate("iokeel_drive_bytes_total", DRIVE)}),
        Panel(
            "Mean size of requests",
            "bytes",
            "On stock QEMU, limits are made for it.",
            {OF_DIRECTION: per_request("iokeel_drive_bytes_total")},
        ),
        Panel(
            "Burst credit",
            "s",
            "Each second under the limit earns one.",
            {OF_DRIVE: f"iokeel_drive_credit_seconds{{{DRIVE}}}"},
        ),
        Panel(
            "Changes of limits",
            "cps",
            "failed: the limits before stay. overwritten: put back after somebody else's change.",
            {
                f"{OF_DRIVE} retunes": rate("iokeel_drive_retunes_total", DRIVE),
                f"{OF_DRIVE} overwritten": rate("iokeel_drive_limits_overwritten_total", DRIVE),
                f"{OF_DRIVE} failed": rate("iokeel_drive_errors_total", DRIVE),
            },
        ),
    ),
    "Drive on a patched QEMU": (
        Panel(
            "Latency of the device",
            "s",
            f"Mean, without the throttle's wait. {ONLY_IF_QEMU_COUNTS}",
            {OF_DIRECTION: f"iokeel_drive_device_latency_seconds{{{DRIVE}}}"},
        ),
        Panel(
            "Wait for the throttle",
            "s",
            f"Mean of all requests. {ONLY_IF_QEMU_COUNTS}",
            {OF_DIRECTION: per_request("iokeel_drive_throttle_wait_seconds_total")},
        ),
        Panel(
            "Requests that had to wait",
            "percentunit",
            f"Part of all requests. {ONLY_IF_QEMU_COUNTS}",
            {OF_DIRECTION: per_request("iokeel_drive_throttle_waited_requests_total")},
        ),
        Panel(
            "Requests that wait now",
            "short",
            ONLY_IF_QEMU_COUNTS,
            {OF_DIRECTION: f"iokeel_drive_throttle_waiting_requests{{{DRIVE}}}"},
        ),
        Panel(
            "Cost charged",
            "iops",
            f"Normalized, by QEMU's own count. {ONLY_IF_QEMU_COUNTS}",
            {OF_DIRECTION: rate("iokeel_drive_throttle_cost_total", DRIVE)},
        ),
        Heatmap(
            "Sizes of requests",
            "bytes",
            ONLY_IF_QEMU_COUNTS,
            {"{{le}}": f"sum by (le) ({rate('iokeel_drive_request_size_bytes_bucket', DRIVE)})"},
        ),
    ),
}
