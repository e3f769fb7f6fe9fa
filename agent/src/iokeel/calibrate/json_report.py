"""A calibration as JSON, every run included."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from iokeel import __version__
from iokeel.calibrate.job import JobResult
from iokeel.calibrate.measurement import Series
from iokeel.calibrate.result import Calibration
from iokeel.core.curve import Point
from iokeel.core.fitting.steadiness import Steadiness


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
