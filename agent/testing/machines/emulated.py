"""A booted Debian with a kernel, disk and cgroups of its own: a virtual machine, emulated.

It takes minutes for what a container does in seconds. Only here does a guest have a cgroup with
an io controller, and only this can be rebooted.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from testing.agents import free_port
from testing.lab.cache import cached
from testing.lab.guests.domain import CMDLINE
from testing.machines.host import Host
from testing.machines.root import hypervisor
from testing.machines.ssh import OPTIONS, make_key
from testing.waiting import eventually

_BOOT_S = 600.0
_DISK_BYTES = 6 << 30
_MEMORY_MIB = 2048
# Done in a view of the root of its own: $1 the root, $2 the folder for the results.
_MAKE = """
set -eu
root=$1 out=$2
mkdir "$out/view" && mount -t tmpfs tmpfs "$out/view" && cd "$out/view"
mkdir upper work all
mount -t overlay overlay -o "lowerdir=$root,upperdir=upper,workdir=work" all
echo '/dev/vda / ext4 defaults 0 1' >all/etc/fstab
echo machine >all/etc/hostname
printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >all/etc/systemd/network/machine.network
systemctl --quiet --root=all enable systemd-networkd.service
mkdir -p -m 700 all/root/.ssh
cat >all/root/.ssh/authorized_keys
cp all/boot/vmlinuz-* "$out/vmlinuz"
cp all/boot/initrd.img-* "$out/initrd.img"
truncate --size=$3 "$out/disk.raw"
/usr/sbin/mke2fs -q -t ext4 -d all "$out/disk.raw"
cd / && umount "$out/view/all" "$out/view" && rmdir "$out/view"
"""


class EmulatedMachine(Host):
    """A running machine; use it as a context manager.

    codename: of its Debian. folder: an empty one, for its disk.
    """

    def __init__(self, codename: str, folder: Path) -> None:
        self._image = _image(codename)
        self._key = make_key()
        self._folder = folder
        self.port = free_port()
        # One connection for all commands, because a login takes seconds.
        self._connection = ["-o", f"ControlPath={folder / 'ssh'}"]

    def __enter__(self) -> Self:
        disk = self._folder / "disk.qcow2"
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw",
             "-b", self._image / "disk.raw", disk],
            check=True,
        )  # fmt: skip
        self._qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "qemu-system-x86_64", "-accel", "tcg,thread=multi",
             # of one processor, because with two it now and then hangs while it boots
             "-machine", "q35", "-cpu", "max", "-m", str(_MEMORY_MIB), "-nodefaults",
             "-no-user-config", "-display", "none",
             "-kernel", self._image / "vmlinuz", "-initrd", self._image / "initrd.img",
             "-append", f"root=/dev/vda rw net.ifnames=0 {CMDLINE}",
             "-drive", f"file={disk},format=qcow2,if=virtio,cache=unsafe,discard=unmap",
             "-device", "virtio-rng-pci",
             "-nic", f"user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22",
             "-serial", f"file:{self._folder / 'console'}"],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self.wait_up()
        except Exception as error:
            self.__exit__()
            console = (self._folder / "console").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{error}\n{console}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()
        self._qemu.kill()  # nobody needs its disk any more
        self._qemu.wait()

    def wait_up(self) -> None:
        """Wait until it has booted."""
        eventually(self.is_up, _BOOT_S, what="the machine boots", process=self._qemu)

    def reboot(self) -> None:
        """Reboot it in order, and wait until it is up again."""
        before = self.run("cat", "/proc/sys/kernel/random/boot_id")
        self.status("systemctl", "reboot")
        self._disconnect()

        def is_another_boot() -> bool:
            status, now = self.status("cat", "/proc/sys/kernel/random/boot_id")
            return status == 0 and now != before

        eventually(is_another_boot, _BOOT_S, what="the machine reboots", process=self._qemu)
        self.wait_up()

    def _disconnect(self) -> None:
        command = ["ssh", "-q", *self._connection, "-O", "exit", "root@127.0.0.1"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)

    def status(self, *command: str | Path, input: str | None = None) -> tuple[int, str]:
        words = " ".join("'" + str(word).replace("'", r"'\''") + "'" for word in command)
        options = [word for option in OPTIONS for word in ("-o", option)]
        done = subprocess.run(
            ["ssh", "-q", "-i", self._key, "-p", str(self.port), *options, *self._connection,
             "-o", "ControlMaster=auto", "-o", "ControlPersist=yes",
             "-o", "ConnectTimeout=20", "root@127.0.0.1", f"LC_ALL=C.UTF-8 exec {words} 2>&1"],
            input=input or "", text=True, timeout=900, stdout=subprocess.PIPE,
        )  # fmt: skip
        return done.returncode, done.stdout

    @property
    def ssh_options(self) -> Sequence[str]:
        return ["HostName=127.0.0.1", f"Port={self.port}"]


def _image(codename: str) -> Path:
    """Return a folder with a machine's disk, kernel and initial RAM disk; made at first use."""
    root, public = hypervisor(codename), make_key().with_suffix(".pub").read_bytes()

    def build(folder: Path) -> None:
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _MAKE, "bash"]
        done = subprocess.run(
            [*command, root, folder, str(_DISK_BYTES)], input=public, stderr=subprocess.PIPE
        )
        if done.returncode:
            raise RuntimeError(f"a machine's disk can't be made: {done.stderr.decode()}")

    return cached(f"machine-{codename}", [root.name, _MAKE, str(_DISK_BYTES), public], build)
