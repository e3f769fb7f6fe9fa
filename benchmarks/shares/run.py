"""Do shares of a disk hold, whatever the neighbours do? One scenario a run, under several controls.

A scenario (scenarios/shares-*.toml) says which simulated disk, which drives with which policies and
which fio jobs; each drive is a process in a cgroup, as a VM is. It runs with no control, with
static limits, with BFQ and its weights, and with iokeel, in turn and several times, and drives that
have a latency target run alone too. With --paced their neighbours also run at fixed rates, which
iokeel only holds, and where they sync without that too: what limits can do on the disk at best. All
figures come from fio's own log of every request:

    rate     what a drive's requests cost in a second, by the storage's curve, over [begin_s, end)
    share    its rate over the sum of all drives' rates
    total    the sum of all drives' rates, over the same with no control
    worst    its lowest rate of any second from the third one on, over its reservation
    latency  mean and 99th percentile of its requests' times, over the same alone
    stolen   the part of the processors' time that this machine's own hypervisor took: with some
             percent of it, times are not what the disk and its control make them, so of up to
             TRIES runs the first one counts that has less than STOLEN_RATIO, or has the least

Writes results/shares-NAME.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.demo.conformance import Completions
from iokeel.cli import client
from iokeel.core.curve import CostCurve, CostModel
from iokeel.words.units import parse_size
from testing.lab.blkio import ROOT as BLKIO
from testing.lab.blkio import blkio_groups
from testing.lab.domain import DiskSpec
from testing.lab.host import Host
from testing.lab.processors import Processors
from testing.lab.shared_disk import SharedDisk
from testing.lab.vm import Vm

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULTS = BENCHMARKS / "results"
CONTROLS = ("none", "static", "bfq", "iokeel")
STOLEN_RATIO, TRIES = 0.02, 3
_NEVER_MS = 60_000.0  # the highest target there is

out = Console(highlight=False)


@dataclass(frozen=True)
class Drive:
    """A drive of a scenario: its policy, as in [vm.drives.NAME], and its fio job's options.

    guest: whether it is a real guest's, whose QEMU counts its latency too, and not an export of a
    storage daemon.
    """

    name: str
    policy: Mapping[str, Any]
    job: Mapping[str, Any]
    guest: bool = False


@dataclass(frozen=True)
class Scenario:
    """What runs on which disk. capacity, latency_target_ms: at this slowdown."""

    name: str
    device: str
    slowdown: float
    seconds: int
    begin_s: float
    capacity: float
    latency_target_ms: float
    model: CostModel
    drives: tuple[Drive, ...]


@dataclass(frozen=True)
class Did:
    """What a drive did in a run."""

    completions: Completions
    latency_ms: np.ndarray[Any, np.dtype[np.float64]]
    bytes: int


def read_scenario(path: Path, seconds: int | None) -> Scenario:
    """Read a scenario, and the cost curves of its disk."""
    raw = tomllib.loads(path.read_text())
    curves = tomllib.loads((path.parent / "disks.toml").read_text())[raw["device"]]
    drives = []
    for table in raw["drives"]:
        for i in range(table.get("count", 1)):
            name = f"{table['name']}{i}" if "count" in table else table["name"]
            policy = dict(table.get("policy", {}))
            if "reservation_ratio" in policy:
                policy["reservation"] = round(policy.pop("reservation_ratio") * raw["capacity"])
            drives.append(Drive(name, policy, table["job"], table.get("guest", False)))
    return Scenario(
        path.stem.removeprefix("shares-"),
        raw["device"],
        float(raw["slowdown"]),
        seconds or raw["seconds"],
        raw["begin_s"],
        float(raw["capacity"]),
        raw["latency_target_ms"],
        CostModel(_curve(curves["curve_read"]), _curve(curves["curve_write"])),
        tuple(drives),
    )


def _curve(points: Sequence[Sequence[Any]]) -> CostCurve:
    return CostCurve(tuple((parse_size(str(size)), float(cost)) for size, cost in points))


def paced(scenario: Scenario, rate: float, syncs: bool = True) -> Scenario:
    """Return a scenario whose drives without a latency target have `rate` between them, always.

    Its drives with a target keep one that always holds, so that the others' requests wait in parts
    as ever, and nothing is cut. syncs: whether writers sync.
    """
    others = sum("latency_target_ms" not in drive.policy for drive in scenario.drives)
    drives = []
    for drive in scenario.drives:
        policy: Mapping[str, Any] = {"limit": max(1, round(rate / others))}
        if "latency_target_ms" in drive.policy:
            policy = {"latency_target_ms": _NEVER_MS}
        job = {key: value for key, value in drive.job.items() if syncs or key != "fsync"}
        drives.append(replace(drive, policy=policy, job=job))
    return replace(scenario, capacity=100 * rate, latency_target_ms=_NEVER_MS, drives=tuple(drives))


# One run


def run_quietly(
    scenario: Scenario, control: str, alone: bool = False
) -> tuple[dict[str, Did], float]:
    """Run all drives' jobs as `run` does, again where much was stolen; return that part too."""
    tries: list[tuple[dict[str, Did], float]] = []
    while len(tries) < TRIES and not (tries and tries[-1][1] < STOLEN_RATIO):
        before = Processors.now()
        did = run(scenario, control, alone)
        tries.append((did, Processors.now().stolen_ratio(before)))
    return min(tries, key=lambda each: each[1])


def run(scenario: Scenario, control: str, alone: bool = False) -> dict[str, Did]:
    """Run all drives' jobs under a control; with `alone`, only those that have a latency target."""
    drives = [d for d in scenario.drives if not alone or "latency_target_ms" in d.policy]
    exports = [drive for drive in drives if not drive.guest]
    with ExitStack() as stack:
        disk = stack.enter_context(
            SharedDisk(scenario.device, len(exports), slowdown=scenario.slowdown, apart=True)
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iokeel-shares-")))
        host, guests = None, {}
        if len(exports) < len(drives):
            host = stack.enter_context(Host.bookworm())
            host.start_libvirtd()
        for drive in drives:
            if host is not None and drive.guest:
                spec = DiskSpec("vda", disk.device)
                vm = Vm.boot(host, drive.name, [spec], policy=_policy(drive))
                guests[drive.name] = stack.enter_context(vm)
        if control == "static":
            _set_static_limits(scenario, drives, disk)
        stack.enter_context(_grouped(drives, disk, host, bfq=control == "bfq"))
        if control == "iokeel":
            stack.enter_context(_agent(scenario, drives, disk, folder, host))
        return _fio(scenario, drives, disk, guests, folder)


def _policy(drive: Drive) -> str:
    values = " ".join(f'{key.replace("_", "-")}="{v}"' for key, v in drive.policy.items())
    urn = "urn:iokeel:policy:1"
    return f'<i:policy xmlns:i="{urn}"><i:drive target="vda" {values}/></i:policy>'


def _set_static_limits(scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk) -> None:
    """Bound every export to its part of the disk, as 4K reads: what an operator can do by hand."""
    weights = _weights(drives)
    for i, drive in enumerate(drive for drive in drives if not drive.guest):
        part = weights[drive.name] / sum(weights.values())
        _qmp(disk.qmp_socket(i), i, {"iops-total": max(1, round(scenario.capacity * part))})


def _weights(drives: Sequence[Drive]) -> dict[str, int]:
    return {drive.name: drive.policy.get("weight", 100) for drive in drives}


@contextmanager
def _grouped(
    drives: Sequence[Drive], disk: SharedDisk, host: Host | None, *, bfq: bool
) -> Iterator[None]:
    """Put each drive's process into a cgroup, as libvirt does; give the disk BFQ, if asked."""
    weights = None
    if bfq:
        disk.set_scheduler("bfq")
        weights = _weights(drives)
    exports = iter(range(len(drives)))
    with blkio_groups((drive.name for drive in drives), weights) as groups:
        for drive in drives:
            members = BLKIO / groups[drive.name] / "cgroup.procs"
            if not drive.guest:
                members.write_text(str(disk.process(next(exports))))
            elif host is not None:  # process ids are the host's own there
                host.run(["sh", "-c", f"cat /run/libvirt/qemu/{drive.name}.pid > {members}"])
        yield


@contextmanager
def _agent(
    scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk, folder: Path, host: Host | None
) -> Iterator[None]:
    api, config = folder / "agent.sock", folder / "agent.toml"
    config.write_text(_agent_config(scenario, drives, disk, folder, host))
    command = [str(Path(sys.executable).parent / "iokeel"), "agent", "--config", str(config)]
    with (folder / "agent.log").open("w") as log:
        start = host.popen if host is not None else subprocess.Popen
        agent = start(command, stderr=log)
        try:
            deadline = time.monotonic() + 20
            while not api.exists() or not _all_seen(api, len(drives)):
                if agent.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "agent.log").read_text()[-2000:])
                time.sleep(0.2)
            yield
        finally:
            agent.terminate()
            agent.wait(20)


def _qmp(path: Path, drive: int, limits: Mapping[str, int]) -> None:
    """Set a drive's throttle group by hand."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(str(path))
        file = monitor.makefile("rw")
        file.readline()
        for command, arguments in (
            ("qmp_capabilities", {}),
            ("qom-set", {"path": f"/objects/group{drive}", "property": "limits", "value": limits}),
        ):
            file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            file.flush()
            if "error" in (reply := json.loads(file.readline())):
                raise RuntimeError(reply["error"]["desc"])


def _all_seen(api: Path, drives: int) -> bool:
    return sum(len(vm.drives) for vm in client.vms(api)) >= drives


def _agent_config(
    scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk, folder: Path, host: Host | None
) -> str:
    lines = [
        "[agent]",
        f'socket = "{folder}/agent.sock"',
        f'state_dir = "{folder}/state"',
        "[libvirt]",
        f'uri = "{host.uri}"' if host is not None else "enabled = false",
        "[cgroup]\nenabled = false",
        "[storage.shared]",
        f"drives = {[f'{drive.name}/*' for drive in drives if not drive.guest]}",
        f'device = "{disk.device}"',
        f"capacity = {round(scenario.capacity)}",
        f"curve_read = {[list(p) for p in scenario.model.read.points]}",
        f"curve_write = {[list(p) for p in scenario.model.write.points]}",
    ]
    lines.append(f"latency_target_ms = {scenario.latency_target_ms}")
    for i, drive in enumerate(drive for drive in drives if not drive.guest):
        lines += ["[[vm]]", f'name = "{drive.name}"', f'socket = "{disk.qmp_socket(i)}"']
        lines.append(f"[vm.drives.group{i}]")
        lines += [f"{key} = {value}" for key, value in drive.policy.items()]
    return "\n".join(lines) + "\n"


def _fio(
    scenario: Scenario,
    drives: Sequence[Drive],
    disk: SharedDisk,
    guests: Mapping[str, Vm],
    folder: Path,
) -> dict[str, Did]:
    """Run all jobs at once, and return what each did, by drive."""
    exports = [drive for drive in drives if not drive.guest]
    lines = [*_job_options(scenario), "ioengine=nbd"]
    for i, drive in enumerate(exports):
        lines += [f"[{drive.name}]", f"uri={disk.uri(i)}", f"size={disk.drive_bytes}"]
        lines += [f"write_lat_log={folder}/{drive.name}", f"randseed={i + 1}"]
        lines += [f"{key}={value}" for key, value in drive.job.items()]
    (folder / "jobs.fio").write_text("\n".join(lines) + "\n")
    offsets, programs = {}, {}
    for drive in drives:
        if drive.guest:
            vm = guests[drive.name]
            job = [*_job_options(scenario), "ioengine=libaio", "direct=1", "[io]"]
            job += ["filename=/dev/vda", "write_lat_log=/tmp/io"]
            job += [f"{key}={value}" for key, value in drive.job.items()]
            vm.write("/tmp/job.fio", ("\n".join(job) + "\n").encode())
            offsets[drive.name] = vm.clock_offset().seconds
    began = time.time()
    for name, vm in guests.items():
        programs[name] = vm.start_program("fio --output=/tmp/fio.out /tmp/job.fio")
    if exports:
        words = folder / "fio.out"
        if subprocess.run(["fio", f"--output={words}", "jobs.fio"], cwd=folder).returncode:
            raise RuntimeError(f"fio failed: {words.read_text()[:2000]}")
    found = {
        drive.name: _did(folder / f"{drive.name}_lat.{i}.log", began, scenario.model)
        for i, drive in enumerate(exports, 1)
    }
    for name, vm in guests.items():
        ended = vm.wait(programs[name], timeout=scenario.seconds + 60)
        if ended.status != 0:
            raise RuntimeError(f"{name}: fio failed: {ended.stderr.decode().strip()}")
        log = folder / f"{name}_lat.log"
        log.write_bytes(vm.read("/tmp/io_lat.1.log"))
        found[name] = _did(log, began + offsets[name], scenario.model)
    return {drive.name: found[drive.name] for drive in drives}


def _job_options(scenario: Scenario) -> list[str]:
    return [
        "[global]",
        "time_based=1",
        f"runtime={scenario.seconds}",
        "norandommap=1",
        "group_reporting=0",
        "disable_slat=1",
        "disable_clat=1",
        "log_avg_msec=0",
        "log_unix_epoch=1",
        "log_entries=1048576",
    ]


def _did(log: Path, began: float, model: CostModel) -> Did:
    table = np.loadtxt(log, delimiter=",", usecols=(0, 1, 2, 3), ndmin=2)
    table = table[table[:, 2] < 2]  # flushes are no I/O of a size
    cost = np.array(
        [(model.write if write else model.read).cost(size) for write, size in table[:, 2:4]]
    )
    order = np.argsort(table[:, 0], kind="stable")
    at_s = table[order, 0] / 1000 - began
    return Did(Completions(at_s, cost[order]), table[order, 1] / 1e6, int(table[:, 3].sum()))


# Figures


def figures(scenario: Scenario, runs: Mapping[str, Sequence[Mapping[str, Did]]]) -> dict[str, Any]:
    """Return the figures of all runs: for each control a list, one for each repeat."""
    begin, end = scenario.begin_s, float(scenario.seconds)
    free = free_rate(scenario, runs["none"])
    return {
        control: [_figures(scenario, one, begin, end, free) for one in repeats]
        for control, repeats in runs.items()
    }


def free_rate(scenario: Scenario, runs: Sequence[Mapping[str, Did]]) -> float:
    """Return what all drives did between them in a second, the median over runs."""
    begin, end = scenario.begin_s, float(scenario.seconds)
    return median(sum(did.completions.rate(begin, end) for did in one.values()) for one in runs)


def _figures(
    scenario: Scenario, did: Mapping[str, Did], begin: float, end: float, free: float
) -> dict[str, Any]:
    rates = {name: one.completions.rate(begin, end) for name, one in did.items()}
    total = sum(rates.values())
    rows = {}
    for drive in scenario.drives:
        if drive.name not in did:
            continue
        one = did[drive.name]
        latency = one.latency_ms[one.completions.at_s >= begin]
        row: dict[str, Any] = {
            "rate": rates[drive.name],
            "share": rates[drive.name] / total,
            "bytes": one.bytes,
            "latency_mean_ms": float(latency.mean()) if len(latency) else None,
            "latency_p99_ms": float(np.percentile(latency, 99)) if len(latency) else None,
        }
        if reservation := drive.policy.get("reservation"):
            seconds = one.completions.seconds(2.0, end)
            row["worst_second_of_reservation"] = min(seconds) / reservation
            row["of_reservation_by_second"] = [
                round(rate / reservation, 3) for rate in one.completions.seconds(0.0, end)
            ]
        rows[drive.name] = row
    return {"total_rate": total, "total_ratio": total / free, "drives": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "scenario", nargs="*", type=Path, help="such as scenarios/shares-weights.toml"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, help="instead of the scenario's")
    parser.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    parser.add_argument("--controls", nargs="+", default=list(CONTROLS))
    parser.add_argument(
        "--paced", nargs="+", type=int, default=[], help="percents of what no control lets through"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for path in args.scenario or sorted((BENCHMARKS / "scenarios").glob("shares-*.toml")):
        scenario = read_scenario(path, args.seconds)
        runs: dict[str, list[dict[str, Did]]] = {control: [] for control in args.controls}
        stolen: dict[str, list[float]] = {}
        has_target = any("latency_target_ms" in drive.policy for drive in scenario.drives)
        paces: dict[str, tuple[float, bool]] = {}
        if has_target:
            runs["alone"] = []
            paces = {f"paced, {percent} %": (percent / 100, True) for percent in args.paced}
            if paces and any("fsync" in drive.job for drive in scenario.drives):
                most = max(args.paced)
                paces[f"paced, {most} %, no syncs"] = (most / 100, False)
            runs |= {name: [] for name in paces}
        for _ in range(args.repeats):
            for control in runs:
                if control in paces:
                    pace, syncs = paces[control]
                    rate = pace * free_rate(scenario, runs["none"])
                    did, ratio = run_quietly(paced(scenario, rate, syncs), "iokeel")
                else:
                    did, ratio = run_quietly(scenario, control, alone=control == "alone")
                runs[control].append(did)
                stolen.setdefault(control, []).append(ratio)
        found = figures(scenario, runs)
        for control, ratios in stolen.items():
            for one, ratio in zip(found[control], ratios, strict=True):
                one["stolen_ratio"] = ratio
        result = {"scenario": scenario.name, "device": scenario.device, "controls": found}
        (args.output / f"shares-{scenario.name}.json").write_text(
            json.dumps(result, indent=1) + "\n"
        )
        out.print(table(scenario, found))
        out.print(f"stolen: {max(max(ratios) for ratios in stolen.values()):.1%} of a run, at most")
    return 0


def table(scenario: Scenario, found: Mapping[str, Any]) -> Table:
    """Return a table of the medians over the repeats."""
    shown = Table(title=f"{scenario.name}: {scenario.device}, times x {scenario.slowdown:g}")
    for heading in ("control", "total", "drive", "rate", "share", "worst s", "ms mean", "ms p99"):
        shown.add_column(heading, justify="left" if heading in ("control", "drive") else "right")
    for control, repeats in found.items():
        total = median(one["total_ratio"] for one in repeats)
        for i, name in enumerate(repeats[0]["drives"]):
            rows = [one["drives"][name] for one in repeats]
            if i > 4 and i < len(repeats[0]["drives"]) - 1:
                continue
            shown.add_row(
                control if not i else "",
                f"{total:.0%}" if not i else "",
                name,
                _median(rows, "rate", "{:.0f}"),
                _median(rows, "share", "{:.1%}"),
                _median(rows, "worst_second_of_reservation", "{:.0%}"),
                _median(rows, "latency_mean_ms", "{:.2f}"),
                _median(rows, "latency_p99_ms", "{:.2f}"),
            )
        shown.add_section()
    return shown


def _median(rows: Sequence[Mapping[str, Any]], key: str, text: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    return text.format(median(values)) if values else "-"


if __name__ == "__main__":
    sys.exit(main())
