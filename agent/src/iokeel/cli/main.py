"""The command `iokeel`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from iokeel import __version__
from iokeel.cli import client, tables
from iokeel.cli.calibrate import calibrate
from iokeel.config.load import DEFAULT_CONFIG, load
from iokeel.core.curve import KIB, CostCurve
from iokeel.core.policy import MOST_IOPS
from iokeel.errors import ConfigError, ConnectionLost, IokeelError, PolicyError
from iokeel.policy_xml.domain import domain_targets
from iokeel.policy_xml.policy import check_targets, parse_policy
from iokeel.report.records import StorageReport, VmReport
from iokeel.words.quoting import did_you_mean, shown, shown_path
from iokeel.words.units import parse_size

NOT_SO, USAGE = 1, 2
DEFAULT_SOCKET = Path("/run/iokeel/agent.sock")
_SOCKET_VARIABLE = "IOKEEL_SOCKET"
_TOP_INTERVAL_S = 1.0
# Where no terminal says how wide it is: in a pipe nothing needs to be left out.
_WIDE = 1000

app = typer.Typer(
    help="Keep every guest's disk on an even keel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policy_app = typer.Typer(help="Check policies.", no_args_is_help=True)
curve_app = typer.Typer(help="Show cost curves.", no_args_is_help=True)
app.command()(calibrate)
app.add_typer(policy_app, name="policy")
app.add_typer(curve_app, name="curve")
out = Console(highlight=False)
if not out.is_terminal and "COLUMNS" not in os.environ:
    out.width = _WIDE

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help=f"Configuration (default {DEFAULT_CONFIG})."),
]
SocketOption = Annotated[
    Path,
    typer.Option("--socket", envvar=_SOCKET_VARIABLE, readable=False, help="The agent's socket."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command; errors are one line on stderr, and an exit status of 1 or 2."""
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except IokeelError as error:
        _complain(str(error))
        status = USAGE if isinstance(error, ConfigError) else NOT_SO
    except typer.TyperException as error:
        status = _usage(error)
    except typer.Abort:
        status = NOT_SO
    except BrokenPipeError:  # as in `iokeel stats | head`; the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = NOT_SO
    sys.exit(status)


def _usage(error: typer.TyperException) -> int:
    """Say what is wrong with the words of the command, and return the exit status."""
    what = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    see = f"; see `{context.command_path} --help`" if context else ""
    if what:  # without a word too few or too many there is only the help, printed already
        _complain(f"{what}{see}")
    return error.exit_code


def _complain(text: str) -> None:
    print(f"iokeel: {text}", file=sys.stderr)


def _vm_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return what a VM's name may be completed to."""
    return [r.domain for r in _known(context) if r.domain.startswith(incomplete)]


def _drive_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return what a drive's name may be completed to."""
    drives = [d for r in _known(context) for d in r.drives if d.domain == context.params.get("vm")]
    return [drive.target for drive in drives if drive.target.startswith(incomplete)]


def _known(context: typer.Context) -> list[VmReport]:
    socket = context.params.get("socket") or os.environ.get(_SOCKET_VARIABLE) or DEFAULT_SOCKET
    try:
        return client.vms(Path(socket))
    except IokeelError:
        return []


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"iokeel {__version__}")
        raise typer.Exit


@app.command()
def agent(config: ConfigOption = None) -> None:
    """Run the agent until SIGTERM; then every drive is left at its policy's static limit."""
    from iokeel.daemon import run_agent

    settings = load(config)
    logging.basicConfig(
        level=settings.agent.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(run_agent(settings))


@app.command()
def stats(
    vm: Annotated[
        str | None, typer.Argument(help="Only this VM.", autocompletion=_vm_names)
    ] = None,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show what drives share instead.")
    ] = False,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what each drive does against its limits, and each VM's sums.

    norm. iops: what it does, in 4 KiB reads a second; allowed: what it may do now; ms r / w: mean
    latency, the throttle's wait included; credit: seconds of burst saved; bound by: the bounds
    that it uses up.

    With --storage: what each storage can serve now and what its drives do of it; reserved: the sum
    of what they are promised; ms: latency of the device against its target; room: what drives
    without a latency target may use while others have one.
    """
    if storage:
        if vm is not None:
            raise ConfigError(f"stats {shown(vm)}", "a VM and --storage", "give one of them")
        _storage_stats(client.storages(socket), as_json)
        return
    reports = client.vms(socket)
    if vm is not None:
        names = [report.domain for report in reports]
        reports = [report for report in reports if report.domain == vm]
        if not reports:
            raise IokeelError(shown(vm), "no such running VM", did_you_mean(vm, names))
    if as_json:
        print(json.dumps([report.model_dump() for report in reports], indent=2))
    else:
        out.print(tables.DriveTable(reports))
        for line in tables.complaints(reports):
            print(line)


def _storage_stats(reports: Sequence[StorageReport], as_json: bool) -> None:
    if as_json:
        print(json.dumps([report.model_dump() for report in reports], indent=2))
        return
    out.print(tables.storages(reports) if reports else "no storage is known")
    for line in tables.storage_complaints(reports):
        print(line)


@app.command()
def top(socket: SocketOption = DEFAULT_SOCKET) -> None:
    """Show the same as stats, live, until interrupted."""
    reports = client.vms(socket)
    if not out.is_terminal:
        raise IokeelError("top", "the output is no terminal", "use `iokeel stats`")
    with _interruptible(), Live(console=out, screen=True, auto_refresh=False) as live:
        complaint = ""
        while True:
            lines = [complaint] if complaint else [*tables.complaints(reports)]
            table = tables.DriveTable(reports)
            live.update(Group(table, *(Text(line, "red") for line in lines)), refresh=True)
            time.sleep(_TOP_INTERVAL_S)
            try:
                reports, complaint = client.vms(socket), ""
            except ConnectionLost as error:  # while an agent is restarted, say
                complaint = str(error)


@app.command()
def why(
    vm: Annotated[str, typer.Argument(help="The VM.", autocompletion=_vm_names)],
    drive: Annotated[
        str | None, typer.Argument(help="Only this drive.", autocompletion=_drive_names)
    ] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Explain which limit binds a drive and why: the last decision, step by step."""
    explained = client.why(socket, vm, drive)
    if as_json:
        print(json.dumps(explained, indent=2))
        return
    for name, lines in explained.items():
        print(f"{vm}/{name}")
        for number, line in enumerate(lines, 1):
            indent = f"  {number}. "
            print(
                textwrap.fill(
                    line,
                    out.width,
                    initial_indent=indent,
                    subsequent_indent=" " * len(indent),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )


@policy_app.command("check")
def policy_check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|VM", help="A file, - or a running VM.", autocompletion=_vm_names
        ),
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Check the policy in a file (domain XML, or the policy alone) or of a running VM."""
    text = sys.stdin.buffer.read() if what == "-" else _read(what)
    if text is None:
        _check_running(what, socket, as_json)
        return
    name = "standard input" if what == "-" else shown_path(what)
    classes = load(config, default_missing=True).classes
    policy = parse_policy(text, classes, name)
    if policy is None:
        raise PolicyError(name, "has no policy", "put an iokeel:policy element in its metadata")
    targets = domain_targets(text)
    if targets:
        check_targets(policy, targets, name)
    if as_json:
        print(json.dumps(tables.policy_values(policy, targets), indent=2))
    else:
        out.print(tables.policy(policy, targets))


def _read(file: str) -> bytes | None:
    """Return a file's contents; None where there is none, and the word may be a VM's name."""
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        if "/" not in file:
            return None
        raise ConfigError(shown_path(file), "no such file", "give a file, - or a VM") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        what = f"can't be read, {reason}"
        raise ConfigError(shown_path(file), what, "give a readable file, - or a VM") from None


def _check_running(vm: str, socket: Path, as_json: bool) -> None:
    try:
        reports = client.vms(socket)
    except ConnectionLost as error:
        raise IokeelError(shown(vm), f"no such file, and {error}") from None
    report = next((report for report in reports if report.domain == vm), None)
    if report is None:
        names = [report.domain for report in reports]
        what = "no such file and no such running VM"
        raise IokeelError(shown(vm), what, did_you_mean(vm, names))
    mine = {drive.storage for drive in report.drives}
    storages = [storage for storage in client.storages(socket) if storage.storage in mine]
    warnings = [*tables.storage_complaints(storages)]
    if as_json:
        print(json.dumps({"domain": vm, "error": report.policy_error, "warnings": warnings}))
    if report.policy_error is not None:
        where, _, what = report.policy_error.partition(": ")
        raise IokeelError(where, what)
    if not as_json:
        print(f"{vm}: its policy is valid")
        for line in warnings:
            print(line)


@curve_app.command("table")
def curve_table(
    least: Annotated[
        int | None, typer.Option("--min", min=1, max=MOST_IOPS, help="Reservation, normalized.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, max=MOST_IOPS, help="Limit, normalized.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", min=1, max=MOST_IOPS, help="Burst, normalized.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="Such as 4k,8k,1m.")] = None,
    writes: Annotated[bool, typer.Option("--writes", help="The curve for writes.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a request of each size costs, and the rates that normalized rates make of it.

    Costs are in hundredths of a 4 KiB read.
    """
    _check_order({"--min": least, "--max": most, "--burst": burst})
    chosen = _sizes(sizes)
    model = load(config, default_missing=True).model
    rows = [_row(model.write if writes else model.read, s, least, most, burst) for s in chosen]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        out.print(tables.curve(rows))


def _check_order(rates: Mapping[str, int | None]) -> None:
    """Raise ConfigError where one rate is below one that comes before it."""
    given = [(option, rate) for option, rate in rates.items() if rate is not None]
    for (lower, low), (upper, high) in pairwise(given):
        if high < low:
            what = f"{high} is below {lower} {low}"
            raise ConfigError(upper, what, "give --min, --max and --burst in ascending order")


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return [*(kib * KIB for kib in range(4, 257)), 512 * KIB, 1024 * KIB]
    try:
        sizes = [parse_size(part.strip()) for part in text.split(",")]
    except ConfigError as error:
        raise ConfigError(f"--sizes {error.where}", error.what, error.mend) from None
    if 0 in sizes:
        raise ConfigError("--sizes", "a request of 0 bytes has no cost", "give sizes above 0")
    return sizes


def _row(
    curve: CostCurve, size_bytes: int, least: int | None, most: int | None, burst: int | None
) -> dict[str, Any]:
    cost = curve.cost(size_bytes)
    hundredths = round(100 * cost, 4)
    row: dict[str, Any] = {
        "size_bytes": size_bytes,
        "cost": int(hundredths) if hundredths.is_integer() else hundredths,
    }
    rates = {"min": least, "max": most, "burst": burst}
    row |= {f"{name}_iops": rate and round(rate / cost) for name, rate in rates.items()}
    row |= {f"{name}_bps": rate and round(rate / cost * size_bytes) for name, rate in rates.items()}
    return row


@contextmanager
def _interruptible() -> Iterator[None]:
    """End quietly, and with the terminal as it was, at SIGINT and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit from None
