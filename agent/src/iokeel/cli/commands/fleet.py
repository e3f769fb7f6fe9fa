"""The command `iokeel fleet`."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import RenderableType

from iokeel.cli.fleet_tables import (
    complaints,
    host_rows,
    host_table,
    share_rows,
    share_table,
    tenant_rows,
    tenant_table,
)
from iokeel.cli.options import ConfigOption, JsonOption, out
from iokeel.config.load import load, tenants_of
from iokeel.config.validation import validated
from iokeel.core.fleet.claims import EVEN_RATIO, Budget
from iokeel.core.fleet.ledger import Word
from iokeel.errors import ConfigError, IokeelError, PolicyError
from iokeel.fleet.operator import Change, FleetView, Operator, difference, operator
from iokeel.words.os_errors import reason
from iokeel.words.quoting import did_you_mean, shown, shown_path

app = typer.Typer(add_completion=False, no_args_is_help=True)
tenant_app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(tenant_app, name="tenant")
T = TypeVar("T")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host's name in the fleet.")]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change; exit status 1 if anything.")
]


@app.callback()
def fleet() -> None:
    """See and set what many hypervisors share, in etcd by [fleet] of the configuration."""


@tenant_app.callback()
def tenant() -> None:
    """Set the limits of tenants over all hosts together."""


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show whether etcd answers, who is there, and what an operator has to know."""
    view = _view(config)
    said = [*complaints(view)]
    tenants = [row for row in tenant_rows(view) if row["limit_iops"] is not None]
    if as_json:
        values = {"member": view.member, "hosts": [*view.hosts], "tenants": len(tenants)}
        print(json.dumps(values | {"complaints": said}, indent=2))
        return
    print(f"etcd {view.member}: {len(view.hosts)} hosts are there, {len(tenants)} tenants")
    _say(said)


@app.command()
def hosts(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show each host: is it there, and what is it charged?"""
    view = _view(config)
    rows = host_rows(view)
    _show(rows, host_table(rows) if rows else "no hosts", (), as_json)


@app.command()
def tenants(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show each tenant: its limit over all hosts, and what of it they have."""
    view = _view(config)
    rows = tenant_rows(view)
    _show(rows, tenant_table(rows) if rows else "no tenants", complaints(view), as_json)


@app.command()
def why(name: TenantArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Explain who has how much of a tenant's limit, and why."""
    view = _view(config)
    known = {n: t for n, t in view.tenants.items() if t.budget or t.entries or t.errors}
    if name not in known:
        raise IokeelError(shown(name), "no such tenant in the fleet", did_you_mean(name, known))
    tenant = known[name]
    rows = share_rows(tenant)
    limit, reservation = (
        (tenant.budget.amount, tenant.budget.reservation) if tenant.budget else (None, 0)
    )
    if as_json:
        print(json.dumps({"tenant": name, "limit_iops": limit, "hosts": rows}, indent=2))
        return
    if limit is None:
        print(f"{name} has no limit in the fleet")
    else:
        free = limit - sum(row["charged_iops"] for row in rows)
        print(
            f"{name} has a limit of {limit} and a reservation of {reservation} over all hosts;"
            f" {max(0, free)} of it are charged to nobody. Coordinator: {tenant.leader or 'none'}"
        )
    if rows:
        out.print(share_table(rows))
    _say(complaints(FleetView(view.member, view.hosts, {name: tenant})))


@app.command()
def forget(
    host: HostArgument,
    at_floor: Annotated[
        bool,
        typer.Option(
            "--at-floor", help="Its agent runs and can't reach etcd, or the host is turned off."
        ),
    ] = False,
    off_for_good: Annotated[
        bool,
        typer.Option(
            "--off-for-good", help="No guest runs there, and it won't come back as it was."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer for a host that doesn't report, so that others get what it is charged.

    QEMU keeps the limits of an agent that is dead. If guests still run on the
    host with the limits that they had, tenants get more than their limits.
    """
    if at_floor == off_for_good:
        raise ConfigError(
            "forget", "needs a word on the host", "give either --at-floor or --off-for-good"
        )
    word = Word.AT_FLOOR if at_floor else Word.OFF_FOR_GOOD
    if not yes:
        what = (
            "runs its agent cut off from etcd, or is turned off"
            if at_floor
            else "has no running guest, and never comes back with its state"
        )
        typer.confirm(
            f"Is it sure that {host} {what}? If not, its tenants may get more than their limits",
            abort=True,
            err=True,
        )
    told = _ask(config, lambda o: o.forget(host, word))
    if not told:
        raise IokeelError(f"host {shown(host)}", "is charged nothing", "see `iokeel fleet hosts`")
    if as_json:
        print(json.dumps({"host": host, "word": word.value, "tenants": told}))
    else:
        print(f"{host} is answered for on {', '.join(told)}; it counts in 15 to 30 s")


@tenant_app.command("set")
def set_(
    name: TenantArgument,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Over all hosts, normalized iops.")
    ] = None,
    reservation: Annotated[
        int | None, typer.Option("--reservation", help="Over all hosts, normalized iops.")
    ] = None,
    weight: Annotated[int | None, typer.Option("--weight", help="On each storage.")] = None,
    floors: Annotated[
        float | None,
        typer.Option(
            "--floors", min=0, max=1, help="The part that hosts have evenly without asking (0.1)."
        ),
    ] = None,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a tenant's limit and reservation over all hosts together.

    What isn't given stays as it is.
    """
    there = _view(config, create=True).tenants.get(name)
    old = there.budget if there is not None else None
    table = {"reservation": reservation, "weight": weight, "limit": limit}
    if old is not None:
        kept = {"limit": old.amount, "reservation": old.reservation, "weight": old.weight}
        table = {key: kept[key] if value is None else value for key, value in table.items()}
        floors = old.even_ratio if floors is None else floors
    written = {key: value for key, value in table.items() if value is not None}
    budgets = _budgets(
        {"tenants": {name: written}}, "tenant set", EVEN_RATIO if floors is None else floors
    )
    _set(config, budgets, dry_run=dry_run, as_json=as_json)


@tenant_app.command()
def remove(
    name: TenantArgument,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a tenant out of the fleet: each host then goes by its own configuration."""
    known = {n for n, t in _view(config).tenants.items() if t.budget or t.errors}
    if name not in known:
        raise IokeelError(shown(name), "no such tenant in the fleet", did_you_mean(name, known))
    _set(config, {name: None}, dry_run=dry_run, as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="[tenants.NAME] tables; - for stdin.")
    ],
    remove_others: Annotated[
        bool, typer.Option("--remove-others", help="Remove the tenants that aren't in it.")
    ] = False,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set tenants from a file, and show what changes. A second time changes nothing."""
    values, where = _read(file)
    if unknown := sorted(values.keys() - {"tenants"}):
        raise ConfigError(
            f"{where}, {shown(unknown[0])[1:-1]}", "not known here", "write [tenants.NAME] only"
        )
    wanted: dict[str, Budget | None] = {**_budgets(values, where, EVEN_RATIO)}
    view = _view(config, create=True)
    for name, tenant in view.tenants.items():
        kept, new = tenant.budget, wanted.get(name)
        if kept is not None and new is not None:
            wanted[name] = new._replace(even_ratio=kept.even_ratio)
        elif remove_others and kept is not None:
            wanted[name] = None
    _set(config, wanted, dry_run=dry_run, as_json=as_json)


@app.command()
def history(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the changes that operators have made, the newest last."""
    changes: list[Change] = _ask(config, lambda o: o.history())
    if as_json:
        print(json.dumps([change._asdict() for change in changes], indent=2))
        return
    for change in changes:
        print(shown_path(f"{change.at}  {change.by}  {change.what}"))


def _ask(
    config: Path | None, question: Callable[[Operator], Awaitable[T]], *, create: bool = False
) -> T:
    """Return the answer to a question to etcd. Raises IokeelError."""
    settings = load(config).fleet
    if settings is None:
        raise ConfigError(
            str(config) if config else "the configuration", "has no [fleet]", "write it there"
        )

    async def ask() -> T:
        async with operator(settings, create=create) as there:
            return await question(there)

    return asyncio.run(ask())


def _view(config: Path | None, *, create: bool = False) -> FleetView:
    return _ask(config, lambda o: o.view(), create=create)


def _budgets(values: Mapping[str, object], where: str, floors: float) -> dict[str, Budget]:
    """Return tenants as budgets, checked as in the configuration. Raises ConfigError."""
    budgets = {}
    try:
        for name, policy in tenants_of(validated(values, where), where):
            if policy.limit is None:
                raise PolicyError(f"{where}, [tenants.{name}]", "has no limit", "give one")
            budgets[name] = Budget(policy.limit, floors, policy.reservation, policy.weight)
    except PolicyError as error:
        raise ConfigError(error.where, error.what, error.mend) from None
    return budgets


def _set(
    config: Path | None, wanted: Mapping[str, Budget | None], *, dry_run: bool, as_json: bool
) -> None:
    """Set budgets, and say what changes and what an operator has to know of that."""
    view = _view(config, create=True)
    changes = []
    for name, budget in wanted.items():
        there = view.tenants.get(name)
        old = there.budget if there is not None else None
        if old != budget:
            changes.append(difference(name, old, budget))
        claims = there.claims.values() if there is not None else ()
        if budget is not None and (asked := sum(c.reservation for c in claims)) > budget.amount:
            print(
                f"iokeel: tenant {name}: its drives reserve {asked} together, more than the limit"
                f" of {budget.amount}, so hosts' floors are scaled down",
                file=sys.stderr,
            )
    if not dry_run:
        changes = _ask(config, lambda o: o.set_budgets(wanted), create=True)
    if as_json:
        print(json.dumps({"changes": changes, "done": not dry_run}, indent=2))
    else:
        _say(changes or ["nothing to change"])
    if dry_run and changes:
        raise typer.Exit(1)


def _read(file: str) -> tuple[dict[str, object], str]:
    """Return a TOML file's values, and its name. Raises ConfigError."""
    where = "standard input" if file == "-" else shown_path(file)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        said = reason(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(where, f"can't be read, {said}", "give a readable file") from None
    try:
        return tomllib.loads(data.decode()), where
    except (ValueError, RecursionError) as error:
        what = shown(str(error))[1:-1]
        raise ConfigError(where, f"not TOML, {what}", "write [tenants.NAME] tables") from None


def _show(rows: object, table: RenderableType, complaints: Iterable[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    out.print(table)
    _say(complaints)


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
