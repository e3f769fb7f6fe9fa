"""A host of Proxmox VE, as far as an agent sees it: QEMUs started as qemu-server starts them.

Each has one QMP monitor, at /var/run/qemu-server/VMID.qmp there, which the commands of the host use
by turns (PVE/QMPClient.pm): they connect without waiting, ask at once, and hang up. With a machine
version of 10.0 or later, each drive is below a throttle filter with a group of its own
(PVE/QemuServer/Blockdev.pm), before that its limits are the device's.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from testing.waiting import eventually

QEMU = ("qemu-system-x86_64",)
_USERS = "user:root@pam:1:0:::::\n\npool:acme:for acme:{vmids}:local-lvm:\n"
# QMPClient.pm waits so long for an answer by default.
_ANSWER_S = 5.0


class ProxmoxHost:
    """Its files and its VMs. A context manager: leaving it ends the VMs."""

    def __init__(self, folder: Path, qemu: Sequence[str | Path] = QEMU) -> None:
        self.run, self.configs = folder / "run", folder / "pve/qemu-server"
        for each in (self.run, self.configs):
            each.mkdir(parents=True)
        self._qemu, self._vms = qemu, dict[int, subprocess.Popen[bytes]]()
        self.pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for vmid in [*self._vms]:
            self.end(vmid)

    @property
    def table(self) -> str:
        """The agent's configuration for this host."""
        return (
            f'[[discover]]\nsockets = "{self.run}/*.qmp"\nformat = "proxmox"\n'
            f'facts = "{self.configs}/{{name}}.conf"\n'
        )

    def pool(self, *vmids: int) -> None:
        """Have these VMs in the pool acme, and no others."""
        text = _USERS.format(vmids=",".join(map(str, vmids)))
        (self.configs.parent / "user.cfg").write_text(text)

    def monitor(self, vmid: int) -> Path:
        """Return the monitor of a VM."""
        return self.run / f"{vmid}.qmp"

    def configure(self, vmid: int, **settings: str) -> Path:
        """Write a VM's configuration, with what it was in a snapshot. Return the file."""
        lines = [f"{key}: {value}" for key, value in settings.items()]
        snapshot = ["[before]", "scsi0: local-lvm:vm-1-disk-9,iops=9", "tags: old"]
        file = self.configs / f"{vmid}.conf"
        new = file.with_suffix(".tmp")
        new.write_text("\n".join(["#a note", *lines, "", *snapshot, ""]))
        new.chmod(0o640)
        new.rename(file)
        return file

    def start(
        self, vmid: int, *options: str, limits: dict[str, int] | None = None, old: bool = False
    ) -> None:
        """Start a VM with a disk and a CD-ROM drive, as its file would have it.

        options: more of QEMU's own. limits: of the disk, by QAPI's names. old: with a machine
        version before 10.0.
        """
        monitor, disk = self.monitor(vmid), self.run / f"{vmid}.raw"
        for image in (disk, cd := self.run / f"{vmid}.iso"):
            image.write_bytes(bytes(1 << 20))
        words = [
            *("-name", f"vm{vmid},debug-threads=on", "-no-shutdown", *options),
            *("-chardev", f"socket,id=qmp,path={monitor},server=on,wait=off"),
            *("-mon", "chardev=qmp,mode=control"),
            *("-M", "q35,accel=tcg", "-nodefaults", "-display", "none", "-S", "-m", "32"),
            *("-device", "virtio-scsi-pci,id=virtioscsi0"),
            *("-drive", f"file={cd},if=none,id=drive-ide2,media=cdrom,format=raw"),
            *("-device", "ide-cd,bus=ide.1,unit=0,drive=drive-ide2,id=ide2"),
        ]
        device = "scsi-hd,bus=virtioscsi0.0,channel=0,scsi-id=0,lun=0,drive=drive-scsi0,id=scsi0"
        if old:
            throttling = "".join(
                f",throttling.{key}={value}" for key, value in (limits or {}).items()
            )
            drive = f"file={disk},if=none,id=drive-scsi0,format=raw{throttling}"
            words += ["-drive", drive, "-device", device]
        else:
            group = {"id": "throttle-drive-scsi0", "limits": limits or {}}
            file = {"driver": "file", "filename": str(disk), "node-name": "e1"}
            node = {
                "driver": "throttle",
                "node-name": "drive-scsi0",
                "throttle-group": "throttle-drive-scsi0",
                "file": {"driver": "raw", "file": file, "node-name": "f1"},
            }
            words += ["-object", json.dumps({"qom-type": "throttle-group", **group})]
            words += ["-blockdev", json.dumps(node), "-device", device]
        self._vms[vmid] = subprocess.Popen([*self._qemu, *words])
        eventually(monitor.exists, what=f"VM {vmid} serves QMP", process=self._vms[vmid])

    def process(self, vmid: int) -> subprocess.Popen[bytes]:
        """Return the QEMU of a VM."""
        return self._vms[vmid]

    def end(self, vmid: int) -> None:
        """End a VM, and remove its socket as qemu-server does."""
        process = self._vms.pop(vmid)
        process.kill()
        process.wait()
        self.monitor(vmid).unlink(missing_ok=True)


class Owner:
    """A client of a monitor's own, as `qm` is one: a connection for each question.

    waits_s: for the greeting, since it connected. refused: what went wrong.
    """

    def __init__(self, monitor: Path) -> None:
        self.monitor = monitor
        self.waits_s: list[float] = []
        self.refused: list[str] = []
        self._ended = threading.Event()

    def ask(self, command: str, hold_s: float = 0.0, **arguments: object) -> Any:
        """Return the answer to a command. hold_s: how long to stay after it. Raises OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)  # so a full queue refuses at once
            began = time.monotonic()
            connection.connect(str(self.monitor))
            connection.settimeout(_ANSWER_S)
            with connection.makefile("rwb") as file:
                file.readline()
                self.waits_s.append(time.monotonic() - began)
                for each, its in (("qmp_capabilities", {}), (command, arguments)):
                    file.write(json.dumps({"execute": each, "arguments": its}).encode() + b"\n")
                    file.flush()
                    while "event" in (reply := json.loads(file.readline())):
                        pass
                self._ended.wait(hold_s)
        return reply["return"]

    def iops(self) -> int:
        """Return the limit of scsi0 that its QEMU has."""
        path = "/objects/throttle-drive-scsi0"
        return int(self.ask("qom-get", path=path, property="limits")["iops-total"])

    def every(self, pause_s: float) -> threading.Thread:
        """Ask again and again in a thread, until `end`."""

        def ask() -> None:
            while not self._ended.wait(pause_s):
                try:
                    self.ask("query-status")
                except (OSError, ValueError) as error:
                    self.refused.append(repr(error))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def end(self, thread: threading.Thread) -> None:
        """End what `every` began."""
        self._ended.set()
        thread.join()
