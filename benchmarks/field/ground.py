"""The storage of a host: a loop device with partitions, a filesystem on one, or exports over NBD.

All of it is on one loop device over memory, so that the kernel's counters of that device say how
loaded the storage is, whatever the agent can see of it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.field.draw import DISK_MIB, Drive, FieldHost
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.host import Host
from testing.waiting import eventually

_SPARE_MIB = 256  # of a filesystem, for overlays and its own data


@dataclass(frozen=True)
class Ground:
    """The storage that all drives of a host are on.

    device: the loop device. folder: where its images are, as the host sees it; None if drives are
    no files. disks: of the guests, by name. table: the agent's configuration of it.
    """

    device: Path
    folder: Path | None
    disks: dict[str, DiskSpec]
    table: str

    @property
    def number(self) -> str:
        """The device's MAJOR:MINOR."""
        return (Path("/sys/class/block") / self.device.name / "dev").read_text().strip()


@contextmanager
def ground(host: Host, drawn: FieldHost, memory: Path) -> Iterator[Ground]:
    """Make the storage that was drawn. memory: a folder for the loop device's file."""
    drives = drawn.drives
    size_mib = len(drives) * DISK_MIB + 8
    if drawn.storage == "files":
        size_mib += len(drives) * DISK_MIB + _SPARE_MIB
    master = make_disk(memory / "master.raw", DISK_MIB)
    with _loop(memory / "storage.img", size_mib) as device:
        if drawn.storage == "files":
            folder = host.dir / "images"
            folder.mkdir()
            subprocess.run(["mkfs.ext4", "-q", device], check=True)
            host.run(["mount", device, folder])
            try:
                images = {drive.name: _image(host, folder, master, drive) for drive in drives}
                yield _ground(drawn, device, folder, images)
            finally:
                host.run(["umount", "--lazy", folder], check=False)
            return
        parts = _partitions(device, len(drives))
        for part in parts:
            subprocess.run(["dd", f"if={master}", f"of={part}", "bs=1M", "status=none"], check=True)
        names = [drive.name for drive in drives]
        if drawn.storage == "partitions":
            yield _ground(drawn, device, None, dict(zip(names, parts, strict=True)))
            return
        with _nbd(host, names, parts) as socket:
            yield _ground(drawn, device, None, dict.fromkeys(names, socket))


def _ground(drawn: FieldHost, device: Path, folder: Path | None, images: dict[str, Path]) -> Ground:
    over_nbd = drawn.storage == "nbd"
    disks = {
        drive.name: DiskSpec(
            drive.target, images[drive.name], cache=drive.cache, io=drive.io, discard=True,
            format="raw" if drive.format == "raw" else "qcow2",
            export=drive.name if over_nbd else None,
            iothreads=range(1, drive.iothreads + 1),
        )
        for drive in drawn.drives
    }  # fmt: skip
    table = ""
    if drawn.capacity is not None:
        place = f'source = "nbd:unix:{images["a"]}"' if over_nbd else f'device = "{device}"'
        table = f"[storage.ground]\n{place}\ncapacity = {drawn.capacity}\n"
        if drawn.latency_target_ms is not None:
            table += f"latency_target_ms = {drawn.latency_target_ms}\n"
    return Ground(device, folder, disks, table)


@contextmanager
def _loop(file: Path, size_mib: int) -> Iterator[Path]:
    with file.open("wb") as disk:
        disk.truncate(size_mib << 20)
    words: list[str | Path] = ["losetup", "--find", "--show", "--partscan", "--direct-io=off", file]
    device = Path(subprocess.check_output(words, text=True).strip())
    handle = os.open(device, os.O_RDONLY)  # the device goes with the last who uses it
    try:
        subprocess.run(["losetup", "--detach", device], check=True)
        yield device
    finally:
        os.close(handle)


def _partitions(device: Path, count: int) -> Sequence[Path]:
    """Tell the kernel of partitions, which needs no table on the device."""
    for number in range(count):
        start, sectors = (DISK_MIB * number + 1) << 11, DISK_MIB << 11
        words: list[str | Path] = ["addpart", device]
        subprocess.run([*words, str(number + 1), str(start), str(sectors)], check=True)
    parts = [device.with_name(f"{device.name}p{number + 1}") for number in range(count)]
    for part in parts:
        eventually(part.is_block_device)
    return parts


def _image(host: Host, folder: Path, master: Path, drive: Drive) -> Path:
    image = folder / f"{drive.name}.{drive.format}"
    if drive.format == "raw":
        host.run(["cp", "--sparse=never", master, image])
    elif drive.format == "qcow2":
        host.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-S", "0", master, image])
    else:
        base = folder / "base.raw"  # as cloud images have it: one for all
        host.run(["cp", "--sparse=never", "--update", master, base])
        options: list[str | Path] = ["-q", "-f", "qcow2", "-F", "raw", "-b", base, image]
        host.run(["qemu-img", "create", *options])
    return image


@contextmanager
def _nbd(host: Host, names: Sequence[str], parts: Sequence[Path]) -> Iterator[Path]:
    socket = host.dir / "storage.sock"
    words: list[str | Path] = ["qemu-storage-daemon"]
    for name, part in zip(names, parts, strict=True):
        node = f"driver=host_device,node-name={name},filename={part},aio=native"
        words += ["--blockdev", f"{node},cache.direct=on,discard=unmap"]
    words += ["--nbd-server", f"addr.type=unix,addr.path={socket},max-connections=0"]
    for name in names:
        words += ["--export", f"nbd,id=e-{name},node-name={name},name={name},writable=on"]
    daemon = host.popen(words)
    try:
        eventually(socket.exists, process=daemon)
        yield socket
    finally:
        daemon.kill()
        daemon.wait()
