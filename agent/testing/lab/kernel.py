"""Linux from Debian's source, with io.latency, which Debian's own kernels leave out."""

import os
import shutil
import subprocess
from pathlib import Path

from testing.lab import apt
from testing.lab.cache import cached

SOURCE = "linux-source-6.1"
CONFIG = Path(__file__).with_suffix(".config")
PACKAGES = ("bc", "bison", "flex", "gcc", "libelf-dev", "libssl-dev", "make")


def with_io_latency() -> Path:
    """Return the kernel's image, built at first use (14 minutes of a processor, 140 MB fetched).

    All that a lab guest needs is built in. As root, what it is built with is installed.
    """
    _run(Path(__file__).parents[2] / "prerequisites", *PACKAGES)
    (source,) = apt.candidates(SOURCE)

    def build(folder: Path) -> None:
        unpacked = folder / "unpacked"
        source.unpack(unpacked)
        tree = unpacked / SOURCE
        _run("tar", "-C", unpacked, "-xf", unpacked / f"usr/src/{SOURCE}.tar.xz")
        shutil.copy2(CONFIG, tree / "kernel/configs/lab.config")
        _run("make", "-s", "-C", tree, "defconfig", "kvm_guest.config", "lab.config")
        _run("make", "-s", "-C", tree, f"-j{os.cpu_count()}", "bzImage")
        (tree / "arch/x86/boot/bzImage").rename(folder / "bzImage")
        shutil.rmtree(unpacked)

    made_from: list[str | bytes] = [source.sha256, CONFIG.read_bytes(), Path(__file__).read_bytes()]
    return cached("kernel", made_from, build) / "bzImage"


def _run(*command: str | Path) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
