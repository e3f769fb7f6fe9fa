"""A calibration as a table for the agent's configuration, and as JSON."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from iokeel import __version__
from iokeel.calibrate.fio import JobResult
from iokeel.calibrate.measurement import Series
from iokeel.calibrate.result import Calibration
from iokeel.calibrate.target import Target
from iokeel.core.fitting import Steadiness
from iokeel.core.values.curve import KIB, CostCurve, Point
from iokeel.words.quoting import escaped

_MIB = KIB**2
# The keys that TOML takes without quotes.
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def config_text(name: str, target: Target, calibration: Calibration, fio_version: str) -> str:
    """Return the table to paste, with its origin and the warnings as comments."""
    today = datetime.now(UTC).date()
    comments = (
        f"Calibrated on {today} by iokeel {__version__} with {fio_version}.",
        *calibration.warnings,
    )
    lines = [f"# {escaped(comment)}" for comment in comments]
    table = config_table(name, target.config_key, target.config_value, calibration)
    return "\n".join(lines) + "\n" + table


def config_table(name: str, key: str, value: str, calibration: Calibration) -> str:
    """Return the storage's TOML table. key, value: say which storage it is."""
    fitted = calibration.fit
    lines = [
        f"[storage.{name if _BARE_KEY.fullmatch(name) else _quoted(name)}]",
        f"{key} = {_quoted(value)}",
        f"capacity = {fitted.capacity}",
        f"latency_target_ms = {calibration.latency_target_ms}",
        f"curve_read = {_points(fitted.read)}",
    ]
    if fitted.write is not None:
        lines.append(f"curve_write = {_points(fitted.write)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as TOML has it, with escapes for what a terminal would act upon."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _points(curve: CostCurve) -> str:
    return json.dumps([[_size(size), cost] for size, cost in curve.points])


def _size(size_bytes: int) -> str:
    """Return a size as the configuration has it: 4k, 1m."""
    return f"{size_bytes // _MIB}m" if size_bytes % _MIB == 0 else f"{size_bytes // KIB}k"


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of a series; see JobResult."""

    raw_iops: float
    latency_s: float
    latency_p99_s: float
    window_iops: Sequence[float]
    busy_ratio: float
    depth: int


@dataclass(frozen=True, slots=True)
class SeriesReport:
    """All runs of one direction, order and size.

    kind: read or write. order: random or sequential. saturation_depth: where p99 is taken. depth:
    where the rate is taken. cost: by the fitted curve, which describes random requests only; the
    measured one is capacity / raw_iops. fit_error_ratio: None for sequential requests.
    """

    kind: str
    order: str
    size_bytes: int
    saturation_depth: int
    depth: int
    raw_iops: float
    latency_p99_s: float
    cost: float
    fit_error_ratio: float | None
    steadiness: Steadiness
    runs: Sequence[RunReport]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a calibration was made of, and with.

    fio, iokeel: versions. size_bytes: as given by --size; None: the default. threads: as
    given by --threads.
    """

    storage: str
    time: str
    kernel: str
    fio: str
    iokeel: str
    seconds: float
    size_bytes: int | None
    threads: int

    @classmethod
    def now(
        cls, storage: str, fio_version: str, seconds: float, size_bytes: int | None, threads: int
    ) -> Conditions:
        """Return conditions with today's date and this host's kernel."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        kernel = platform.release()
        return cls(storage, time, kernel, fio_version, __version__, seconds, size_bytes, threads)


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """A whole calibration. latency_at_load_ms: at 80 % of saturation, by kind of request."""

    capacity: int
    latency_target_ms: float
    latency_at_load_ms: Mapping[str, float]
    curve_read: Sequence[Point]
    curve_write: Sequence[Point] | None
    warnings: Sequence[str]
    series: Sequence[SeriesReport]


def json_text(conditions: Conditions, calibration: Calibration, config: str) -> str:
    """Return conditions, calibration and the configuration's table as one JSON object."""
    report = calibration_report(calibration)
    return json.dumps(asdict(conditions) | asdict(report) | {"config": config}, indent=1)


def calibration_report(calibration: Calibration) -> CalibrationReport:
    """Return a calibration's figures, every run included."""
    fitted = calibration.fit
    return CalibrationReport(
        capacity=fitted.capacity,
        latency_target_ms=calibration.latency_target_ms,
        latency_at_load_ms={kind: 1e3 * s for kind, s in calibration.latencies_s.items()},
        curve_read=fitted.read.points,
        curve_write=fitted.write.points if fitted.write else None,
        warnings=calibration.warnings,
        series=[_series(series, calibration) for series in calibration.series],
    )


def _series(series: Series, calibration: Calibration) -> SeriesReport:
    job = series.job
    return SeriesReport(
        kind=job.direction,
        order=job.order,
        size_bytes=job.size_bytes,
        saturation_depth=job.depth,
        depth=series.saturated[0].job.depth,
        raw_iops=series.raw_iops,
        latency_p99_s=series.latency_p99_s,
        cost=calibration.cost(series),
        fit_error_ratio=calibration.fit_error_ratio(series),
        steadiness=series.steadiness,
        # The first run at saturation is one of the search.
        runs=[_run(result) for result in (*series.search, *series.saturated[1:])],
    )


def _run(result: JobResult) -> RunReport:
    return RunReport(
        raw_iops=result.raw_iops,
        latency_s=result.latency_s,
        latency_p99_s=result.latency_p99_s,
        window_iops=result.window_iops,
        busy_ratio=result.busy_ratio,
        depth=result.job.depth,
    )
