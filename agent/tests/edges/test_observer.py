"""What the agent sees of storages that a scheduler shares out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from iokeel.core.counters import DriveId
from iokeel.core.observation import DriveSeen
from iokeel.core.policy import DrivePolicy
from iokeel.core.storage import Place
from iokeel.drive_storages import DriveStorages
from iokeel.observer import Observer
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
