"""Does io.max hold I/O that bypasses QEMU's throttle, and only that, in a kernel with cgroup v2?

    python -m benchmarks.backstop.run [--repeats N] [--io-latency]

Boots Debian's kernel in a guest, where a QEMU runs in a group as libvirt and systemd make it. The
agent's own code bounds the group for a share (guest.py). fio reads and writes beside QEMU, in its
group, and the kernel counts (io.stat, the median of 7 seconds). Writes results/backstop.json and
prints a table:

- held: the counted rate over the bound;
- within: the rate of reads that keep to the share, over the share;
- without_bound: the rate of reads without a bound, over the bound.

With --io-latency, in a kernel that has it (built if need be), also the group's target before, while
it is set, and after; the result is results/backstop-io-latency.json.
"""

from __future__ import annotations

import argparse
import io
import platform
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import iokeel
from benchmarks import result_file
from benchmarks.backstop.told import Told
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import PYTHON, image
from testing.lab.kernel import with_io_latency

RESULT = result_file.RESULTS / "backstop.json"
IO_LATENCY_RESULT = result_file.RESULTS / "backstop-io-latency.json"
SCRIPT = Path(__file__).with_name("guest.py")
STORAGE_DAEMON = shutil.which("qemu-storage-daemon")


@dataclass(frozen=True)
class Setup:
    """The share, the bounds and the kernels."""

    question: str
    share: int
    margin: float
    bounds: dict[str, int]
    guest_kernel: str
    host_kernel: str
    git_revision: str | None


@dataclass(frozen=True)
class Figures:
    """A ratio for each run; held: by traffic."""

    held: dict[str, list[float]]
    within: list[float]
    without_bound: list[float]

    @classmethod
    def of(cls, runs: list[Told]) -> Figures:
        """Return the figures of some runs."""
        return cls(
            {traffic: [round(one.held[traffic], 4) for one in runs] for traffic in runs[0].held},
            [round(one.within["rios"] / one.share, 4) for one in runs],
            [round(one.free["rios"] / one.limits["riops"], 2) for one in runs],
        )


@dataclass(frozen=True)
class Result:
    """A result file."""

    scenario: Setup
    results: Figures
    runs: list[Told]


def lacking() -> str | None:
    """Return the package to install for a program that the guest needs, or None."""
    if STORAGE_DAEMON is None:
        return "apt-get install qemu-system-common (qemu-storage-daemon)"
    return None if PYTHON.exists() else "apt-get install python3"


@contextmanager
def booted(kernel: Path | None = None) -> Iterator[Vm]:
    """Boot the guest, ready to `measure`.

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
        vm.start()
        with vm:
            vm.write("/root/packed.tar", packed.getvalue())
            vm.exec("cd /root && tar -xf packed.tar")
            vm.exec("modprobe bfq", check=kernel is None)
            yield vm


def measure(vm: Vm) -> Told:
    """Return the results of a booted guest. It can be asked once."""
    ran = vm.exec("cd /root && python3 main.py 2>log || { cat log >&2; false; }", 300)
    told = msgspec.json.decode(ran.stdout, type=dict[str, object])
    told["kernel"] = vm.exec("uname -r").stdout.decode().strip()
    told["log"] = vm.read("/root/log").decode()
    return msgspec.convert(told, Told)


def _source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name or info.name.endswith(".so") else info


def main() -> None:
    """Run the guest some times."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--io-latency", action="store_true", help="in a kernel with io.latency")
    options = parser.parse_args()
    kernel = with_io_latency() if options.io_latency else None
    runs = []
    for _ in range(options.repeats):
        with booted(kernel) as vm:
            runs.append(measure(vm))
    figures = Figures.of(runs)
    rows = {**figures.held, "within the share": figures.within}
    rows["without a bound"] = figures.without_bound
    for name, ratios in rows.items():
        print(f"{name:16} {' '.join(f'{ratio:7.4f}' for ratio in ratios)}")
    if kernel:
        for moment, settings in (
            ("before", [one.before for one in runs]),
            ("set", [one.set for one in runs]),
            ("restored", [one.restored for one in runs]),
        ):
            targets = ", ".join(files["io.latency"] for files in settings)
            print(f"{'io.latency ' + moment:20} {targets}")
    first = runs[0]
    setup = Setup(
        question=result_file.question(__doc__),
        share=first.share,
        margin=first.margin,
        bounds=first.limits,
        guest_kernel=first.kernel,
        host_kernel=platform.release(),
        git_revision=result_file.revision(),
    )
    result = Result(setup, figures, runs)
    result_file.write(IO_LATENCY_RESULT if kernel else RESULT, result, indent=2)


if __name__ == "__main__":
    main()
