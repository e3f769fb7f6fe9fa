"""The storages of libvirt's drives: a file, a pool's volume, a network disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.host.block_devices import StoragePaths
from iokeel.hypervisors.libvirt.source import RESYNC_S
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(600)

POOL = "<pool type='dir'><name>images</name><target><path>{}</path></target></pool>"
DISK = "<disk type='{}' device='disk'><driver name='qemu' type='raw'/>{}<target dev='{}'/></disk>"
FIND = "from iokeel.host.process import guest; print(*(guest('{}') or ['nothing']))"


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    """A guest with a policy for all its drives, now and later."""
    drives = [DiskSpec("vda", make_disk(host.dir / "vda.raw", 8))]
    with Vm.boot(host, "st1", drives, policy=policy(class_="silver")) as vm:
        yield vm


def storage(agent: HostAgent, target: str) -> str | None:
    found: str | None = agent.drive("st1", target)["storage"]
    return found


def on(path: Path) -> str:
    """Return the storage of a path, seen from outside the host."""
    return StoragePaths().places(str(path))[-1].name


def attach(host: Host, kind: str, source: str, target: str) -> None:
    disk = DISK.format(kind, source, target)
    host.virsh("attach-device", "st1", "/dev/stdin", "--live", input=disk)


def test_a_file_is_on_the_hosts_disk(host: Host, guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: storage(agent, "vda"))
    assert storage(agent, "vda") == on(host.dir / "vda.raw")


def test_a_volume_is_what_its_pool_says(host: Host, guest: Vm, agent: HostAgent) -> None:
    (host.dir / "pool").mkdir()
    host.virsh("pool-create", "/dev/stdin", input=POOL.format(host.dir / "pool"))
    host.virsh("vol-create-as", "images", "v.raw", "8M", "--format", "raw")
    attach(host, "volume", "<source pool='images' volume='v.raw'/>", "vdb")
    eventually(lambda: storage(agent, "vdb") == on(host.dir / "pool/v.raw"))


def test_a_network_disk_is_on_its_server(host: Host, guest: Vm, agent: HostAgent) -> None:
    image, socket = make_disk(host.dir / "nbd.raw", 8), host.dir / "nbd.sock"
    server = host.popen(
        ["qemu-nbd", f"--socket={socket}", "--persistent", "--format=raw", "-x", "e", image]
    )
    try:
        eventually(socket.is_socket)
        host_tag = f"<host transport='unix' socket='{socket}'/>"
        attach(host, "network", f"<source protocol='nbd' name='e'>{host_tag}</source>", "vdc")
        eventually(lambda: storage(agent, "vdc") == f"nbd:unix:{socket}")
    finally:
        guest.detach("vdc")
        server.terminate()
        server.wait()


def test_a_disk_that_a_block_job_moves_is_on_its_new_storage(
    host: Host, guest: Vm, agent: HostAgent
) -> None:
    attach(host, "file", f"<source file='{make_disk(host.dir / 'here.raw', 8)}'/>", "vdd")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        there = Path(folder, "there.raw")
        try:
            eventually(lambda: storage(agent, "vdd") == on(host.dir / "here.raw"))
            job = ("--wait", "--pivot", "--transient-job", "--format=raw")
            host.virsh("blockcopy", "st1", "vdd", f"--dest={there}", *job)
            # By the event: the agent reads all domains again only later.
            eventually(lambda: storage(agent, "vdd") == "/dev/shm", RESYNC_S / 2)
        finally:
            guest.detach("vdd")


def test_a_guests_process_is_found_by_the_pid_file_that_libvirt_writes(
    host: Host, guest: Vm
) -> None:
    python = Path(host.iokeel[0]).with_name("python")

    def found(name: str) -> list[str]:
        return host.run([python, "-c", FIND.format(name)]).stdout.split()

    pid, started = found("st1")
    status = host.run(["cat", f"/proc/{pid}/stat", f"/proc/{pid}/comm"]).stdout
    assert "qemu" in status.splitlines()[1]
    assert started == status.rpartition(")")[2].split()[19]
    assert found("another") == ["nothing"]
    assert host.run(["cat", "/run/libvirt/qemu/st1.pid"]).stdout.strip() == pid
