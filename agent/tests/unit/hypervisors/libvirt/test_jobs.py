"""Block jobs of a domain, on a QEMU and a libvirt that answer from a table."""

from __future__ import annotations

import json
from typing import Any

import libvirt
import pytest

from iokeel.core.enforce.jobs import BlockJob
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt.jobs import put_speed, read_jobs
from iokeel.libvirt_xml.domain import Disk, DomainXml
from testing.hypervisors.libvirt_error import refusal

XML = DomainXml("db1", (Disk("vda", "/a.qcow2"), Disk("vdb", "/b.raw")))
# As QEMU 10.0 and libvirt 11.3 told of a backup and of a migration's copy.
BACKUP = {
    "auto-finalize": True, "io-status": "ok", "device": "backup-vda-libvirt-1-storage",
    "auto-dismiss": False, "busy": False, "len": 417333248, "offset": 32505856,
    "status": "running", "paused": False, "speed": 20000000, "ready": False, "type": "backup",
}  # fmt: skip
COPY = BACKUP | {
    "device": "drive-virtio-disk0",
    "speed": 9223372036853727232,
    "type": "mirror",
    "actively-synced": False,
}


class Domain:
    """A domain's handle, and QEMU behind it. passes: whether libvirt passes commands on."""

    def __init__(self) -> None:
        self.passes = True
        self.answer: object = {"return": [BACKUP, COPY]}
        self.asked: list[dict[str, Any]] = []
        self.told: dict[str, dict[str, int]] = {}
        self.speeds: list[tuple[str, int, int]] = []

    def command(self, handle: object, text: str, flags: int) -> str:
        if not self.passes:
            raise refusal(libvirt.VIR_ERR_OPERATION_DENIED)
        self.asked.append(json.loads(text))
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer)

    def blockJobInfo(self, target: str, flags: int) -> dict[str, int]:
        assert flags == libvirt.VIR_DOMAIN_BLOCK_JOB_INFO_BANDWIDTH_BYTES
        return self.told.get(target, {})

    def blockJobSetSpeed(self, target: str, bps: int, flags: int) -> None:
        self.speeds.append((target, bps, flags))


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Domain:
    made = Domain()
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", made.command)
    return made


def test_jobs_are_read_by_one_question_and_a_migrations_copy_has_no_speed(domain: Domain) -> None:
    domain.told["vdb"] = {"type": 5, "bandwidth": 0, "cur": 7, "end": 9}
    assert read_jobs(domain, XML) == [
        BlockJob("backup-vda-libvirt-1-storage", "backup", 20_000_000, 32505856),
        BlockJob("drive-virtio-disk0", "mirror", None, 32505856),
    ]
    assert [request["execute"] for request in domain.asked] == ["query-block-jobs"]
    domain.answer = {"return": [BACKUP | {"speed": 0}]}
    assert [job.bps for job in read_jobs(domain, XML)] == [None]


@pytest.mark.parametrize("answer", ["", "{}", '{"return": [{"device": 5}]}', '{"error": {}}'])
def test_an_answer_that_makes_no_sense_says_so(domain: Domain, answer: str) -> None:
    domain.answer = answer
    with pytest.raises(LimitsRejected, match="makes no sense"):
        read_jobs(domain, XML)


def test_a_qemu_that_refuses_to_tell_its_jobs_is_quoted(domain: Domain) -> None:
    domain.answer = {"error": {"class": "GenericError", "desc": "not now"}}
    with pytest.raises(LimitsRejected, match="query-block-jobs: not now"):
        read_jobs(domain, XML)


def test_a_speed_is_set_on_the_job_itself(domain: Domain) -> None:
    domain.answer = {"return": {}}
    put_speed(domain, "backup-vda", 5_000_000)
    (request,) = domain.asked
    assert request["execute"] == "block-job-set-speed"
    assert request["arguments"] == {"device": "backup-vda", "speed": 5_000_000}


def test_a_speed_that_qemu_refuses_is_told_in_its_words(domain: Domain) -> None:
    domain.answer = {"error": {"class": "GenericError", "desc": "no such job"}}
    with pytest.raises(LimitsRejected, match="no such job"):
        put_speed(domain, "backup-vda", 5_000_000)


def test_a_libvirt_that_passes_nothing_on_is_asked_itself(domain: Domain) -> None:
    domain.passes = False
    assert read_jobs(domain, XML) == []
    domain.told["vdb"] = {"type": 5, "bandwidth": 0, "cur": 7, "end": 9}
    assert read_jobs(domain, XML) == [BlockJob("vdb", "backup", None, 7)]
    put_speed(domain, "vdb", 5_000_000)
    in_bytes = libvirt.VIR_DOMAIN_BLOCK_JOB_SPEED_BANDWIDTH_BYTES
    assert domain.speeds == [("vdb", 5_000_000, in_bytes)]


def test_jobs_that_libvirt_knows_nothing_of_are_only_claimed(domain: Domain) -> None:
    assert [job.known for job in read_jobs(domain, XML)] == [False, False]
    domain.answer = {"return": []}
    assert read_jobs(domain, XML) == []
