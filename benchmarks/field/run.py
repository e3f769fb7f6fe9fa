"""Does a drive below its limit do what it would do without iokeel, on ordinary hosts?

Hosts are drawn from a seed (draw.py): caches, image formats, buses, iothreads, files, partitions,
NBD, neighbours without a policy, programs of the host, block jobs, snapshots, discards, zeroes,
policies of many kinds. On each, the same load runs without iokeel, with it, and without it again.
verdict.py says what is judged, by measurements that are none of the agent's. Everything that is
started ends with the run. Exit status: 0 if every promise was kept, 1 if one was broken, 2 if the
run could not be made.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks import result_file
from benchmarks.command import end_with
from benchmarks.field.broken_agent import BREAKS, Break
from benchmarks.field.draw import MODES, FieldHost, Mode, draw
from benchmarks.field.ground import ground
from benchmarks.field.guests import Guest, guests
from benchmarks.field.part import Part, run_part
from benchmarks.field.verdict import BOUNDS, Bounds, Judged, judge
from testing.agents import HostAgent
from testing.lab.guests.domain import folder_in_memory
from testing.lab.host import PROJECT, Host
from testing.lab.qemu import patched
from testing.lab.roots.environment import HOME
from testing.waiting import eventually

PART_S = 20.0
_BROKEN = f"{PROJECT}/benchmarks/field/broken_agent.py"
_HELD_S = 30.0


@dataclass(frozen=True)
class Options:
    """What a run is made of. part_s: how long each part is judged."""

    seconds: float
    seed: int
    mode: Mode
    broken: Break | None = None
    part_s: float = PART_S


@dataclass(frozen=True)
class HostResult:
    """What a host showed. seed: draws it again. drives: by name. faults: the agent's own."""

    seed: int
    host: str
    seconds: float
    drives: dict[str, Judged]
    faults: tuple[str, ...]

    @property
    def breaches(self) -> list[str]:
        """Every promise that was broken."""
        found = [f"{name}: {said}" for name, each in self.drives.items() for said in each.breaches]
        return found + [f"the agent: {said}" for said in self.faults]

    @property
    def harm_ratio(self) -> float:
        """The worst harm to a drive."""
        return max(drive.harm_ratio for drive in self.drives.values())


@dataclass(frozen=True)
class Result:
    """What a run showed, or several of one revision and the same programs."""

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    mode: Mode
    qemu: str
    libvirt: str
    seconds: float
    bounds: Bounds
    hosts: tuple[HostResult, ...]

    @property
    def kept(self) -> bool:
        """Whether no promise was broken."""
        return not any(host.breaches for host in self.hosts)


def run(
    options: Options,
    say: Callable[[str], None] = print,
    before: Result | None = None,
    save: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Run hosts until the time is over, at least one, and return them after those of `before`.

    save: is given what there is after each host.
    """
    begun_s = time.monotonic()
    hosts = () if before is None else before.hosts
    seed = options.seed
    while True:
        host_begun_s = time.monotonic()
        drawn = draw(seed, options.mode)
        say(f"host {seed}: {drawn}")
        judged, faults, versions = run_host(drawn, options)
        took_s = time.monotonic() - host_begun_s
        hosts = (*hosts, HostResult(seed, str(drawn), round(took_s, 1), judged, faults))
        say(line(hosts[-1]))
        for said in hosts[-1].breaches:
            say(f"  broken: {said}")
        result = _result(options.mode, versions, hosts)
        save(result)
        seed += 1
        if time.monotonic() + took_s / 2 - begun_s > options.seconds:
            return result


def _result(mode: Mode, versions: tuple[str, str], hosts: tuple[HostResult, ...]) -> Result:
    return Result(
        result_file.question(__doc__), result_file.now(), result_file.revision(),
        result_file.Machine.this(), mode, *versions, round(sum(host.seconds for host in hosts)),
        BOUNDS[mode], hosts,
    )  # fmt: skip


def run_host(
    drawn: FieldHost, options: Options
) -> tuple[dict[str, Judged], tuple[str, ...], tuple[str, str]]:
    """Run a host's parts; return what each drive shows, the agent's faults, and versions."""
    with _host(options.mode) as host, folder_in_memory("field") as memory:
        host.start_libvirtd()
        emulator = patched(host) if options.mode == "exact" else None
        with (
            ground(host, drawn, memory) as made,
            guests(host, drawn.drives, made.disks, emulator) as booted,
        ):
            versions = _versions(host, emulator)
            agent = HostAgent(host, made.table)
            sound = agent.command
            if options.broken is not None:
                python = PROJECT / ".venv/bin/python"
                if options.mode == "trixie":
                    python = HOME / "bin/python"
                agent.command = [str(python), _BROKEN, options.broken]

            def part(with_agent: HostAgent | None) -> Part:
                return run_part(
                    host, made, memory, booted, drawn.happens, with_agent, options.part_s,
                    drawn.seed,
                )  # fmt: skip

            without = [part(None)]
            try:
                agent.start()
                eventually(lambda: all(map(_is_held, booted)), _HELD_S, what="each drive is held")
                with_ = part(agent)
                agent.stop()
            finally:
                agent.end()
            host.run([*sound, "agent", "--config", agent.config, "--release"])
            eventually(lambda: not any(map(_has_limits, booted)), what="no drive has limits")
            without.append(part(None))
            faults = tuple(agent.own_faults())
    judged = {
        drive.name: judge(drawn, drive, without, with_, BOUNDS[options.mode])
        for drive in drawn.drives
    }
    return judged, faults, versions


@contextmanager
def _host(mode: Mode) -> Iterator[Host]:
    if mode == "trixie":
        with Host.trixie(requirements=PROJECT / "agent/requirements.lock") as host:
            yield host
    else:
        with Host.bookworm() as host:
            yield host


def _has_limits(guest: Guest) -> bool:
    limits = guest.monitor.looks[-1].limits.get(guest.drive.target)
    return limits is not None and any(limits)


def _is_held(guest: Guest) -> bool:
    return guest.drive.limit is None or _has_limits(guest)


def _versions(host: Host, emulator: Path | None) -> tuple[str, str]:
    qemu = host.run([emulator or "qemu-system-x86_64", "--version"]).stdout.splitlines()[0]
    return qemu.removeprefix("QEMU emulator "), host.run(["libvirtd", "--version"]).stdout.strip()


def line(host: HostResult) -> str:
    """Return a host's result in one line."""
    parts = []
    for name, drive in host.drives.items():
        unclear = f", {drive.unclear} of {drive.windows} unclear" if drive.unclear else ""
        explained = [loss for loss in drive.losses if loss.kind == "explained"]
        why = f", {explained[0].ratio:.0%} for {explained[0].words}" if explained else ""
        worst = "" if drive.worst_ratio is None else f", worst second {drive.worst_ratio:.3f}"
        without = "/".join(f"{rate:.0f}" for rate in drive.without_iops)
        parts.append(
            f"{name} {drive.with_iops:.0f} of {without} (limit {drive.limit}):"
            f" harm {drive.harm_ratio:.1%}{worst}{why}{unclear}"
        )
    return f"host {host.seed} in {host.seconds:.0f} s: " + "; ".join(parts)


def summary(result: Result) -> Iterator[str]:
    """Yield the lines of a summary."""
    drives = [drive for host in result.hosts for drive in host.drives.values()]
    windows = sum(drive.windows for drive in drives)
    unclear = sum(drive.unclear for drive in drives)
    worst = max((d.worst_ratio for d in drives if d.worst_ratio is not None), default=0.0)
    broken = sum(bool(host.breaches) for host in result.hosts)
    yield (
        f"{len(result.hosts)} hosts, {len(drives)} drives: most harm"
        f" {max(host.harm_ratio for host in result.hosts):.1%}, worst second {worst:.3f},"
        f" {unclear / max(1, windows):.1%} of {windows} windows unclear"
    )
    losses = [loss for drive in drives for loss in drive.losses]
    for kind in ("harm", "explained", "unclear"):
        found = [loss for loss in losses if loss.kind == kind]
        causes = {loss.words if kind == "explained" else loss.cause for loss in found}
        each = (
            f"{sum((loss.words if kind == 'explained' else loss.cause) == c for loss in found)}"
            f" by {c}"
            for c in sorted(causes)
        )
        yield f"{kind}: {len(found)} losses" + (f" ({', '.join(each)})" if found else "")
    yield f"A promise was broken on {broken} hosts." if broken else "Every promise was kept."


def _parse(words: Sequence[str]) -> tuple[Options, Path, bool]:
    parser = argparse.ArgumentParser(
        "benchmarks.field.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=600,
        help="begin hosts until then, at least one (make: SECONDS=)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6),
        help="of the first host; the next ones count up (make: SEED=; default: a new one)",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=MODES, default="stock",
        help="stock: Debian 12's QEMU and libvirt; trixie: Debian 13's; exact: Debian 12's libvirt"
        " and a QEMU with this project's patches (make: MODE=)",
    )  # fmt: skip
    parser.add_argument(
        "--broken", choices=BREAKS, help="with an agent that is broken in this way, to see that it"
        " is found; nothing is written (make: BROKEN=)",
    )  # fmt: skip
    parser.add_argument(
        "--add", choices=("0", "1"), default="0",
        help="1: add to the result file, if it is of this revision and mode, from the seed after"
        " its last one on (make: ADD=1)",
    )  # fmt: skip
    parser.add_argument("--part-seconds", type=float, default=PART_S, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="the result file (default: in results/)")
    from_make = [
        f"--{name.lower()}={value}"
        for name in ("SECONDS", "SEED", "MODE", "BROKEN", "ADD")
        if (value := os.environ.get(name))
    ]
    found = parser.parse_args([*from_make, *words])
    options = Options(found.seconds, found.seed, found.mode, found.broken, found.part_seconds)
    out = found.out or result_file.RESULTS / f"field-{found.mode}.json"
    return options, out, found.add == "1"


def _result_before(out: Path, mode: Mode) -> Result | None:
    """Return the result that more can be added to; None if there is none."""
    try:
        before = result_file.read(out, Result)
    except (FileNotFoundError, msgspec.ValidationError):
        return None
    return before if (before.revision, before.mode) == (result_file.revision(), mode) else None


def main(words: Sequence[str]) -> int:
    options, out, adds = _parse(words)
    before = _result_before(out, options.mode) if adds else None
    if before is not None:
        options = replace(options, seed=before.hosts[-1].seed + 1)
    print(f"iokeel field: {options.seconds:g} s, SEED={options.seed}, MODE={options.mode}")

    def save(result: Result) -> None:
        if options.broken is None:
            result_file.write(out, result)

    result = run(options, lambda said: print(said, flush=True), before, save)
    print()
    for said in summary(result):
        print(said)
    return 0 if result.kept else 1


if __name__ == "__main__":
    end_with(main)
