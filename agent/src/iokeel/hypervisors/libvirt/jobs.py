"""Block jobs of libvirt's domains, which are read and set past libvirt.

libvirt's own virDomainBlockJobSetSpeed waits for as long as a domain migrates, which is when its
storage is copied, and its virDomainGetBlockJobInfo asks for one disk at a time. QMP serves both at
any time, and libvirt reads speeds from QEMU, so its view stays true. If libvirt passes no commands
on, its own calls are used.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import libvirt
import msgspec

from iokeel.core.enforce.jobs import BlockJob
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt.passthrough import Outcome, ask, passes_none_on, said
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES, Decoder
from iokeel.hypervisors.qemu.jobs import QUERY_JOBS, JobInfo, jobs_of, setting, speed_of
from iokeel.libvirt_xml.domain import DomainXml

_QUERY = json.dumps({"execute": QUERY_JOBS})
_KINDS = {
    libvirt.VIR_DOMAIN_BLOCK_JOB_TYPE_PULL: "stream",
    libvirt.VIR_DOMAIN_BLOCK_JOB_TYPE_COPY: "mirror",
    libvirt.VIR_DOMAIN_BLOCK_JOB_TYPE_COMMIT: "commit",
    libvirt.VIR_DOMAIN_BLOCK_JOB_TYPE_ACTIVE_COMMIT: "commit",
    libvirt.VIR_DOMAIN_BLOCK_JOB_TYPE_BACKUP: "backup",
}


class _Jobs(Outcome):
    jobs: Annotated[list[JobInfo], msgspec.Meta(max_length=MOST_DRIVES)] | None = msgspec.field(
        name="return", default=None
    )


_JOBS = Decoder(_Jobs)
_OUTCOME = Decoder(Outcome)


def read_jobs(handle: Any, xml: DomainXml) -> list[BlockJob]:
    """Return a domain's block jobs. Raises libvirtError, or LimitsRejected if QEMU tells none.

    If libvirt knows of none on any disk, somebody has begun them past libvirt, or QEMU lies.
    """
    try:
        answer = ask(handle, _QUERY, _JOBS)
    except libvirt.libvirtError as error:
        if not passes_none_on(error):
            raise
        found = [_told(handle, disk.target) for disk in xml.drives]
        return [job for job in found if job is not None]
    if answer is None or answer.jobs is None:
        words = said(answer)
        what = f"query-block-jobs: {words}"
        raise LimitsRejected(xml.name, what, "its jobs stay as they are", said=words)
    jobs = jobs_of(answer.jobs)
    if jobs and not any(_told(handle, disk.target) for disk in xml.drives):
        return [job._replace(known=False) for job in jobs]
    return jobs


def put_speed(handle: Any, name: str, bps: int) -> None:
    """Set a job's speed; 0 for none. Raises libvirtError or LimitsRejected."""
    command, arguments = setting(name, bps)
    try:
        outcome = ask(handle, json.dumps({"execute": command, "arguments": arguments}), _OUTCOME)
    except libvirt.libvirtError as error:
        if not passes_none_on(error):
            raise
        flags = libvirt.VIR_DOMAIN_BLOCK_JOB_SPEED_BANDWIDTH_BYTES
        handle.blockJobSetSpeed(name, bps, flags)  # then its name is its disk's
        return
    if outcome is None or outcome.error is not None:
        words = said(outcome)
        raise LimitsRejected(name, f"QEMU took no speed: {words}", "", said=words)


def _told(handle: Any, target: str) -> BlockJob | None:
    """Return a disk's job as libvirt tells of it; None if it has none."""
    info = handle.blockJobInfo(target, libvirt.VIR_DOMAIN_BLOCK_JOB_INFO_BANDWIDTH_BYTES)
    if not info:
        return None
    kind = _KINDS.get(info["type"], "block")
    return BlockJob(target, kind, speed_of(info["bandwidth"]), info["cur"])
