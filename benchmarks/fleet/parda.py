"""Do hosts that share an array get their shares of it, under a latency target?

These are the experiments of PARDA (Gulati, Ahmad, Waldspurger, FAST 2009, tables 3 and 4), which
divides an array among ESX hosts: each reads 16 KiB at random at a depth of 32, and a threshold
holds the latency. Two more have what it lacks: a reservation, and requests of different sizes.
Here each host has an agent, a storage daemon with the patches, fio, and a block device of its own.
All of these lead to one simulated array. array/disk_load.py defines the figures.

The array is the simulated flash with ten units, each a disk that takes 2.85 ms for a read. Requests
hit disks at random. So it does about what the published one did: 3,360 reads a second at 37 ms. The
SSD is ten times as slow as its model, and all its 16 KiB reads go one after the other over the
link. So its latency rises from a few ms to that of a full queue within 2 % of load.

Exit status: 0 if on the array iokeel kept the reservation, and every share without one to within
3 %, and the sum of limits was never above 1.01 of the capacity; 1 if not, 2 if the run could not be
made.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import result_file
from benchmarks.command import end_with
from benchmarks.fleet.array.disk_load import Drive
from benchmarks.fleet.array.hosts import Device, Experiment, Phase, run
from benchmarks.spread import Spread

MOST_RATIO = 1.01
MOST_ERROR = 0.03

ARRAY = Device(
    "nvme-970-pro", {"units": 10, "read_us": 2850}, 3350, {"4k": 1.0, "16k": 1.0, "64k": 4.0}
)
SSD = Device("sata-ssd-px-256m5s", {"slowdown": 10}, 7320, {"4k": 1.0, "16k": 2.25, "64k": 9.0})


def _hosts(*drives: Drive) -> dict[str, Drive]:
    return dict(zip("abcdef", drives, strict=False))


_WEIGHTED = _hosts(Drive(100), Drive(100), Drive(200), Drive(200))
# At a depth of 32, it couldn't do so much while a request takes 25 ms.
_RESERVED = Drive(reservation=1675, depth=64)
EXPERIMENTS = {
    "equal": Experiment("four hosts, equal shares", ARRAY, _hosts(*[Drive()] * 4), (30, 25)),
    "weights": Experiment("four hosts, shares 1:1:2:2", ARRAY, _WEIGHTED, (30, 25)),
    "six": Experiment("six hosts, three stop", ARRAY, _hosts(*[Drive()] * 6), stopping="def"),
    "reservation": Experiment(
        "one host with half reserved", ARRAY, _hosts(_RESERVED, *[Drive()] * 3)
    ),
    "sizes": Experiment(
        "4K beside 64K", ARRAY, _hosts(*[Drive(bs="4k")] * 2, *[Drive(bs="64k")] * 2)
    ),
    "ssd": Experiment("shares 1:1:2:2 on an SSD", SSD, _WEIGHTED),
}

#: Tables 3 and 4: requests a second and ms, by experiment and target, of each host and of all.
PUBLISHED: Mapping[tuple[str, float | None], Mapping[str, tuple[int, int]]] = {
    ("equal", None): {
        "a": (780, 41), "b": (900, 34), "c": (890, 35), "d": (790, 40), "all": (3360, 37),
    },
    ("equal", 30): {
        "a": (730, 34), "b": (890, 29), "c": (930, 29), "d": (800, 33), "all": (3350, 31),
    },
    ("six", None): {
        "a": (525, 59), "b": (570, 55), "c": (570, 55), "d": (560, 57), "e": (430, 77),
        "f": (500, 62), "all": (3130, 60),
    },
    ("six", 30): {"all": (3150, 30)},
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a run showed. phases: by experiment."""

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    cpu: str
    fio: str
    daemon: str
    devices: Mapping[str, Device]
    phases: Mapping[str, Sequence[Phase]]


def kept(phase: Phase, drives: Mapping[str, Drive]) -> bool:
    """Return whether the capacity was kept, and each reservation, or else all shares."""
    worst, hosts = phase.worst_ratio, phase.hosts
    if worst is None or worst > MOST_RATIO:
        return False
    if reserved := {name: drive.reservation for name, drive in drives.items() if drive.reservation}:
        return all(hosts[name].iops.least >= rate for name, rate in reserved.items())
    shares = [part.of_share for part in hosts.values() if part.of_share is not None]
    return all(abs(share.median - 1) <= MOST_ERROR for share in shares)


def table(name: str, phase: Phase) -> str:
    """Return a phase as people read it: medians of its windows, and least to most."""
    title = "no control" if phase.target_ms is None else f"iokeel, {phase.target_ms:g} ms"
    if phase.stopped:
        title += f", {', '.join(phase.stopped)} have stopped"
    published = {} if phase.stopped else PUBLISHED.get((name, phase.target_ms), {})
    lines = [
        f"{EXPERIMENTS[name].title}: {title}",
        f"  {'host':4} {'reads/s':>22} {'of its share':>19} {'ms at the disk':>23}  PARDA's",
    ]
    for host, part in phase.hosts.items():
        theirs = "{:,}/s {} ms".format(*published[host]) if host in published else ""
        cells = (_cell(part.iops, 0), _cell(part.of_share, 3), _cell(part.latency_ms, 1))
        line = "  {:4} {:>22} {:>19} {:>23}  {}".format(host, *cells, theirs)
        lines.append(line.rstrip())
    lines.append(f"  processors busy: {phase.busy_ratio:.0%}")
    if phase.worst_ratio is not None:
        lines.append(f"  highest sum of limits: {phase.worst_ratio:.3f} of the capacity")
    if phase.taken_over_s is not None:
        lines.append(f"  the others had what was left after {phase.taken_over_s:.1f} s")
    return "\n".join(lines)


def _cell(values: Spread | None, places: int) -> str:
    if values is None:
        return ""
    each = (values.median, values.least, values.most)
    return "{} ({} to {})".format(*(f"{value:,.{places}f}" for value in each))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("benchmarks.fleet.parda", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--daemon", type=Path, help="a storage daemon with the patches")
    parser.add_argument(
        "--out", type=Path, help="where to write (all experiments: results/fleet-parda.json)"
    )
    options = parser.parse_args(words)
    names = options.names or [*EXPERIMENTS]
    if unknown := {*names} - {*EXPERIMENTS}:
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}")
    if missing := [
        name for name in ("etcd", "etcdctl", "fio", "nsenter") if not shutil.which(name)
    ]:
        print(f"benchmarks.fleet: {', '.join(missing)} not found", file=sys.stderr)
        return 2
    from testing.lab.qemu import storage_daemon

    daemon = options.daemon or storage_daemon()
    phases: dict[str, list[Phase]] = {}
    for name in names:
        with TemporaryDirectory(prefix="iokeel-parda-") as folder:
            for phase in run(EXPERIMENTS[name], Path(folder), daemon):
                phases.setdefault(name, []).append(phase)
                print(table(name, phase) + "\n", flush=True)
    result = Result(
        result_file.question(__doc__), result_file.now(), result_file.revision(),
        result_file.Machine.this(), result_file.cpu_model(), result_file.version("fio"),
        result_file.version(daemon), {"array": ARRAY, "ssd": SSD}, phases,
    )  # fmt: skip
    if options.out or not options.names:
        result_file.write(options.out or result_file.RESULTS / "fleet-parda.json", result)
    held = [
        kept(phase, EXPERIMENTS[name].drives)
        for name, found in phases.items()
        for phase in found
        if phase.target_ms is not None and EXPERIMENTS[name].device is ARRAY
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    end_with(main)
