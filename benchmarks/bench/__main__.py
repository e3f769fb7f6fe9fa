"""Which questions about storage isolation does iokeel answer better than others, and which not?

    benchmarks/iokeel-bench list
    benchmarks/iokeel-bench run [SCENARIO...] [--controllers NAME...] [--repeats N] [--device PATH]
    benchmarks/iokeel-bench run --virtual [SCENARIO...] [--controllers NAME...] [--repeats N]
    benchmarks/iokeel-bench report
    benchmarks/iokeel-bench compare BEFORE AFTER

`run` runs scenarios under controllers, on the same simulated disk with the same load and seeds,
and goes on where an interrupted run was. With --virtual, it computes them in virtual time: all of
them in minutes, and no figure depends on the machine. `report` draws
docs/design/benchmarks.md and a page of HTML from the results. `compare` tells noise from change.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks import result_file
from benchmarks.bench import programs
from benchmarks.bench.compare import compare, table
from benchmarks.bench.controllers import CONTROLLERS, USUAL, chosen
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.errors import BenchError
from benchmarks.bench.records import daemon_of, path_of, read
from benchmarks.bench.report.page import DOCS, HTML, write_report
from benchmarks.bench.report.terminal import summary
from benchmarks.bench.running import booted_host, device
from benchmarks.bench.running.checks import (
    busy,
    check_daemon,
    check_machine,
    clean_up,
    only_one,
    patched_daemon,
    use_best_effort,
)
from benchmarks.bench.running.child import child
from benchmarks.bench.running.runner import Runner
from benchmarks.bench.scenario import Suite, load, names
from benchmarks.bench.virtual import controllers as virtual_controllers
from benchmarks.bench.virtual import result as virtual_result
from benchmarks.bench.virtual import runner
from iokeel.words.quoting import did_you_mean

#: A run of about 20 minutes.
SELECTION = ("weights", "mix-8k-32k")
SELECTED = ("none", "static-iops-size", "average-size", "bfq", "iokeel-exact")
_REPEATS = 3
_STOCK_DAEMON = Path("/usr/bin/qemu-storage-daemon")
_BUILD = result_file.BENCHMARKS.parent / "build/bench"


def show_list(options: argparse.Namespace) -> int:
    """Print all scenarios, programs and controllers."""
    print("Scenarios:")
    for name in names():
        print(f"  {name:30} {load(name).question}")
    print("\nPrograms, each with a result of its own:")
    for name, program in programs.read().items():
        print(f"  {name:30} {program.question} ({program.minutes} minutes)")
    print("\nControllers:")
    for name, controller in CONTROLLERS.items():
        print(f"  {name:30} {controller.title}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run scenarios, or a program. Every name is known before anything runs."""
    if options.virtual:
        return _run_virtual(options)
    known, there = programs.read(), names()
    wanted = dict.fromkeys(options.scenario)
    for name in wanted:
        if name not in there and name not in known:
            what = "there is no scenario or program of this name"
            raise BenchError(name, what, did_you_mean(name, [*there, *known]))
    usual = SELECTED if not (wanted or options.full) else USUAL
    controllers = chosen(options.controllers or usual)
    scenarios = [name for name in wanted if name not in known]
    named = [known[name] for name in wanted if name in known]
    if options.device and (fixed := sorted(known.keys() & wanted)):
        what = f"{fixed[0]} can't run on it"
        raise BenchError("--device", what, "it is for scenarios only: see list")
    if not wanted:
        scenarios = there if options.full else [*SELECTION]
    suites = [load(name, options.shorten) for name in scenarios]
    for program in named:
        if status := child([sys.executable, "-m", *program.command]).returncode:
            return status
    return _run_scenarios(options, suites, controllers) if suites else 0


def _run_virtual(options: argparse.Namespace) -> int:
    """Run scenarios in virtual time, and write the result."""
    if options.device or options.daemon or options.shorten != 1:
        what = "virtual time has no device, no daemon, and needs no shortening"
        raise BenchError("--virtual", what, "leave out --device, --daemon and --shorten")
    if unknown := [name for name in options.scenario if name not in names()]:
        mend = did_you_mean(unknown[0], names())
        raise BenchError(f"scenario {unknown[0]}", "there is none of this name", mend)
    suites = [load(name) for name in options.scenario or names()]
    if booted := [suite.name for suite in suites if not runner.is_virtual(suite)]:
        if options.scenario:
            what = "it compares the kernel's controllers, which virtual time doesn't have"
            raise BenchError(f"scenario {booted[0]}", what, "run it without --virtual")
        suites = [suite for suite in suites if runner.is_virtual(suite)]
    controllers = virtual_controllers.chosen(options.controllers or [])
    result = runner.measure(suites, controllers, options.repeats or runner.SEEDS, _say)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / virtual_result.FILE
    virtual_result.write(path, result)
    print(path)
    return 0


def _run_scenarios(
    options: argparse.Namespace, suites: Sequence[Suite], controllers: Sequence[Controller]
) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    with only_one(options.results):
        return _run_alone(options, suites, controllers)


def _run_alone(
    options: argparse.Namespace, suites: Sequence[Suite], controllers: Sequence[Controller]
) -> int:
    check_machine(options.results)
    clean_up()
    if options.device:
        device.check(options.device, suites, force=options.force)
    if any(case.booted for suite in suites for case in suite.cases):
        _say("the host that boots has a kernel of its own, which takes 14 minutes to build, once")
        booted_host.prepare()
    use_best_effort()
    daemon = options.daemon or daemon_for(options, suites, controllers)
    check_daemon(daemon)
    if warning := busy():
        print(f"iokeel-bench: {warning}", file=sys.stderr)
    use: AbstractContextManager[None] = nullcontext()
    if options.device:  # last: the calibration overwrites it
        found = device.measure(options.device, options.results, _say)
        suites = [device.moved(suite, found) for suite in suites]
        use = device.held(found.path, options.results)
    real = Runner(
        suites,
        controllers,
        options.repeats or _REPEATS,
        options.results,
        daemon,
        _say,
        options.shorten,
        options.fresh,
    )
    with use:
        failed = real.run()
    for suite in suites:
        print(summary(path_of(options.results, suite.name)))
    for failure in failed:
        print(f"iokeel-bench: a run failed: {failure}", file=sys.stderr)
    if failed:
        print("iokeel-bench: the same command runs those again", file=sys.stderr)
    return 2 if failed else 0


def daemon_for(
    options: argparse.Namespace, suites: Sequence[Suite], controllers: Sequence[Controller]
) -> Path:
    """Return the storage daemon that the controllers take, or that of the runs that are there."""
    if any(controller.exact for controller in controllers):
        _say("the patched QEMU takes 8 minutes to build, once")
        return patched_daemon()
    paths = [path_of(options.results, suite.name) for suite in suites if not options.fresh]
    before = {daemon_of(read(path).setup) for path in paths if path.exists()}
    there = [daemon for daemon in before if daemon and daemon.exists()]
    return there[0] if len(there) == 1 else _STOCK_DAEMON


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(options: argparse.Namespace) -> int:
    """Write the page and docs/design/benchmarks.md."""
    write_report(options.results, options.html, options.docs)
    print(options.html)
    return 0


def compared(options: argparse.Namespace) -> int:
    """Print what has changed between two folders of results; 1 if something is worse or lost."""
    virtual = [folder / virtual_result.FILE for folder in (options.before, options.after)]
    if all(path.exists() for path in virtual):
        found = virtual_result.compare(*map(virtual_result.read, virtual))
    else:
        found = compare(options.before, options.after)
    print(table(found))
    return int(found.worse)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(
        "iokeel-bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("list", help="list scenarios, programs and controllers")
    one.set_defaults(does=show_list)
    one = commands.add_parser("run", help="run scenarios")
    one.set_defaults(does=run)
    one.add_argument("scenario", nargs="*", help=f"default: {', '.join(SELECTION)}")
    one.add_argument("--full", action="store_true", help="all scenarios, unless some are named")
    one.add_argument("--controllers", nargs="+", metavar="NAME", help="default: all but paced ones")
    one.add_argument("--virtual", action="store_true", help="in virtual time, all scenarios")
    one.add_argument(
        "--repeats", type=_positive, help=f"default: {_REPEATS}, with --virtual {runner.SEEDS}"
    )
    one.add_argument("--results", type=Path, default=_BUILD, help="a folder (%(default)s)")
    one.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    one.add_argument(
        "--shorten",
        type=_factor,
        default=1.0,
        metavar="FACTOR",
        help="to try it out: times / FACTOR",
    )
    one.add_argument(
        "--device",
        type=Path,
        metavar="PATH",
        help="a real disk, in place of simulated ones; its data is lost",
    )
    one.add_argument("--force", action="store_true", help="even if it holds data")
    one.add_argument("--daemon", type=Path, help="another qemu-storage-daemon")
    one = commands.add_parser("report", help="write docs/design/benchmarks.md, and a page of HTML")
    one.set_defaults(does=report)
    one.add_argument("--results", type=Path, default=result_file.RESULTS)
    one.add_argument("--html", type=Path, default=_BUILD / HTML)
    one.add_argument("--docs", type=Path, default=DOCS, help="the folder of benchmarks.md")
    one = commands.add_parser("compare", help="tell noise from change")
    one.set_defaults(does=compared)
    one.add_argument("before", type=Path, help="a folder of results")
    one.add_argument("after", type=Path, help="another")
    return top


def _positive(text: str) -> int:
    if not text.isdecimal() or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("it has to be a whole number, 1 or more")
    return value


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError("it has to be a number from 1 to 100")
    return value


def main() -> int:
    """Run a command; return its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    options = parser().parse_args()
    try:
        status: int = options.does(options)
    except BenchError as error:
        print(f"iokeel-bench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"iokeel-bench: {what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        same = "The same command goes on"
        if getattr(options, "virtual", False):
            same = "The same command begins anew"
        elif getattr(options, "fresh", False):
            same += ", without --fresh"
        words = f"interrupted; everything that was started has ended. {same}"
        print(f"iokeel-bench: {words}", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
