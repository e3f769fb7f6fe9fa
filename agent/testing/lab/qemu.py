"""QEMU with this project's patches, or without: an emulator for guests, and a storage daemon."""

import os
import subprocess
from pathlib import Path

from testing.lab.host import PROJECT, Host


def binaries(*options: str) -> Path:
    """Return the folder of the patched binaries, built at first use (8 minutes).

    options: those of qemu-patches/build. Without any, it gets those in $IOKEEL_QEMU_BUILD.
    """
    options = options or tuple(os.environ.get("IOKEEL_QEMU_BUILD", "").split())
    build = [str(PROJECT / "qemu-patches/build"), *options]
    run = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
    return Path(run.stdout.split()[-1])


def patched(host: Host) -> Path:
    """Return the patched emulator for a bookworm host's domains."""
    return _emulator(host.dir / "qemu", binaries())


def stock(host: Host) -> Path:
    """Return an emulator of the same version without the patches, for a bookworm host's domains."""
    return _emulator(host.dir / "stock-qemu", binaries("--stock"))


def _emulator(wrapper: Path, folder: Path) -> Path:
    firmware = "-L /usr/share/qemu -L /usr/share/seabios"
    wrapper.write_text(f'#!/bin/sh\nexec {folder}/qemu-system-x86_64 {firmware} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def storage_daemon() -> Path:
    """Return the patched qemu-storage-daemon."""
    return binaries() / "qemu-storage-daemon"
