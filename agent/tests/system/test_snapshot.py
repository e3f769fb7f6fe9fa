"""A guest whose memory is written or read, as libvirtd tells of it meanwhile."""

import subprocess
import threading

import libvirt

from iokeel.hypervisors.libvirt.readings import read_all
from testing.lab.guests.domain import DiskSpec
from testing.lab.guests.vm import Vm
from testing.lab.host import Host


def seen_while(host: Host, *words: str) -> list[bool]:
    """Return whether db1 was seen to write or read its memory, again and again during a command."""
    connection = libvirt.open(host.uri)
    command = threading.Thread(target=host.virsh, args=words)
    command.start()
    seen = []
    while command.is_alive():
        if (reading := read_all(connection, None, {}).get("db1")) is not None:
            seen.append(reading.is_saving)
    assert not any(one.is_saving for one in read_all(connection, None, {}).values())
    connection.close()
    return seen


def test_a_guest_is_seen_to_write_and_to_read_its_memory(host: Host) -> None:
    image = host.dir / "a.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "64M"], check=True)
    drives = [DiskSpec("vda", image, format="qcow2")]
    with Vm.boot(host, "db1", drives, ready=False) as vm:
        assert any(seen_while(host, "snapshot-create-as", "db1", "s1"))
        assert host.virsh("snapshot-list", "db1", "--name").split() == ["s1"]
        assert vm.running()
        assert any(seen_while(host, "save", "db1", str(host.dir / "memory")))
        assert any(seen_while(host, "restore", str(host.dir / "memory")))
        assert vm.running()
