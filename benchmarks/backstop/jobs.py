"""A block job beside a guest's requests in a group of cgroup v2, with room or without.

Runs in the guest beside guest.py, whose group it uses. A storage daemon in that group runs the
jobs, and fio does at the limit what the job does to the disk: it reads, or writes beside a commit.
Prints JSON: by job, then "room" or "tight", fio's requests and the job's bytes a second.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.backstop import guest
from iokeel.core.enforce.backstop import CgroupOrder, IoMax, backstop
from iokeel.core.enforce.jobs import BlockJob, follow, room
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.host.block_devices import StoragePaths
from iokeel.host.cgroup.groups import Cgroups

LIMIT, SECONDS = 100, 8
SPEED_BPS = 3_000_000  # four times what the limit's bound lets pass
SOCKET = Path("/root/qmp")
JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "backup": ("blockdev-backup", {"device": "disk", "target": "null", "sync": "full"}),
    "mirror": (
        "blockdev-mirror",
        {"device": "disk", "target": "null", "sync": "full", "buf-size": 1 << 20},
    ),
    "commit": ("block-commit", {"device": "active", "top-node": "snapshot", "base-node": "disk"}),
}
#: What is committed into the disk, and the empty image above it; run.py puts them there.
IMAGES = {"snapshot": "disk", "active": "snapshot"}


class Daemon:
    """A storage daemon in the VM's group, with the disk and a null device of its size.

    images: those above the disk, each with the one beneath it.
    """

    def __init__(self, images: Mapping[str, str]) -> None:
        words = ["qemu-storage-daemon", "--chardev", f"socket,id=q,path={SOCKET},server=on,wait=on",
                 "--monitor", "chardev=q"]  # fmt: skip
        disk = f"driver=host_device,node-name=disk,filename={guest.DISK},cache.direct=on"
        size = 512 * int(Path("/sys/block/vda/size").read_text())
        above = [
            f"driver=qcow2,node-name={name},backing={beneath},file.driver=file"
            f",file.filename=/root/{name}.qcow2"
            for name, beneath in images.items()
        ]
        for node in (disk, f"driver=null-co,node-name=null,size={size}", *above):
            words += ["--blockdev", node]
        self.process = subprocess.Popen(
            words, preexec_fn=lambda: guest.enter(guest.SCOPE / "libvirt")
        )
        while not SOCKET.exists():
            time.sleep(0.05)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(SOCKET))
        self._file = self._socket.makefile("rw")
        self._file.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command."""
        self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._file.flush()
        while "event" in (answer := json.loads(self._file.readline())):
            pass
        return answer["return"]

    def done(self) -> int:
        """Return the bytes that the job has moved."""
        (job,) = self.ask("query-block-jobs")
        return int(job["offset"])


def beside(daemon: Daemon, kind: str) -> tuple[float, float]:
    """Return the rates of requests and of a job, both in the group, while both go on."""
    command, arguments = JOBS[kind]
    way = "write" if kind == "commit" else "read"
    daemon.ask(command, **arguments | {"job-id": "job", "speed": SPEED_BPS})
    fio = subprocess.Popen(
        ["fio", "--name=x", f"--filename={guest.DISK}", f"--rw=rand{way}", "--bs=4k", "--direct=1",
         "--ioengine=libaio", "--iodepth=8", f"--rate_iops={LIMIT}", "--time_based", "--thread",
         f"--runtime={SECONDS}", "--output-format=json"],
        stdout=subprocess.PIPE, preexec_fn=lambda: guest.enter(guest.SCOPE / "libvirt"),
    )  # fmt: skip
    began_s, before = time.monotonic(), daemon.done()
    told = json.loads(fio.communicate()[0])
    rate = (daemon.done() - before) / (time.monotonic() - began_s)
    daemon.ask("block-job-cancel", device="job", force=True)
    while daemon.ask("query-block-jobs"):
        time.sleep(0.05)
    return told["jobs"][0][way]["iops"], rate


def measure() -> dict[str, dict[str, tuple[float, float]]]:
    """Return the rates by job and bounds."""
    qemu = guest.start_guest()
    number = StoragePaths().places(guest.DISK)[-1].number or ""
    tight = backstop(DEFAULT_MODEL, LIMIT, guest.MARGIN)
    job = follow(None, BlockJob("job", "backup", SPEED_BPS, 0), SPEED_BPS, 0)
    more = room([job], guest.MARGIN, 0)
    assert more is not None

    def under(bounds: IoMax, daemon: Daemon, kind: str) -> tuple[float, float]:
        Cgroups(guest.SavedInFile()).apply({"db1": CgroupOrder({number: bounds})}, {"db1": qemu})
        return beside(daemon, kind)

    found = {}
    for kind in JOBS:
        daemon = Daemon(IMAGES if kind == "commit" else {})
        found[kind] = {
            "tight": under(tight, daemon, kind),
            "room": under(tight.wider(more), daemon, kind),
        }
        daemon.process.kill()  # or whoever reads what this prints waits for them
        daemon.process.wait()
        SOCKET.unlink()
    os.kill(qemu.pid, signal.SIGKILL)
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
