"""The command `iokeel fleet`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import RenderableType

from iokeel.cli.fleet_setting import (
    ask,
    budgets_of,
    known,
    read_tables,
    set_budgets,
    view_of,
)
from iokeel.cli.fleet_tables import (
    BudgetShares,
    FleetStatus,
    HostForgotten,
    complaints,
    host_rows,
    host_table,
    share_rows,
    share_table,
    storage_rows,
    storage_table,
    tenant_rows,
    tenant_table,
)
from iokeel.cli.options import ConfigOption, JsonOption, out
from iokeel.cli.output import say, say_json
from iokeel.core.fleet.claims import EVEN_RATIO, Budget
from iokeel.core.fleet.ledger import Word
from iokeel.errors import ConfigError, IokeelError
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.operator import BudgetView, Change, FleetView
from iokeel.words.quoting import shown, shown_path

app = typer.Typer(add_completion=False, no_args_is_help=True)
tenant_app = typer.Typer(add_completion=False, no_args_is_help=True)
storage_app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(tenant_app, name="tenant")
app.add_typer(storage_app, name="storage")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
StorageArgument = Annotated[
    str, typer.Argument(metavar="STORAGE", help="Its name on all hosts, such as rbd:pool.")
]
FloorsOption = Annotated[
    float | None,
    typer.Option(
        "--floors", min=0, max=1, help="The part to divide evenly as hosts' floors (0.1)."
    ),
]
HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host's name in the fleet.")]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show the changes; exit status 1 if there are any.")
]


@app.callback()
def fleet() -> None:
    """See and set the limits and storages that hypervisors share through etcd."""


@tenant_app.callback()
def tenant() -> None:
    """Set the limits of tenants over all hosts together."""


@storage_app.callback()
def storage() -> None:
    """Set the capacities of storages that many hosts use."""


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the state of etcd, the size of the fleet, and its problems."""
    view = view_of(config)
    said = [*complaints(view)]
    tenants = [row for row in tenant_rows(view) if row["limit_iops"] is not None]
    storages = [row for row in storage_rows(view) if row["capacity_iops"] is not None]
    if as_json:
        values = FleetStatus(
            member=view.member,
            hosts=[*view.hosts],
            tenants=len(tenants),
            storages=len(storages),
            complaints=said,
        )
        say_json(values)
        return
    say(
        f"etcd {view.member}: {len(view.hosts)} hosts are there, {len(tenants)} tenants,"
        f" {len(storages)} storages"
    )
    say(*said)


@app.command()
def hosts(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show each host: its presence, its amounts and its charges."""
    view = view_of(config)
    rows = host_rows(view)
    _show(rows, host_table(rows) if rows else "no hosts", complaints(view), as_json)


@app.command()
def tenants(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show each tenant: its limit over all hosts, and their amounts of it."""
    view = view_of(config)
    rows = tenant_rows(view)
    _show(rows, tenant_table(rows) if rows else "no tenants", complaints(view), as_json)


@app.command()
def storages(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show each shared storage: its capacity, its latency, and hosts' amounts of it."""
    view = view_of(config)
    rows = storage_rows(view)
    _show(rows, storage_table(rows) if rows else "no storages", complaints(view), as_json)


@app.command()
def why(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tenant or a storage.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain each host's part of a tenant's limit or of a shared storage.

    If both have this name, explain both.
    """
    view = view_of(config)
    found = known(view, name, *Kind, charged=True)
    if as_json:
        say_json([_share_values(*item) for item in found.items()])
        return
    for budget, there in found.items():
        rows = share_rows(there)
        say(_about(budget, there, sum(row["charged_iops"] for row in rows)))
        if rows:
            out.print(share_table(rows))
    say(*complaints(FleetView(view.member, view.hosts, found)))


def _share_values(budget: BudgetId, known: BudgetView) -> BudgetShares:
    """Return hosts' parts of a budget for --json."""
    amount, hosts = known.counts.amount if known.counts else None, share_rows(known)
    if budget.kind is Kind.TENANT:
        return BudgetShares(tenant=budget.name, limit_iops=amount, hosts=hosts)
    return BudgetShares(storage=budget.name, capacity_iops=amount, hosts=hosts)


def _about(name: BudgetId, known: BudgetView, charged: int) -> str:
    """Return a budget in a sentence or two. charged: to all hosts."""
    budget = known.counts
    if budget is None:
        return f"{name} isn't set in the fleet"
    usable = budget.amount
    text = f"has a limit of {usable} and a reservation of {budget.reservation} over all hosts"
    if budget.shared is not None:
        text, learnt = f"has a capacity of {budget.amount}", known.ledger and known.ledger.learnt
        if known.ledger and learnt:
            usable = known.ledger.amount
            text += f", corrected by its latency to {learnt.ratio:.2f} of that; {usable} are usable"
    return (
        f"{name} {text}; no host is charged for {max(0, usable - charged)} of"
        f" that. Coordinator: {known.leader or 'none'}"
    )


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
    """State what became of a host that doesn't report, so that others get its charge.

    QEMU keeps the limits of a dead agent. If the host's guests still run with
    these limits, tenants may exceed their limits, and storages their capacity.
    """
    if at_floor == off_for_good:
        raise ConfigError(
            "forget",
            "doesn't know the state of the host",
            "give either --at-floor or --off-for-good",
        )
    word = Word.AT_FLOOR if at_floor else Word.OFF_FOR_GOOD
    if not yes:
        what = (
            "has an agent that runs and can't reach etcd, or is turned off"
            if at_floor
            else "has no running guest, and never comes back with its state"
        )
        _confirm(
            f"Is it certain that {host} {what}?"
            " If not, tenants may exceed their limits, and storages their capacity"
        )
    told = ask(config, lambda o: o.forget(host, word))
    if not told:
        raise IokeelError(f"host {shown(host)}", "is charged nothing", "see `iokeel fleet hosts`")
    if as_json:
        tenants = [budget.name for budget in told if budget.kind is Kind.TENANT]
        storages = [budget.name for budget in told if budget.kind is Kind.STORAGE]
        values = HostForgotten(host=host, word=word.value, tenants=tenants, storages=storages)
        say_json(values, indent=None)
    else:
        on = ", ".join(map(str, told))
        say(f"{host}: recorded for {on}; this takes effect in 15 to 30 s")


def _confirm(question: str) -> None:
    """Ask. Raises IokeelError if the answer isn't yes."""
    try:
        sure = typer.confirm(question, err=True)
    except typer.Abort:  # such as at the end of input
        typer.echo(err=True)
        sure = False
    if not sure:
        raise IokeelError("forget", "nobody has said that it is certain", "answer y, or give --yes")


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
    floors: FloorsOption = None,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a tenant's limit and reservation over all hosts together.

    Options that aren't given stay as they are.
    """
    view = view_of(config, new_too=True)
    there = view.of(Kind.TENANT).get(name)
    old = there.budget if there is not None else None
    before = {}
    if old is not None:
        before = {"limit": old.amount, "reservation": old.reservation, "weight": old.weight}
    table = _merged(before, limit=limit, reservation=reservation, weight=weight)
    with _said_of(f"tenant set {shown_path(name)}"):
        budgets = budgets_of({"tenants": {name: table}}, "tenant set", _floors(old, floors))
    set_budgets(config, view, budgets, dry_run=dry_run, as_json=as_json)


def _merged(before: Mapping[str, object], **given: object) -> dict[str, object]:
    """Return the given values, and the former ones for those that aren't given."""
    merged = {key: before.get(key) if value is None else value for key, value in given.items()}
    return {key: value for key, value in merged.items() if value is not None}


@contextmanager
def _said_of(command: str) -> Iterator[None]:
    """Name a command and its option in an error, in place of a table and its key."""
    try:
        yield
    except ConfigError as error:
        key = re.search(r"\] (?!source)(\w+)$", error.where)
        option = f" --{key[1].replace('_', '-')}" if key else ""
        raise ConfigError.of(error, f"{command}{option}") from None


def _floors(before: Budget | None, given: float | None) -> float:
    """Return the ratio of even floors: the given one, else the former one, else the default."""
    if given is not None:
        return given
    return EVEN_RATIO if before is None else before.even_ratio


@tenant_app.command()
def remove(
    name: TenantArgument,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a tenant out: each host then goes by its own configuration."""
    known(view := view_of(config), name, Kind.TENANT)
    wanted = {BudgetId(Kind.TENANT, name): None}
    set_budgets(config, view, wanted, dry_run=dry_run, as_json=as_json)


@storage_app.command("set")
def set_storage(
    name: StorageArgument,
    capacity: Annotated[
        int | None, typer.Option("--capacity", help="Its capacity, in normalized iops.")
    ] = None,
    latency_target_ms: Annotated[
        float | None,
        typer.Option("--latency-target-ms", help="The mean latency above which it is overloaded."),
    ] = None,
    least_ratio: Annotated[
        float | None,
        typer.Option("--least-ratio", help="How far latency may lower it, as a ratio (0.25)."),
    ] = None,
    most_ratio: Annotated[
        float | None,
        typer.Option("--most-ratio", help="How far latency may raise it, as a ratio (1.5)."),
    ] = None,
    floors: FloorsOption = None,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the capacity of a storage, which all hosts that use it then share.

    Options that aren't given stay as they are.
    """
    view = view_of(config, new_too=True)
    there = view.of(Kind.STORAGE).get(name)
    old = there.budget if there is not None else None
    before = {}
    if old is not None and old.shared is not None:
        before = {"capacity": old.amount, **old.shared._asdict()}
    table = _merged(
        before,
        capacity=capacity,
        latency_target_ms=latency_target_ms,
        least_ratio=least_ratio,
        most_ratio=most_ratio,
    )
    own_name = name
    if ":" in name:
        own_name, table["source"] = "shared", name
    with _said_of(f"storage set {shown_path(name)}"):
        budgets = budgets_of({"storage": {own_name: table}}, "storage set", _floors(old, floors))
    set_budgets(config, view, budgets, dry_run=dry_run, as_json=as_json)


@storage_app.command("remove")
def remove_storage(
    name: StorageArgument,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a storage out: each host then goes by its own configuration."""
    known(view := view_of(config), name, Kind.STORAGE)
    wanted = {BudgetId(Kind.STORAGE, name): None}
    set_budgets(config, view, wanted, dry_run=dry_run, as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="TOML tables of tenants and storages; - for stdin."),
    ],
    remove_others: Annotated[
        bool, typer.Option("--remove-others", help="Remove those that aren't in FILE.")
    ] = False,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set tenants and storages from a file, and show the changes.

    A second time changes nothing.
    """
    values, where = read_tables(file)
    if unknown := sorted(values.keys() - {"tenants", "storage"}):
        raise ConfigError(
            f"{where}, {shown(unknown[0])[1:-1]}",
            "not known here",
            "write [tenants.NAME] and [storage.NAME] only",
        )
    wanted: dict[BudgetId, Budget | None] = {**budgets_of(values, where)}
    view = view_of(config, new_too=True)
    for budget, there in view.budgets.items():
        kept, new = there.budget, wanted.get(budget)
        if kept is not None and new is not None:
            wanted[budget] = new._replace(even_ratio=kept.even_ratio)
        elif remove_others and kept is not None:
            wanted[budget] = None
    set_budgets(config, view, wanted, dry_run=dry_run, as_json=as_json)


@app.command()
def history(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the changes that operators have made, the newest last."""
    changes: list[Change] = ask(config, lambda o: o.history())
    if as_json:
        say_json([change._asdict() for change in changes])
        return
    for change in changes:
        say(f"{change.at}  {change.by}  {change.what}")


def _show(rows: object, table: RenderableType, complaints: Iterable[str], as_json: bool) -> None:
    if as_json:
        say_json(rows)
        return
    out.print(table)
    say(*complaints)
