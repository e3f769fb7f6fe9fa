"""What the agent sees of VMs that have one name, and of storages that a scheduler shares out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.observation import DriveSeen
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.storage import Place, StorageCounters
from iokeel.host.disk_counters import DiskStats
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.running.observer import Observer
from iokeel.running.storages import DriveStorages
from testing.host.cgroups import Host

SDB = "8:16"


@pytest.mark.parametrize(
    ("scheduler", "vms", "expected"),
    [
        ("none [bfq]", {"db1": True, "web1": True}, True),
        ("none [bfq]", {"db1": True, "web1": False}, False),
        ("none [bfq]", {"db1": True}, None),  # web1 has just come
        ("none [bfq]", {}, None),
        ("none [bfq]", None, False),  # the agent sets no cgroups
        ("[none] bfq", {"db1": True, "web1": True}, False),
        ("[none] bfq", {}, False),
        (None, {"db1": True, "web1": True}, None),
    ],
)
def test_a_hard_disk_is_weighted_if_all_vms_with_a_policy_there_have_their_weights(
    tmp_path: Path, scheduler: str | None, vms: Mapping[str, bool] | None, expected: bool | None
) -> None:
    host = Host(tmp_path)
    if scheduler is not None:
        host.device(SDB, scheduler)
        (host.sys / "dev/block" / SDB / "queue/rotational").write_text("1\n")
    storages = DriveStorages({})
    storages.devices = {"sdb": Place("sdb", SDB)}
    observer = Observer([], storages, _sys=host.sys)
    drives = {
        DriveId("db1", "vda"): DriveSeen(DrivePolicy(), None, None, storage="sdb"),
        DriveId("web1", "vda"): DriveSeen(DrivePolicy(), None, None, storage="sdb"),
        DriveId("free", "vda"): DriveSeen(None, None, None, storage="sdb"),
        DriveId("other", "vda"): DriveSeen(DrivePolicy(), None, None, storage="sdc"),
    }
    seen = observer.storages_of(drives, {}, vms)
    assert seen["sdb"].weighted is expected
    assert not seen["sdc"].weighted


def test_writes_are_added_up_by_storage_over_guests_that_come_start_anew_and_go(
    tmp_path: Path,
) -> None:
    told: list[dict[str, int]] = []

    class Stats(DiskStats):
        def read(
            self, devices: Mapping[str, Place], writes: Mapping[str, int] | None = None
        ) -> dict[str, StorageCounters]:
            told.append(dict(writes or {}))
            return {}

    observer = Observer([], DriveStorages({}), _disk_stats=Stats(tmp_path))
    readings = (
        {"db1": 1000, "web1": 50},
        {"db1": 1007, "web1": 50, "new": 9000},
        {"db1": None, "web1": 52, "new": 9001},
        {"db1": 1009, "new": 3},  # another QEMU
        {"db1": 1009, "web1": 60, "new": 4},
    )
    for reading in readings:
        counts = {
            name: None if n is None else Counters(0, 5, 5, n, 5, None, None)
            for name, n in reading.items()
        }
        drives = {
            DriveId(name, "vda"): DriveSeen(None, count, None, storage="sdb")
            for name, count in counts.items()
        }
        observer.storages_of(drives, {}, None)
    assert [each.get("sdb", 0) for each in told] == [0, 7, 10, 12, 13]


class Source(QmpSource):
    """A source of some VMs, each with some drives that have a counter."""

    def __init__(self, reads: int, vms: Mapping[str, Collection[str]]) -> None:
        super().__init__([])
        self._reads = reads
        self._known = {
            name: VmInfo(name, {target: DriveInfo(target) for target in targets})
            for name, targets in vms.items()
        }

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        return {
            DriveId(name, target): Counters(0, self._reads, 0, 0, 0, None, None)
            for name, vm in self._known.items()
            for target in vm.drives
        }


def test_a_vm_has_restarted_if_it_has_another_qemu_than_at_the_last_look() -> None:
    source = Source(1, {"db1": ["vda"], "web1": ["vda"]})
    observer = Observer([source], DriveStorages({}))

    def runs(**pids: int | None) -> None:
        for name, pid in pids.items():
            process = None if pid is None else Process(pid, 70)
            source._known[name] = replace(source._known[name], process=process)

    runs(db1=7, web1=8)
    assert [*observer.restarted(None)] == []
    runs(db1=9, web1=None)  # web1's isn't found now
    assert [*observer.restarted(["web1"])] == []
    assert [*observer.restarted(["db1"])] == ["db1"]
    runs(web1=11)
    assert [*observer.restarted(None)] == [], "it may have had orders since"
    runs(web1=8)
    assert [*observer.restarted(None)] == ["web1"]
    web1 = source._known.pop("web1")
    assert [*observer.restarted(["web1"])] == []
    source._known["web1"] = replace(web1, process=Process(10, 70))
    assert [*observer.restarted(["web1"])] == ["web1"]
    del source._known["web1"]
    assert [*observer.restarted(None)] == []
    assert observer.processes.keys() == {"db1"}


def test_a_guest_is_seen_to_boot_once_and_only_in_a_qemu_younger_than_the_agent() -> None:
    source = Source(1, {"db1": ["vda"], "old": ["vda"], "came": ["vda"]})
    observer = Observer([source], DriveStorages({}), since=Process(50, 70))

    def runs(name: str, started: int, *, booted: bool = True) -> None:
        vm, process = source._known[name], Process(started, started)
        source._known[name] = replace(vm, process=process, booted=booted)

    runs("db1", 71)
    runs("old", 70)
    runs("came", 72, booted=False)  # by a migration, or a restore
    assert [*observer.booted(["old"])] == []
    assert [*observer.booted(None)] == ["db1"]
    assert [*observer.booted(None)] == []
    runs("db1", 80)
    assert [*observer.booted(["came"])] == []
    assert [*observer.booted(["db1"])] == ["db1"]


def test_a_name_has_passed_to_another_vm_if_that_has_another_uuid() -> None:
    source = Source(1, {"db1": ["vda"], "web1": ["vda"]})
    observer = Observer([source], DriveStorages({}), uuids={"db1": "A", "web1": "B", "gone": "C"})

    def has(name: str, uuid: str | None) -> None:
        source._known[name] = replace(source._known[name], uuid=uuid)

    assert [*observer.others(None)] == [], "nothing says that they are others"
    has("db1", "B")
    has("web1", "B")
    assert [*observer.others(["web1"])] == []
    assert [*observer.others(None)] == ["db1"]
    assert [*observer.others(None)] == []
    observer.restarted(None)
    assert observer.uuids == {"db1": "B", "web1": "B"}


def test_a_name_has_passed_to_another_vm_if_it_was_libvirts_and_is_a_configured_one_now() -> None:
    source = Source(1, {"db1": ["vda"]})
    observer = Observer([source], DriveStorages({}), uuids={"db1": "A"})
    source._known["db1"] = replace(source._known["db1"], from_libvirt=False)
    assert [*observer.others(None)] == ["db1"]
    assert [*observer.others(None)] == []
    source._known["db1"] = replace(source._known["db1"], from_libvirt=True, uuid="A")
    assert [*observer.others(None)] == ["db1"]


async def test_of_two_vms_with_one_name_only_the_first_sources_is_seen() -> None:
    first = Source(1, {"db1": ["vda"]})
    second = Source(2, {"db1": ["vda", "vdb"], "web1": ["vda"]})
    observer = Observer([first, second], DriveStorages({}))
    assert observer.namesakes() == {"db1"}
    assert observer.source_of("db1") is first
    assert [*observer.vms()["db1"].drives] == ["vda"]
    reads = {drive: c.read_requests for drive, c in (await observer.sample(None, 1.0)).items()}
    assert reads == {DriveId("db1", "vda"): 1, DriveId("web1", "vda"): 2}


def test_a_drive_without_a_medium_is_not_gone() -> None:
    source = Source(1, {"db1": ["vda"]})
    source._known["db1"] = replace(source._known["db1"], empty=frozenset({"cd0"}))
    observer = Observer([source], DriveStorages({}))
    known = {DriveId("db1", target): None for target in ("vda", "cd0", "sda")}
    assert observer.unread(known, [DriveId("db1", "vda")]) == [DriveId("db1", "cd0")]
