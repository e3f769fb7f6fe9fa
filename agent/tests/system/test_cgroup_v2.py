"""The backstop in a kernel with cgroup v2: Debian's, in a guest that this test boots."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import iokeel
from lab.domain import DiskSpec, domain_xml, make_disk
from lab.guest import PYTHON, image
from lab.host import Host
from lab.vm import Vm

pytestmark = pytest.mark.timeout(600)

STORAGE_DAEMON = shutil.which("qemu-storage-daemon")
SCRIPT = Path(__file__).with_name("cgroup_in_guest.py")
UNSET = {"io.max": "", "io.weight": "default 100", "io.bfq.weight": "default 100"}


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    """What the guest says came of it."""
    if STORAGE_DAEMON is None or not PYTHON.exists():
        pytest.skip("qemu-storage-daemon or Debian's python3 is not there")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(Path(iokeel.__file__).parent, "iokeel", filter=_source)
        archive.add(SCRIPT, "main.py")
    made = image((PYTHON, Path(STORAGE_DAEMON)), ("bfq",))
    with Host.bookworm() as host:
        host.start_libvirtd()
        disk = DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))
        vm = Vm(host, "v2")
        vm.define(domain_xml("v2", [disk], image=made, folder=host.dir, memory_mib=768))
        vm.start(120)
        with vm:
            vm.write("/root/packed.tar", packed.getvalue())
            vm.exec("cd /root && tar -xf packed.tar && modprobe bfq")
            ran = vm.exec("cd /root && python3 main.py 2>log || { cat log >&2; false; }", 300)
            print(vm.read("/root/log").decode(), ran.stdout.decode())
            yield json.loads(ran.stdout)


def _source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info


def test_the_disk_and_the_group_are_found(told: dict[str, Any]) -> None:
    name, number = told["disk"]
    assert name == "vda"
    assert told["before"] == UNSET
    limits = " ".join(f"{bound}={value}" for bound, value in told["limits"].items())
    assert told["set"]["io.max"] == f"{number} {limits}"


@pytest.mark.parametrize(
    ("traffic", "counter", "bound"),
    [
        ("reads", "rios", "riops"),
        ("writes", "wios", "wiops"),
        ("large reads", "rbytes", "rbps"),
        ("large writes", "wbytes", "wbps"),
    ],
)
def test_io_that_bypasses_the_throttle_is_held_to_its_bound(
    told: dict[str, Any], traffic: str, counter: str, bound: str
) -> None:
    held = told["limits"][bound]
    assert 0.95 * held <= told[traffic][counter] <= 1.03 * held


def test_it_is_the_bound_that_holds_and_not_the_disk(told: dict[str, Any]) -> None:
    assert told["free"]["rios"] > 2 * told["limits"]["riops"]


def test_traffic_within_the_share_is_not_cut(told: dict[str, Any]) -> None:
    # 400 reads of 4K a second cost 400.
    assert told["within"]["rios"] == pytest.approx(400, rel=0.03)


def test_what_was_there_is_put_back_after_a_crash_too(told: dict[str, Any]) -> None:
    assert told["restored"] == UNSET


def test_somebody_elses_tighter_bound_stays(told: dict[str, Any]) -> None:
    number, limits = told["disk"][1], told["limits"]
    assert told["set over another's"]["io.max"] == (
        f"{number} rbps={limits['rbps']} wbps={limits['wbps']} riops=123 wiops={limits['wiops']}"
    )
    assert told["another's restored"]["io.max"] == (
        f"{number} rbps=max wbps=max riops=123 wiops=100000"
    )


def test_weights_are_set_for_what_goes_by_them_and_put_back(told: dict[str, Any]) -> None:
    weights = [told[at] | {"io.max": ""} for at in ("set", "bfq", "iocost")]
    assert weights == [
        UNSET,
        UNSET | {"io.bfq.weight": "default 300"},
        UNSET | {"io.weight": "default 300"},
    ]
    assert told["bfq restored"] == told["iocost restored"] == UNSET


def test_a_guest_that_ends_leaves_nothing(told: dict[str, Any]) -> None:
    assert told["errors"] == {}
    assert told["saved"] == {}
