"""The command `iokeel`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from iokeel import __version__, client, tables
from iokeel.config import DEFAULT_CONFIG, load
from iokeel.curve import KIB, CostCurve
from iokeel.errors import ConfigError, ConnectionLost, IokeelError, PolicyError
from iokeel.metadata import domain_targets, missing_targets, parse_policy
from iokeel.units import parse_size

app = typer.Typer(
    help="Keep every guest's disk on an even keel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policy_app = typer.Typer(help="Check policies.", no_args_is_help=True)
curve_app = typer.Typer(help="Show cost curves.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")
app.add_typer(curve_app, name="curve")
out = Console(highlight=False)

NOT_SO, USAGE = 1, 2
_TOP_INTERVAL_S = 1.0

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help=f"Configuration (default {DEFAULT_CONFIG}).")
]
SocketOption = Annotated[
    Path,
    typer.Option("--socket", envvar="IOKEEL_SOCKET", help="The agent's socket."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_SOCKET = Path("/run/iokeel/agent.sock")


def main() -> None:
    """Run the command; errors are one line on stderr, and an exit status of 1 or 2."""
    try:
        app()
    except IokeelError as error:
        print(f"iokeel: {error}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, ConfigError) else NOT_SO)
    except BrokenPipeError:
        sys.exit(NOT_SO)


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
    vm: Annotated[str | None, typer.Argument(help="Only this VM.")] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what each drive does against its limits, and each VM's sums."""
    reports = client.vms(socket)
    if vm is not None:
        reports = [report for report in reports if report.domain == vm]
        if not reports:
            raise IokeelError(vm, "no such running VM", "see `iokeel stats`")
    if as_json:
        print(json.dumps([report.model_dump() for report in reports], indent=2))
    else:
        out.print(tables.drives(reports))
        for line in tables.complaints(reports):
            out.print(line, markup=False)


@app.command()
def top(socket: SocketOption = DEFAULT_SOCKET) -> None:
    """Show the same as stats, live, until interrupted."""
    with _interruptible(), Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(tables.drives(client.vms(socket)), refresh=True)
            time.sleep(_TOP_INTERVAL_S)


@app.command()
def why(
    vm: str,
    drive: Annotated[str | None, typer.Argument()] = None,
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
            print(f"  {number}. {line}")


@policy_app.command("check")
def policy_check(
    what: Annotated[str, typer.Argument(metavar="FILE|VM", help="A file, - or a running VM.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Check the policy in a file (domain XML, or the policy alone) or of a running VM."""
    if what != "-" and not Path(what).exists():
        _check_running(what, socket, as_json)
        return
    name = "standard input" if what == "-" else what
    try:
        text = sys.stdin.buffer.read() if what == "-" else Path(what).read_bytes()
    except OSError as error:
        raise ConfigError(name, error.strerror or str(error), "give a readable file") from None
    classes = load(config, default_missing=True).classes
    policy = parse_policy(text, classes, name)
    if policy is None:
        raise PolicyError(name, "has no policy", "put an iokeel:policy element in its metadata")
    targets = domain_targets(text)
    missing = missing_targets(policy, targets) if targets else ()
    if missing:
        raise PolicyError(
            name,
            f"the policy names {', '.join(missing)}, which the domain has not",
            f"it has {', '.join(targets)}",
        )
    if as_json:
        print(json.dumps(tables.policy_values(policy, targets), indent=2))
    else:
        out.print(tables.policy(policy, targets))


def _check_running(vm: str, socket: Path, as_json: bool) -> None:
    try:
        report = next((report for report in client.vms(socket) if report.domain == vm), None)
    except ConnectionLost as error:
        raise IokeelError(vm, f"no such file, and {error}") from None
    if report is None:
        raise IokeelError(vm, "no such file and no such running VM", "see `iokeel stats`")
    if as_json:
        print(json.dumps({"domain": vm, "error": report.policy_error}))
    if report.policy_error is not None:
        raise IokeelError(report.policy_error, "")
    if not as_json:
        print(f"{vm}: its policy is valid")


@curve_app.command("table")
def curve_table(
    least: Annotated[int | None, typer.Option("--min", min=1, help="Reservation.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Limit.")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="Burst.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Such as 4k,8k,1m.")] = None,
    writes: Annotated[bool, typer.Option("--writes", help="The curve for writes.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a request of each size costs, and the rates that normalized rates make of it.

    Costs are in hundredths of a 4 KiB read.
    """
    model = load(config, default_missing=True).model
    chosen = _sizes(sizes)
    rows = [_row(model.write if writes else model.read, s, least, most, burst) for s in chosen]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        out.print(tables.curve(rows))


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return [*(kib * KIB for kib in range(4, 257)), 512 * KIB, 1024 * KIB]
    sizes = [parse_size(part.strip()) for part in text.split(",")]
    if 0 in sizes:
        raise ConfigError("--sizes", "a request of 0 bytes has no cost", "give sizes above 0")
    return sizes


def _row(
    curve: CostCurve, size_bytes: int, least: int | None, most: int | None, burst: int | None
) -> dict[str, Any]:
    cost = curve.cost(size_bytes)
    row: dict[str, Any] = {"size_bytes": size_bytes, "cost": round(100 * cost, 4)}
    rates = {"min": least, "max": most, "burst": burst}
    row |= {f"{name}_iops": rate and round(rate / cost) for name, rate in rates.items()}
    row |= {f"{name}_bps": rate and round(rate / cost * size_bytes) for name, rate in rates.items()}
    return row


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit from None


if __name__ == "__main__":
    main()
