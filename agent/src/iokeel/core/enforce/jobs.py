"""Block jobs: which speed they get, and the room for them in a VM's cgroup.

A job (a backup, a copy, a commit, the storage that a migration copies) passes no throttle. QEMU
holds it to a speed of its own if it has one, and the VM's cgroup makes room for it, or the guest
would queue behind the job's requests:

1. A job that nobody gave a speed gets the rate of the policy or of [jobs], if there is one. A speed
   that somebody else has set stays.
2. While a job with a speed moves, the bounds have room for that, and for what it moves at once.
3. While a job without a speed moves, its VM has no bounds. Whatever they were, they would hold the
   job, and the guest with it.
4. A job that only QEMU tells of, though libvirt would know it, takes no room unless it has our
   rate: a QEMU that its guest has taken over could claim one. What it does is taken for what
   images add (beneath.py), which has an end.
5. A job moves if its progress has changed in the last `STILL_S`. One that hangs, or that only
   follows the guest's writes and has none to copy, takes no room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from iokeel.core.enforce.backstop import Io
from iokeel.core.values.counters import NS_PER_S

#: A mirror reads its buffer at once and then waits for as long as its speed says.
AT_ONCE_BYTES = 16 << 20
# A guest's requests wait no longer than this behind what a job moves at once.
_WAIT_S = 0.05
# The least that a job moves by a request: a small cluster, or the granularity of a mirror's bitmap.
_REQUEST_BYTES = 16 << 10
STILL_S = 10.0


class BlockJob(NamedTuple):
    """A block job as QEMU tells of it.

    name: QEMU's. kind: QEMU's word, such as "backup" or "mirror". bps: its speed in bytes a second;
    None if it has none. done: its progress, in bytes. known: somebody besides QEMU knows of it, or
    there is nobody who could.
    """

    name: str
    kind: str
    bps: int | None
    done: int
    known: bool = True


class Followed(NamedTuple):
    """A job that is followed.

    given: the speed that it has from here; None if none. moved_ns: when its progress was last seen
    to change, by the monotonic clock.
    """

    job: BlockJob
    given: int | None
    moved_ns: int


def follow(before: Followed | None, job: BlockJob, rate: int | None, now_ns: int) -> Followed:
    """Return a job as it is followed after a look.

    rate: for jobs of its VM; None if there is none. A job that has it already is taken to have it
    from an earlier agent.
    """
    given = before.given if before is not None else None
    if job.bps is not None and job.bps == rate:
        given = rate
    moved = before is None or job.done != before.job.done
    return Followed(job, given, now_ns if moved or before is None else before.moved_ns)


def speed_to_set(followed: Followed, rate: int | None) -> int | None:
    """Return the speed to give a job, 0 for none; None if it keeps what it has.

    rate: for jobs of its VM; None if there is none. A speed that isn't ours stays, and so does the
    lack of one if somebody has taken ours away.
    """
    job, given = followed.job, followed.given
    if job.bps == rate or job.bps != given:
        return None
    return rate or 0


def is_moving(followed: Followed, now_ns: int) -> bool:
    """Return whether a job moves, and so takes room."""
    return now_ns - followed.moved_ns <= STILL_S * NS_PER_S


def room(followed: Iterable[Followed], margin: float, now_ns: int) -> Io | None:
    """Return the room for a VM's jobs, in rates a second; None if that has no end.

    margin: as that of the bounds.
    """
    bps = 0.0
    for each in followed:
        is_sure = each.job.known or (each.given is not None and each.job.bps == each.given)
        if is_sure and is_moving(each, now_ns):
            if each.job.bps is None:
                return None
            bps += each.job.bps * margin + AT_ONCE_BYTES / _WAIT_S
    return Io(bps, bps, bps / _REQUEST_BYTES, bps / _REQUEST_BYTES)
