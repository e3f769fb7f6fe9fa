"""libvirt in a container: its paths are others than the host's, and the agent runs outside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import Agent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


def test_a_drive_is_on_the_storage_that_its_qemu_sees(host: Host, tmp_path: Path) -> None:
    """Its path is there outside, too, but on another storage."""
    volume = host.dir / "volume"
    volume.mkdir()
    disk = make_disk(volume / "vm.raw", 8)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        shutil.copy(disk, folder)
        host.run(["mkdir", "/run/images"])  # of the container's own
        for point in (volume, "/run/images"):
            host.run(["mount", "--bind", folder, point])
        wanted = policy('target="vda" limit="500"', 'target="vdb" limit="500"')
        drives = [DiskSpec("vda", disk), DiskSpec("vdb", Path("/run/images/other.raw"))]
        shutil.copy(disk, Path(folder, "other.raw"))
        with (
            Vm.boot(host, "db1", drives, policy=wanted, ready=False),
            Agent(tmp_path, libvirt=f'uri = "{host.uri}"') as agent,
        ):
            for target in ("vda", "vdb"):
                eventually(lambda: agent.drive("db1", target)["storage"] == "/dev/shm")  # noqa: B023
                assert agent.drive("db1", target)["limit_iops"] == 500
