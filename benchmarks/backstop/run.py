"""Does io.max hold what goes past QEMU's throttle, and only that, in a kernel with cgroup v2?

Boots Debian's kernel in a guest, where a QEMU runs in a group as libvirt and systemd make it. The
agent's own code bounds the group for a share; fio reads and writes beside QEMU, in its group; the
kernel counts (io.stat, the median of 7 seconds). held: the counted rate over the bound. within:
the rate of reads that keep to the share, over the share. Writes results/backstop.json and prints a
table. With --io-latency, in a kernel that has it, also the group's target before, while it is set,
and after.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import iokeel
from testing.lab.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guest import PYTHON, image
from testing.lab.host import Host
from testing.lab.kernel import with_io_latency
from testing.lab.vm import Vm

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULT = BENCHMARKS / "results/backstop.json"
IO_LATENCY_RESULT = BENCHMARKS / "results/backstop-io-latency.json"
SCRIPT = Path(__file__).with_name("guest.py")
STORAGE_DAEMON = shutil.which("qemu-storage-daemon")
BOUNDS = {
    "reads": ("rios", "riops"),
    "writes": ("wios", "wiops"),
    "large reads": ("rbytes", "rbps"),
    "large writes": ("wbytes", "wbps"),
}


def lacking() -> str | None:
    """Return what of this machine's programs the guest lacks, or None."""
    if STORAGE_DAEMON is None:
        return "apt-get install qemu-system-common (qemu-storage-daemon)"
    return None if PYTHON.exists() else "apt-get install python3"


def run(kernel: Path | None = None) -> dict[str, Any]:
    """Return what the guest says came of it; see backstop_guest.py.

    kernel: another than Debian's, with all built in, such as one that has io.latency.
    """
    assert STORAGE_DAEMON is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(Path(iokeel.__file__).parent, "iokeel", filter=_source)
        archive.add(SCRIPT, "main.py")
    made = image((PYTHON, Path(STORAGE_DAEMON)), ("bfq",))
    made = replace(made, kernel=kernel or made.kernel)
    with Host.bookworm() as host:
        host.start_libvirtd()
        disk = DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))
        vm = Vm(host, "v2")
        vm.define(domain_xml("v2", [disk], image=made, folder=host.dir, memory_mib=768))
        vm.start(120)
        with vm:
            vm.write("/root/packed.tar", packed.getvalue())
            vm.exec("cd /root && tar -xf packed.tar")
            vm.exec("modprobe bfq", check=kernel is None)
            ran = vm.exec("cd /root && python3 main.py 2>log || { cat log >&2; false; }", 300)
            told: dict[str, Any] = json.loads(ran.stdout)
            told["kernel"] = vm.exec("uname -r").stdout.decode().strip()
            told["log"] = vm.read("/root/log").decode()
            return told


def _source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info


def main() -> None:
    """Run the guest some times, and write what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--io-latency", action="store_true", help="in a kernel with io.latency, built if need be"
    )
    options = parser.parse_args()
    kernel = with_io_latency() if options.io_latency else None
    runs = [run(kernel) for _ in range(options.repeats)]
    share = runs[0]["share"]
    held = {
        traffic: [round(told[traffic][counter] / told["limits"][bound], 4) for told in runs]
        for traffic, (counter, bound) in BOUNDS.items()
    }
    within = [round(told["within"]["rios"] / share, 4) for told in runs]
    free = [round(told["free"]["rios"] / runs[0]["limits"]["riops"], 2) for told in runs]
    for name, ratios in (*held.items(), ("within the share", within), ("without a bound", free)):
        print(f"{name:16} {' '.join(f'{ratio:7.4f}' for ratio in ratios)}")
    if kernel:
        for at in ("before", "set", "restored"):
            print(f"{'io.latency ' + at:20} {', '.join(told[at]['io.latency'] for told in runs)}")
    describe = ["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    git = ["git", "-C", str(BENCHMARKS), *describe]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    scenario = {
        "question": " ".join((__doc__ or "").split("\n")[0].split()),
        "share": share,
        "margin": runs[0]["margin"],
        "bounds": runs[0]["limits"],
        "guest_kernel": runs[0]["kernel"],
        "host_kernel": platform.release(),
        "git_revision": revision or None,
    }
    results = {"held": held, "within": within, "without_bound": free}
    (IO_LATENCY_RESULT if kernel else RESULT).write_text(
        json.dumps({"scenario": scenario, "results": results, "runs": runs}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
