"""Block jobs in the words of QMP's commands."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from iokeel.core.enforce.jobs import BlockJob
from iokeel.hypervisors.qemu.bounds import Count, Name

# libvirt has a migration copy at 2^63 - 2^20 if nobody gave it a speed.
_ENDLESS_BPS = 1 << 62
QUERY_JOBS = "query-block-jobs"
#: An event of this name comes whenever a job begins, ends, or stops in between (QEMU 3.0 on).
JOB_EVENT = "JOB_STATUS_CHANGE"


class JobInfo(msgspec.Struct):
    """A job in query-block-jobs. device: the job's own name."""

    device: Name
    kind: Name = msgspec.field(name="type")
    done: Count = msgspec.field(name="offset")
    speed: Count


def jobs_of(infos: Iterable[JobInfo]) -> list[BlockJob]:
    """Return the jobs that QEMU tells of."""
    return [BlockJob(info.device, info.kind, speed_of(info.speed), info.done) for info in infos]


def speed_of(speed: int) -> int | None:
    """Return the speed that QEMU or libvirt tells; None if it has no end."""
    return speed if 0 < speed < _ENDLESS_BPS else None


def setting(name: str, bps: int) -> tuple[str, dict[str, str | int]]:
    """Return the command that sets a job's speed, and its arguments. bps: 0 for none."""
    return "block-job-set-speed", {"device": name, "speed": bps}
