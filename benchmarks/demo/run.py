"""Three real guests, two tenants, one of them noisy: iokeel holds their disks as workloads shift.

Then the same guests run the same phases under a static iops limit of the same figure. Everything
that the demo starts is its own (a libvirtd, guests, an agent) and ends with it, even if the demo
is interrupted. It leaves results.json, a plot and the guests' raw fio logs. Exit status: 0 if
iokeel kept every limit, 1 if it missed one, 2 if the demo could not run, 3 if the machine was too
busy to tell.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Self

from rich.console import Console

from benchmarks.demo import summary
from benchmarks.demo.agent import running_agent
from benchmarks.demo.broken_agent import BREAKS, Break
from benchmarks.demo.guests import boot, set_policy, set_static_limit
from benchmarks.demo.plot import draw
from benchmarks.demo.results import write_results
from benchmarks.demo.scenario import BENCHMARKS, Scenario, load_scenario
from benchmarks.demo.stage import Stage, run_stage
from benchmarks.demo.verdict import Verdict, judge_stage
from testing.lab.guests.qga import AgentError
from testing.lab.host import Host
from testing.lab.qemu import patched

out = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What the command line asks for. broken: how to break the agent, if at all."""

    folder: Path
    exact: bool
    static: bool
    broken: Break | None

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Return the options. make passes them as variables of the environment."""
        parser = argparse.ArgumentParser(
            "benchmarks.demo.run",
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--mode",
            choices=("stock", "exact"),
            default="stock",
            help="exact: run the guests on a QEMU with this project's patches (make: MODE=exact)",
        )
        parser.add_argument(
            "--static",
            choices=("0", "1"),
            default="1",
            help="0: leave out the second stage, under static limits (make: STATIC=0)",
        )
        parser.add_argument(
            "--break",
            dest="broken",
            choices=BREAKS,
            help="break the agent on purpose, to see that the verdict catches it: limits 10%% too"
            " high or too low, or set 6 s late (make: BREAK=high)",
        )
        parser.add_argument(
            "--out",
            type=Path,
            default=BENCHMARKS.parent / "build/demo",
            help="the folder for results, emptied first (default: %(default)s)",
        )
        from_make = [
            f"--{name.lower()}={value}"
            for name in ("MODE", "STATIC", "BREAK")
            if (value := os.environ.get(name))
        ]
        found = parser.parse_args([*from_make, *words])
        return cls(found.out.resolve(), found.mode == "exact", found.static == "1", found.broken)


def main(options: Options) -> int:
    scenario = load_scenario()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    stages = _run_guests(options, scenario)
    rows = {stage.name: judge_stage(stage, scenario) for stage in stages}
    write_results(options.folder / "results.json", scenario, stages, rows)
    out.print(summary.table(rows["iokeel"], rows.get("static limit"), scenario.bounds))
    draw(options.folder / "shift.png", scenario, stages)
    verdict = Verdict.on(rows["iokeel"])
    for line in summary.lines(verdict, stages[0].limits):
        out.print(line)
    out.print(f"Figures: {_shown(options.folder / 'results.json')}")
    out.print(f"Plot:    {_shown(options.folder / 'shift.png')}")
    return verdict.outcome


def _run_guests(options: Options, scenario: Scenario) -> list[Stage]:
    """Run the stages, and return what was measured."""
    with ExitStack() as stack:
        out.print("[bold]iokeel demo[/]: a private libvirtd and three guests under emulation")
        if options.exact:
            out.print("  on the patched QEMU (building it takes 8 minutes, once)")
        if options.broken:
            out.print(f"  [yellow]with an agent that is broken on purpose: {options.broken}[/]")
        host = stack.enter_context(Host.bookworm())
        host.start_libvirtd()
        vms = {}
        for guest, vm in boot(host, scenario, stack, patched(host) if options.exact else None):
            vms[guest.name] = vm
            out.print(
                f"  {guest.name}: tenant {guest.tenant}, limit {guest.limit} normalized iops,"
                f" {guest.read_percent} % reads, depth {guest.depth}"
            )
        held = Stage("iokeel")
        log = options.folder / "agent.log"
        with running_agent(host, len(vms), log, options.broken) as socket:
            out.print("\n[bold]1. iokeel holds the policies[/]")
            run_stage(
                held, scenario, vms, set_policy,
                agent=socket, exact=options.exact, logs=options.folder, console=out,
            )  # fmt: skip
        if not options.static:
            return [held]
        static = Stage("static limit")
        for guest in scenario.guests:
            set_static_limit(vms[guest.name], guest, guest.limit)
        out.print("\n[bold]2. the same under static iops limits[/] (virsh blkdeviotune)")
        run_stage(
            static, scenario, vms, set_static_limit,
            agent=None, exact=options.exact, logs=options.folder, console=out,
        )  # fmt: skip
        return [held, static]


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(Options.parse(sys.argv[1:])))
    except KeyboardInterrupt:
        out.print("\nInterrupted. Everything that was started has ended.")
        sys.exit(130)
    except (AgentError, OSError, RuntimeError, SubprocessError) as error:
        out.print(f"[red]The demo could not run:[/] {error}")
        sys.exit(2)
