"""The agent's figures in Prometheus' text format, made when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from iokeel.host.disk_counters import read_pressure
from iokeel.report.records import DriveReport, storage_reports, vm_reports

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # they are not in the format that is served, and look like gauges there
_LABELS = ["domain", "target_device"]
_TICK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The registry behind /metrics, and the agent's own counters."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._ticks = Histogram(
            "iokeel_agent_tick_seconds",
            "Time from the start of a tick to its last order sent.",
            buckets=_TICK_BUCKETS_S,
            registry=self._registry,
        )
        self._tick_cpu = Histogram(
            "iokeel_agent_tick_cpu_seconds",
            "CPU time of the agent's process in a tick.",
            buckets=_TICK_BUCKETS_S,
            registry=self._registry,
        )

    def watch(self, agent: Any) -> None:
        """Show an agent's drives (an iokeel.daemon.Agent) in what `text` returns."""
        self._registry.register(_Drives(agent))

    def tick(self, elapsed_s: float, cpu_s: float) -> None:
        """Count one tick."""
        self._ticks.observe(elapsed_s)
        self._tick_cpu.observe(cpu_s)

    def text(self) -> bytes:
        """Return all metrics in the text format of CONTENT_TYPE."""
        return generate_latest(self._registry)


# Name, help, whether a counter, and the value in a drive's report (None: no sample).
_PER_DRIVE = (
    ("normalized_iops", "Normalized I/O operations a second.", False, "normalized_iops"),
    ("limit_iops", "The policy's limit, normalized.", False, "limit_iops"),
    ("allowed_iops", "What the drive may do now, normalized.", False, "allowed_iops"),
    ("credit_seconds", "Burst credit left.", False, "credit_s"),
    ("throttled_seconds", "Time in which a limit was used up.", True, "throttled_s"),
    ("retunes", "Changes of limits after the first.", True, "retunes"),
    ("limits_overwritten", "Times somebody else's limits were put back.", True, "overwritten"),
    ("errors", "Orders that failed.", True, "errors"),
)
# Name, help, and the value in a storage's report (None: no sample).
_PER_STORAGE = (
    ("capacity_iops", "Capacity configured or calibrated, normalized.", "capacity_iops"),
    ("usable_iops", "What its drives may do together now, normalized.", "usable_iops"),
    ("normalized_iops", "What its drives do together, normalized.", "normalized_iops"),
    ("reserved_iops", "Sum of what is reserved of it, normalized.", "reserved_iops"),
    ("reservations_kept_ratio", "Part of reservations asked for that fits.", "reservations_kept"),
    ("room_ratio", "Part that drives without a latency target may use.", "room_ratio"),
    ("latency_seconds", "Mean latency of its requests.", "latency_s"),
    ("latency_target_seconds", "Latency above which it is overloaded.", "latency_target_s"),
    ("queue_requests", "Requests in flight, on average.", "queue"),
)
_PER_DIRECTION = (
    ("requests", "Requests since the guest's start.", True, "{}_requests"),
    ("bytes", "Bytes since the guest's start.", True, "{}_bytes"),
    ("latency_seconds", "Mean latency, the throttle's wait included.", False, "{}_latency_s"),
    (
        "device_latency_seconds",
        "Mean latency without the throttle's wait.",
        False,
        "{}_device_latency_s",
    ),
)
# Of drives whose QEMU tells what their throttle groups do, by the value in a ThrottleReport.
_PER_GROUP = (
    ("cost", "What QEMU charged, in normalized I/O operations.", True, "cost"),
    ("waited_requests", "Requests that had to wait for the throttle.", True, "waited"),
    ("wait_seconds", "Sum of the times that requests waited for the throttle.", True, "wait_s"),
    ("waiting_requests", "Requests that wait for the throttle now.", False, "waiting"),
)
_DIRECTIONS = ("read", "write")
# Sizes are counted by powers of two, the upper bound not included.
_SIZE_BUCKETS = tuple(2**power for power in range(10, 22))


class _Drives:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        vms = vm_reports(self._agent)
        drives = [drive for vm in vms for drive in vm.drives]
        yield from _agent_metrics(self._agent, len(vms), len(drives))
        yield _gauge(
            "domain_policy_valid",
            "Whether a domain's policy is valid; where it is not, the last good one holds.",
            ["domain"],
            (((vm.domain,), float(vm.policy_error is None)) for vm in vms),
        )
        storages = storage_reports(self._agent)
        for name, text, key in _PER_STORAGE:
            yield _gauge(
                f"storage_{name}",
                text,
                ["storage"],
                (((s.storage,), getattr(s, key)) for s in storages),
            )
        for name, text, counter, key in _PER_DRIVE:
            kind = CounterMetricFamily if counter else GaugeMetricFamily
            family = kind(f"iokeel_drive_{name}", text, labels=_LABELS)
            _add(family, ((_labels(d), getattr(d, key)) for d in drives))
            yield family
        for name, text, counter, key in _PER_DIRECTION:
            kind = CounterMetricFamily if counter else GaugeMetricFamily
            family = kind(f"iokeel_drive_{name}", text, labels=[*_LABELS, "direction"])
            _add(
                family,
                (
                    ((*_labels(d), direction), getattr(d, key.format(direction)))
                    for d in drives
                    for direction in _DIRECTIONS
                ),
            )
            yield family
        yield from _group_metrics(drives)


def _group_metrics(drives: Sequence[DriveReport]) -> Iterator[Metric]:
    groups = [
        ((*_labels(drive), direction), group)
        for drive in drives
        for direction in _DIRECTIONS
        if (group := getattr(drive, direction)) is not None
    ]
    for name, text, counter, key in _PER_GROUP:
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        family = kind(f"iokeel_drive_throttle_{name}", text, labels=[*_LABELS, "direction"])
        _add(family, ((labels, getattr(group, key)) for labels, group in groups))
        yield family
    sizes = HistogramMetricFamily(
        "iokeel_drive_request_size_bytes",
        "Requests by size, in powers of two: le 8191 has those below 8 KiB.",
        labels=[*_LABELS, "direction"],
    )
    for labels, group in groups:
        sizes.add_metric(labels, _buckets(group.sizes), group.bytes)
    yield sizes


def _buckets(sizes: Mapping[int, int]) -> list[tuple[str, float]]:
    """Return cumulative counts of requests by the largest size that they count."""
    counts = [
        (str(bound - 1), float(sum(n for least, n in sizes.items() if least < bound)))
        for bound in _SIZE_BUCKETS
    ]
    return [*counts, ("+Inf", float(sum(sizes.values())))]


def _agent_metrics(agent: Any, vms: int, drives: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("iokeel_agent_domains", "Running domains known.", value=vms)
    yield GaugeMetricFamily("iokeel_agent_drives", "Drives known.", value=drives)
    yield CounterMetricFamily(
        "iokeel_agent_reconnects",
        "Connections to libvirtd or a QMP socket made again.",
        value=sum(source.reconnects for source in agent.sources),
    )
    pressure = read_pressure()
    waits = {"some": pressure.some_ratio, "full": pressure.full_ratio} if pressure else {}
    yield _gauge(
        "host_io_pressure_ratio",
        "Part of the last 10 s in which some, or all, of the host's work waited for I/O.",
        ["kind"],
        (((kind,), ratio) for kind, ratio in waits.items()),
    )
    errors = CounterMetricFamily("iokeel_agent_errors", "Errors by kind.", labels=["kind"])
    _add(errors, (((kind,), count) for kind, count in sorted(agent.errors().items())))
    yield errors


def _labels(drive: DriveReport) -> tuple[str, str]:
    return drive.domain, drive.target


def _gauge(
    name: str,
    text: str,
    labels: list[str],
    samples: Iterable[tuple[tuple[str, ...], float | None]],
) -> Metric:
    family = GaugeMetricFamily(f"iokeel_{name}", text, labels=labels)
    _add(family, samples)
    return family


def _add(family: Any, samples: Iterable[tuple[tuple[str, ...], float | None]]) -> None:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
