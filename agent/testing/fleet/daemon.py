"""A storage daemon with the patches, whose drives hosts of a fleet share."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from testing.waiting import eventually

#: A disk that takes no time, so that only limits hold its drives.
NO_DISK = f"null-co,size={64 << 20},read-zeroes=off"


def start_daemon(
    program: Path, folder: Path, groups: Sequence[str], disk: str = NO_DISK
) -> subprocess.Popen[bytes]:
    """Start a storage daemon with a drive for each throttle group, and monitors for two clients.

    It serves QMP at qmp.sock and watch.sock in a folder, and drives named like the groups at nbd.
    disk: the options of the block node that each drive is on.
    """
    words = [str(program)]
    for name in ("qmp", "watch"):
        path = f"path={folder}/{name}.sock,server=on,wait=off"
        words += ["--chardev", f"socket,id={name},{path}", "--monitor", f"chardev={name}"]
    for group in groups:
        words += [
            *("--object", f"throttle-group,id={group}"),
            *("--blockdev", f"{disk},node-name=n-{group}"),
            *("--blockdev", f"throttle,node-name=t-{group},file=n-{group},throttle-group={group}"),
        ]
    words += ["--nbd-server", f"addr.type=unix,addr.path={folder}/nbd"]
    for group in groups:
        words += ["--export", f"nbd,id=e-{group},node-name=t-{group},name={group},writable=on"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    eventually((folder / "nbd").exists, what=program.name, process=process)
    return process
