"""Three real guests, two tenants, one of them noisy: iokeel holds their disks as workloads shift.

Then the same guests and phases again under a static iops limit of the same figure. Everything it
starts is its own (a libvirtd, guests, an agent), and ends with it, also when interrupted. Writes
build/demo/results.json, shift.png and the guests' raw fio logs. MODE=exact runs the guests on a
QEMU with this project's patches.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmarks.demo.conformance import Completions, Conformance, phase_conformance
from iokeel.cli import client
from iokeel.cli.drive_table import DriveStatsTable
from iokeel.errors import IokeelError
from testing.lab.domain import DiskSpec, make_disk
from testing.lab.host import Host
from testing.lab.processors import Processors
from testing.lab.qemu import patched
from testing.lab.vm import Vm

BENCHMARKS = Path(__file__).resolve().parents[1]
OUT = BENCHMARKS.parent / "build/demo"
URN = "urn:iokeel:policy:1"
SIZES = {"small": "8k", "large": "64k"}
_START_DELAY_S = 2  # time for the order to start fio to reach all guests
_TAIL_S = 1  # what is run after the last phase: its end is counted from the first completion on
_LOOK_S = 0.5  # between two looks at the drives
_STOLEN_RATIO = 0.04  # of the processors' time between looks; more makes a second's requests late

out = Console(highlight=False)


@dataclass
class Pass:
    """One run of all phases: what was done to each drive, and when, in host epoch seconds.

    stolen: from when to when this machine's own hypervisor stopped it.
    """

    name: str
    start_s: float = 0.0
    logs: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    retunes: list[tuple[float, str]] = field(default_factory=list)
    stolen: list[tuple[float, float]] = field(default_factory=list)


def main() -> int:
    exact = os.environ.get("MODE") == "exact"
    scenario = tomllib.loads((BENCHMARKS / "scenarios/demo.toml").read_text())
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with ExitStack() as stack:
        out.print("[bold]iokeel demo[/]: a private libvirtd and three guests under emulation")
        if exact:
            out.print("  on a QEMU with the patches, built where it isn't yet (8 minutes)")
        host = stack.enter_context(Host.bookworm())
        host.start_libvirtd()
        guests = _boot(host, scenario, stack, patched(host) if exact else None)
        held = Pass("iokeel")
        with _agent(host, held) as socket:
            _wait_for_limits(socket, guests)
            out.print("\n[bold]1. iokeel holds the policies[/]")
            _run(held, scenario, guests, socket, _change_policy)
        static = Pass("static limit")
        for guest in scenario["guests"]:
            _static_limit(guests[guest["name"]], guest["limit"])
        out.print("\n[bold]2. the same under static iops limits[/] (virsh blkdeviotune)")
        _run(static, scenario, guests, None, _static_limit)
    figures = {run.name: _figures(run, scenario) for run in (held, static)}
    _write(scenario, [held, static], figures)
    out.print(_verdicts(figures, scenario))
    if stolen_s := sum(end - begin for begin, end in held.stolen):
        out.print(
            f"For {stolen_s:.1f} s this machine's own hypervisor took the processors; those seconds"
            " and the next ones don't count in back."
        )
    _plot(scenario, [held, static])
    out.print(f"Figures: {_shown('results.json')}  Plot: {_shown('shift.png')}")
    kept = all(c.kept(scenario) for rows in figures["iokeel"].values() for c in rows)
    out.print("[bold green]iokeel kept every limit.[/]" if kept else "[bold red]Not kept.[/]")
    return 0 if kept else 1


# Guests and agent


def _boot(
    host: Host, scenario: dict[str, Any], stack: ExitStack, emulator: Path | None
) -> dict[str, Vm]:
    guests = {}
    disks = stack.enter_context(_disks())
    for guest in scenario["guests"]:
        name = guest["name"]
        disk = make_disk(disks / f"{name}.raw", scenario["disk_mib"])
        spec = DiskSpec("vda", disk, cache="writeback", io="threads")
        policy = _policy(guest["tenant"], guest["limit"])
        vm = Vm.boot(host, name, [spec], policy=policy, emulator=emulator)
        guests[name] = vm
        out.print(
            f"  {name}: tenant {guest['tenant']}, limit {guest['limit']} normalized iops,"
            f" {guest['read_percent']} % reads, depth {guest['depth']}"
        )
    return guests


@contextmanager
def _disks() -> Iterator[Path]:
    """A folder for images, in memory where there is room: the host's disk is not the subject."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    folder = (memory if roomy else Path("/tmp")) / f"iokeel-demo-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _policy(tenant: str, limit: int) -> str:
    return (
        f'<iokeel:policy xmlns:iokeel="{URN}" tenant="{tenant}">'
        f'<iokeel:drive target="vda" limit="{limit}"/></iokeel:policy>'
    )


@contextmanager
def _agent(host: Host, run: Pass) -> Iterator[Path]:
    """Run the agent against the host's libvirtd; note when it retunes."""
    socket = host.dir / "agent.sock"
    config = host.dir / "agent.toml"
    config.write_text(
        f'[agent]\nsocket = "{socket}"\nstate_dir = "{host.dir}/state"\n'
        f'[libvirt]\nuri = "{host.uri}"\n'
    )
    process = host.popen(
        [*host.iokeel, "agent", "--config", config], stderr=subprocess.PIPE, text=True
    )

    def follow() -> None:
        with (OUT / "agent.log").open("w") as log:
            for line in process.stderr or ():
                now = time.time()
                log.write(f"{now:.3f} {line}")
                log.flush()
                if "limits set" in line:
                    run.retunes.append((now, line.split(": ")[1].split("/")[0]))

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        yield socket
    finally:
        process.terminate()
        process.wait()
        reader.join()


def _wait_for_limits(socket: Path, guests: dict[str, Vm]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            reports = [d for vm in client.vms(socket) for d in vm.drives if d.limits_in_force]
            if len(reports) == len(guests):
                return
        except IokeelError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"the agent set no limits within 30 s; see {OUT / 'agent.log'}")
        time.sleep(0.2)


def _change_policy(vm: Vm, limit: int, tenant: str) -> None:
    policy = f'<policy tenant="{tenant}"><drive target="vda" limit="{limit}"/></policy>'
    vm.host.virsh(
        "metadata", vm.name, "--uri", URN, "--key", "iokeel", "--set", policy, "--live", "--config"
    )


def _static_limit(vm: Vm, limit: int, tenant: str = "") -> None:
    # An iops-size that no request reaches: each counts as one, and a cost curve goes.
    values = {"total-bytes-sec": 0, "total-iops-sec": limit, "size-iops-sec": 1 << 30}
    options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    vm.host.virsh("blkdeviotune", vm.name, "vda", *options, "--live")


# The phases


def _run(
    run: Pass, scenario: dict[str, Any], guests: dict[str, Vm], socket: Path | None, change: Any
) -> None:
    """Run all phases in all guests at once, and fetch fio's logs."""
    length_s = scenario["phases"][-1]["end_s"]
    programs = {}
    run.start_s = time.time() + _START_DELAY_S
    for guest in scenario["guests"]:
        vm = guests[guest["name"]]
        vm.write("/tmp/job.fio", _job(scenario, guest).encode())
        run.offsets[vm.name] = vm.clock_offset().seconds
    run.start_s = time.time() + _START_DELAY_S
    for vm in guests.values():
        pause = max(0.0, run.start_s - time.time())
        fio = "fio --output=/tmp/fio.json --output-format=json+ /tmp/job.fio"
        programs[vm.name] = vm.start_program(
            f"rm -f /tmp/io_iops*.log; usleep {round(pause * 1e6)}; {fio}"
        )
    changes = [(g["change"], g) for g in scenario["guests"] if "change" in g]
    seen_s, seen = time.time(), Processors.now()
    with Live(console=out, auto_refresh=False, transient=not out.is_terminal) as live:
        while (at := time.time() - run.start_s) < length_s:
            while changes and changes[0][0]["at_s"] <= at:
                what, guest = changes.pop(0)
                change(guests[guest["name"]], what["limit"], guest["tenant"])
            live.update(_progress(scenario, at, socket), refresh=out.is_terminal)
            time.sleep(_LOOK_S)
            before_s, before, seen_s, seen = seen_s, seen, time.time(), Processors.now()
            if seen.stolen_ratio(before) > _STOLEN_RATIO:
                run.stolen.append((before_s, seen_s))
        live.update(_progress(scenario, at, socket), refresh=True)
    for vm in guests.values():
        ended = vm.wait(programs[vm.name], timeout=60)
        if ended.status != 0:
            raise RuntimeError(f"{vm.name}: fio failed: {ended.stderr.decode().strip()}")
        run.logs[vm.name] = vm.read("/tmp/io_iops.log")
        stem = f"{vm.name}-{run.name.replace(' ', '-')}"
        (OUT / f"{stem}.log").write_bytes(run.logs[vm.name])
        (OUT / f"{stem}.fio.json").write_bytes(vm.read("/tmp/fio.json"))


def _job(scenario: dict[str, Any], guest: dict[str, Any]) -> str:
    """Return a fio job with a section for each stretch of phases in which a stream runs."""
    sections = []
    *phases, last = scenario["phases"]
    phases += [last | {"end_s": last["end_s"] + _TAIL_S}, {"end_s": 0, "streams": []}]
    for stream, size in SIZES.items():
        start = begun = 0
        running = False
        for phase in phases:
            runs = stream in phase["streams"]
            if runs and not running:
                begun = start
            if running and not runs:
                sections.append(
                    f"[{stream}-{begun}]\nbs={size}\nstartdelay={begun}\nruntime={start - begun}"
                )
            running, start = runs, phase["end_s"]
    text = (BENCHMARKS / "jobs/shift.fio").read_text()
    for name in ("read_percent", "depth"):
        text = text.replace(f"@{name.upper()}@", str(guest[name]))
    return text.replace("@STREAMS@", "\n".join(sections))


def _progress(scenario: dict[str, Any], at: float, socket: Path | None) -> Group:
    phase = next((p for p in scenario["phases"] if at < p["end_s"]), scenario["phases"][-1])
    title = Text(f"  {max(at, 0):4.0f} s of {scenario['phases'][-1]['end_s']} s: {phase['name']}")
    if socket is None:
        return Group(title)
    try:
        return Group(title, DriveStatsTable(client.vms(socket)))
    except IokeelError as error:
        return Group(title, Text(str(error)))


# Figures


def _changed_s(run: Pass, guest: dict[str, Any]) -> float:
    """Return when a guest's limit changed, counted from its first completion; inf: never."""
    if "change" not in guest:
        return float("inf")
    return float(guest["change"]["at_s"]) - _delay_s(run, guest["name"])


def _limit_at(run: Pass, guest: dict[str, Any], at_s: float) -> int:
    changed = at_s >= _changed_s(run, guest)
    limit: int = guest["change"]["limit"] if changed else guest["limit"]
    return limit


def _completions(run: Pass, name: str) -> Completions:
    """Return a drive's completions, counted from its first: fio takes a while to start."""
    return Completions.parse(run.logs[name])


def _delay_s(run: Pass, name: str) -> float:
    """Return how long after the host's start of the phases a guest's fio began, in seconds."""
    return Completions.begun_s(run.logs[name]) - run.offsets[name] - run.start_s


def _figures(run: Pass, scenario: dict[str, Any]) -> dict[str, list[Conformance]]:
    """Return each drive's conformance by phase; a phase in which its limit changes is two."""
    figures = {}
    for guest in scenario["guests"]:
        done = _completions(run, guest["name"])
        zero_s = run.start_s + _delay_s(run, guest["name"])
        stolen = [(begin - zero_s, end - zero_s) for begin, end in run.stolen]
        rows = []
        start = 0.0
        for phase in scenario["phases"]:
            cuts = [start, float(phase["end_s"])]
            if start < (changed := _changed_s(run, guest)) < phase["end_s"]:
                cuts.insert(1, changed)
            for i, (begin, end) in enumerate(pairwise(cuts)):
                name = phase["name"] + (", new limit" if i else "")
                # A window over a lowered limit is judged from the change on.
                limit = _limit_at(run, guest, begin)
                rows.append(
                    phase_conformance(done, name, begin, end, limit, scenario, i > 0, stolen)
                )
            start = float(phase["end_s"])
        figures[guest["name"]] = rows
    return figures


def _write(
    scenario: dict[str, Any], runs: list[Pass], figures: dict[str, dict[str, list[Conformance]]]
) -> None:
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True)
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=BENCHMARKS, capture_output=True, text=True
    )
    result = {
        "scenario": scenario,
        "host": {"kernel": platform.release(), "cpus": os.cpu_count()},
        "qemu": qemu.stdout.splitlines()[0] if qemu.stdout else None,
        "revision": revision.stdout.strip() or None,
        "runs": {
            run.name: {
                "start_epoch_s": run.start_s,
                "guest_clock_ahead_s": run.offsets,
                "fio_begun_s": {name: round(_delay_s(run, name), 3) for name in run.logs},
                "retunes": [[round(at - run.start_s, 3), name] for at, name in run.retunes],
                "stolen_s": [
                    [round(at - run.start_s, 3) for at in between] for between in run.stolen
                ],
                "drives": {
                    name: [row.values() | {"kept": row.kept(scenario)} for row in rows]
                    for name, rows in figures[run.name].items()
                },
            }
            for run in runs
        },
    }
    (OUT / "results.json").write_text(json.dumps(result, indent=1) + "\n")


def _verdicts(figures: dict[str, dict[str, list[Conformance]]], scenario: dict[str, Any]) -> Table:
    table = Table(
        title="Normalized rate over limit, from fio's own log in the guests",
        caption="back: within 5 % for good after; mean: from 3 s on; worst: of any second",
    )
    for heading in ("drive", "phase"):
        table.add_column(heading, no_wrap=True)
    for heading in ("back", "mean", "worst", "static\nmean", "static\nworst"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("iokeel", no_wrap=True)
    for drive, rows in figures["iokeel"].items():
        for i, row in enumerate(rows):
            static = figures["static limit"][drive][i]
            late = row.recovered_s >= len(row.seconds_ratio)
            kept = row.kept(scenario)
            table.add_row(
                drive if i == 0 else "",
                row.phase,
                "never" if late else f"{row.recovered_s:.0f} s",
                f"{row.mean_ratio:.1%}",
                f"{row.worst_window_ratio:.0%}",
                f"{static.mean_ratio:.0%}",
                f"{static.worst_window_ratio:.0%}",
                "[green]kept[/]" if kept else "[red]missed[/]",
            )
        table.add_section()
    return table


def _plot(scenario: dict[str, Any], runs: list[Pass]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    guests = scenario["guests"]
    end = scenario["phases"][-1]["end_s"]
    figure, axes = plt.subplots(
        len(guests),
        len(runs),
        figsize=(14, 3 * len(guests)),
        sharex=True,
    )
    figure.subplots_adjust(0.055, 0.06, 0.99, 0.95, wspace=0.12, hspace=0.28)
    for i, guest in enumerate(guests):
        for j, run in enumerate(runs):
            ax = axes[i][j]
            done = _completions(run, guest["name"])
            begins = [0.1 * k for k in range(int(10 * (end - 1)))]
            rates = [done.rate(begin, begin + 1) for begin in begins]
            times = [0.01 * k for k in range(100 * end)]
            ax.plot([b + 0.5 for b in begins], rates, lw=1.3, label="rate, window of 1 s")
            limits = [_limit_at(run, guest, t) for t in times]
            ax.plot(times, limits, "k--", lw=1, label="limit")
            band = [1.25 * value for value in limits]
            ax.fill_between(times, limits, band, alpha=0.12, color="k", lw=0, label="+25 %")
            for phase in scenario["phases"][:-1]:
                ax.axvline(phase["end_s"], color="0.6", lw=0.8, ls=":")
            delay = run.start_s + _delay_s(run, guest["name"])
            moments = [at - delay for at, name in run.retunes if name == guest["name"]]
            ax.plot(
                [m for m in moments if 0 <= m <= end],
                [0.0 for m in moments if 0 <= m <= end],
                "r^",
                ms=6,
                label="retune",
                clip_on=False,
            )
            ax.set_title(f"{guest['name']} ({guest['tenant']}), {run.name}", fontsize=10)
            ax.set_ylim(bottom=0)
            if j == 0:
                ax.set_ylabel("normalized iops")
            if i == 0:
                ax.legend(fontsize=8, loc="lower right" if j == 0 else "upper right")
                start = 0
                for phase in scenario["phases"]:
                    middle = (start + phase["end_s"]) / 2
                    label = phase["name"].removesuffix(" again")
                    where = ax.get_xaxis_transform()
                    ax.text(middle, 0.03, label, ha="center", fontsize=8, transform=where)
                    start = phase["end_s"]
    for ax in axes[-1]:
        ax.set_xlabel("seconds")
    figure.savefig(OUT / "shift.png", dpi=110)


def _shown(name: str) -> str:
    path = OUT / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        out.print("\ninterrupted; all that was started is gone")
        sys.exit(130)
