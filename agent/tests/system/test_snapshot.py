"""A snapshot with a running guest's memory, as libvirtd tells of it meanwhile."""

import subprocess
import threading

import libvirt

from iokeel.hypervisors.libvirt.readings import read_all
from testing.lab.guests.domain import DiskSpec
from testing.lab.guests.vm import Vm
from testing.lab.host import Host


def test_a_guest_is_seen_to_write_its_memory_while_a_snapshot_is_taken(host: Host) -> None:
    image = host.dir / "a.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "64M"], check=True)
    drives = [DiskSpec("vda", image, format="qcow2")]
    with Vm.boot(host, "db1", drives, ready=False) as vm:
        connection = libvirt.open(host.uri)
        snapshot = threading.Thread(target=host.virsh, args=("snapshot-create-as", "db1", "s1"))
        snapshot.start()
        seen = []
        while snapshot.is_alive():
            seen.append(read_all(connection, None, {})["db1"].is_saving)
        assert any(seen)
        assert host.virsh("snapshot-list", "db1", "--name").split() == ["s1"]
        assert vm.running()
        assert not read_all(connection, None, {})["db1"].is_saving
        connection.close()
