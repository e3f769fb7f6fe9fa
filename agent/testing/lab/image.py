"""The guest that every lab domain boots: Debian's cloud kernel and a small initramfs.

The initramfs holds busybox, fio with its libraries, and the QEMU guest agent, through which
the host runs commands. It needs no disk, so that every disk of the domain is there to measure.
"""

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testing.lab import apt
from testing.lab.cache import cached
from testing.lab.stubs import libraries, stubs

SOURCES = Path(__file__).parent / "initramfs"
STUBS = Path(__file__).parent / "stubs.py"
AGENT_PORT = "iokeel.lab"
"""Name of the guest agent's virtio-serial port. Not org.qemu.guest_agent.0: libvirtd would hold
that socket itself, but the lab has to reach its guests while libvirtd is down."""

MODULES = ("virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "ata_piix",
           "virtio_console", "button", "evdev")  # fmt: skip
FIO = Path("/usr/bin/fio")
_FIO_CALLS = ("libaio", "libc", "libm", "libnuma", "libz")
BUSYBOX = Path("/bin/busybox")
PYTHON = Path("/usr/bin/python3")


@dataclass(frozen=True)
class Image:
    """Files that a domain boots directly."""

    kernel: Path
    initramfs: Path


@functools.cache
def image(programs: tuple[Path, ...] = (), modules: tuple[str, ...] = ()) -> Image:
    """Return the guest's kernel and initramfs, made at first use (6 s, 27 MB fetched).

    programs: more programs of this machine to copy; Debian's python3 comes with its standard
        library. modules: more kernel modules to copy; nothing loads them.
    """
    newest, agent = apt.candidates("linux-image-cloud-amd64", "qemu-guest-agent")
    (kernel,) = apt.candidates(newest.depends.split()[0])  # linux-image-6.1.0-56-cloud-amd64
    made_from: list[str | bytes] = [
        kernel.sha256, agent.sha256, *apt.installed_versions("fio", "busybox-static"),
        *(p.read_bytes() for p in (Path(__file__), STUBS, *sorted(SOURCES.iterdir()))),
        *map(_made, programs), *modules,
    ]  # fmt: skip

    def build(folder: Path) -> None:
        unpacked = folder / "unpacked"
        unpacked.mkdir()
        kernel.unpack(unpacked)
        agent.unpack(unpacked)
        (vmlinuz,) = (unpacked / "boot").glob("vmlinuz-*")
        vmlinuz.rename(folder / "vmlinuz")
        root = folder / "root"
        _fill(root, unpacked, programs, modules)
        _pack(root, folder / "initramfs")
        shutil.rmtree(unpacked)
        shutil.rmtree(root)

    folder = cached("guest", made_from, build)
    return Image(folder / "vmlinuz", folder / "initramfs")


def _made(program: Path) -> str:
    status = program.stat()
    return f"{program} {status.st_size} {status.st_mtime_ns}"


def _fill(root: Path, unpacked: Path, programs: tuple[Path, ...], modules: tuple[str, ...]) -> None:
    for name in ("bin", "sbin", "usr/bin", "usr/sbin", "etc/acpi/PWRF", "root",
                 "proc", "sys", "dev", "run", "tmp"):  # fmt: skip
        (root / name).mkdir(parents=True)
    shutil.copy2(BUSYBOX, root / "bin/busybox")
    for applet in _output(str(BUSYBOX), "--list").split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    shutil.copy2(SOURCES / "init", root / "init")
    shutil.copy2(SOURCES / "shutdown", root / "sbin/shutdown")
    (root / "etc/acpi/PWRF/00000080").symlink_to("/sbin/shutdown")
    (root / "etc/modules").write_text("\n".join(MODULES) + "\n")
    shutil.copy2(FIO, root / "usr/bin/fio")
    shutil.copy2(unpacked / "usr/sbin/qemu-ga", root / "usr/sbin/qemu-ga")
    for program in programs:
        shutil.copy2(program, root / "usr/bin")
    python = _standard_library(root) if PYTHON in programs else []
    unused = root / "usr/lib"  # where the loader looks last
    unused.mkdir(exist_ok=True)
    stubs(FIO, _FIO_CALLS, unused)
    needed = libraries(FIO, first=unused)
    for library in needed | libraries(root / "usr/sbin/qemu-ga", *programs, *python):
        if library.parent == unused:
            continue
        to = root / library.relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, to)
    _copy_modules(root, unpacked, modules)


def _standard_library(root: Path) -> list[Path]:
    """Copy Python's modules, and return those that need libraries."""
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    folder = Path(_output(str(PYTHON), "-c", ask).strip())
    unused = shutil.ignore_patterns("test", "dist-packages", "idlelib", "tkinter", "config-*")
    shutil.copytree(folder, root / folder.relative_to("/"), ignore=unused)
    return [*(folder / "lib-dynload").glob("*.so")]


def _copy_modules(root: Path, unpacked: Path, more: tuple[str, ...]) -> None:
    (folder,) = (unpacked / "lib/modules").iterdir()
    _depmod(unpacked, folder.name)
    needs = dict(line.split(":", 1) for line in (folder / "modules.dep").read_text().splitlines())
    paths = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    names = (*MODULES, *more)
    wanted = [paths[name] for name in names if name in paths]  # the others are built in
    kept = {path for module in wanted for path in (module, *needs[module].split())}
    target = root / folder.relative_to(unpacked)
    for path in kept:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / path, target / path)
    _depmod(root, folder.name)


def _depmod(root: Path, version: str) -> None:
    # The guest's modprobe is busybox's too, and reads what it wrote itself.
    subprocess.run([str(BUSYBOX), "depmod", "-b", str(root), version], check=True)


def _pack(root: Path, initramfs: Path) -> None:
    # Not compressed: QEMU reads it from the page cache at once; an emulated CPU unpacks slowly.
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    with initramfs.open("wb") as out:
        subprocess.run(
            ["cpio", "--quiet", "--null", "--create", "--format=newc", "--owner=0:0"],
            cwd=root, input="\0".join([".", *names, ""]).encode(), stdout=out, check=True,
        )  # fmt: skip


def _output(*argv: str) -> str:
    environ = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout
