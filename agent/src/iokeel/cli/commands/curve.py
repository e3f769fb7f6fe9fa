"""The command `iokeel curve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, TypeAlias

import typer

from iokeel.cli.cells import PlainTable, layouts
from iokeel.cli.options import ConfigOption, JsonOption, out
from iokeel.cli.output import say_json
from iokeel.config.load import load
from iokeel.config.settings import Config
from iokeel.core.measure.zeroes import PAID_S
from iokeel.core.values.curve import KIB, CostCurve, CostModel
from iokeel.core.values.policy import MOST_IOPS
from iokeel.errors import ConfigError
from iokeel.words.quoting import did_you_mean, shown
from iokeel.words.units import parse_size, size

# docs/policy.md has the same at length.
_OTHERS = f"""\
Zeroes cost what data of their size does; stock QEMU forgives what takes over {PAID_S:.0f} s.
Flushes cost nothing. Discards cost nothing by iotune or block_set_io_throttle;
at a throttle filter, stock QEMU charges them as data, and a patched one at most
as the largest size of the curve."""

Row: TypeAlias = dict[str, float | None]
app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def curve() -> None:
    """Show cost curves."""


@app.command()
def table(
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
    storage: Annotated[
        str | None, typer.Option(help="The curve of a storage in the configuration.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a request of each size costs, and how many a second a normalized rate allows.

    Costs are in hundredths of a 4 KiB read.
    """
    rates = {"min": least, "max": most, "burst": burst}
    _check_order(rates)
    chosen = _sizes(sizes)
    model = _model(load(config, default_missing=True), storage)
    cost_curve = model.write if writes else model.read
    rows = [_row(cost_curve, size_bytes, rates) for size_bytes in chosen]
    if as_json:
        say_json(rows)
    else:
        out.print(curve_table(rows, [name for name, rate in rates.items() if rate is not None]))
        out.print(f"\n{_OTHERS}", highlight=False, style="dim")


def _model(config: Config, storage: str | None) -> CostModel:
    """Return a storage's cost model; the default one if it has none, or if none is named."""
    if storage is None:
        return config.model
    if storage not in config.storages:
        what = f"{shown(storage)} is not in the configuration"
        raise ConfigError("--storage", what, did_you_mean(storage, config.storages))
    return config.storages[storage].policy.model or config.model


def _check_order(rates: Mapping[str, int | None]) -> None:
    """Raise ConfigError if a rate is below one that comes before it."""
    given = [(name, rate) for name, rate in rates.items() if rate is not None]
    for (lower, low), (upper, high) in pairwise(given):
        if high < low:
            what = f"{high} is below --{lower} {low}"
            raise ConfigError(
                f"--{upper}", what, "give --min, --max and --burst in ascending order"
            )


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return [*(kib * KIB for kib in range(4, 257)), 512 * KIB, 1024 * KIB]
    try:
        sizes = [parse_size(part.strip()) for part in text.split(",")]
    except ConfigError as error:
        raise ConfigError.of(error, f"--sizes {error.where}") from None
    if 0 in sizes:
        raise ConfigError("--sizes", "a request of 0 bytes has no cost", "give sizes above 0")
    return sizes


def _row(cost_curve: CostCurve, size_bytes: int, rates: Mapping[str, int | None]) -> Row:
    cost = cost_curve.cost(size_bytes)
    hundredths = round(100 * cost, 4)
    row: Row = {
        "size_bytes": size_bytes,
        "cost": int(hundredths) if hundredths.is_integer() else hundredths,
    }
    row |= {f"{name}_iops": rate and round(rate / cost) for name, rate in rates.items()}
    row |= {f"{name}_bps": rate and round(rate / cost * size_bytes) for name, rate in rates.items()}
    return row


def curve_table(rows: Sequence[Row], names: Sequence[str]) -> PlainTable:
    """Return the rows, with the rates that were asked for."""
    rates = [f"{name} {what}" for what in ("iops", "rate") for name in names]
    cells = [
        (
            size(row["size_bytes"] or 0),
            f"{row['cost']:g}",
            *(f"{row[f'{name}_iops']}" for name in names),
            *(f"{size(row[f'{name}_bps'] or 0)}/s" for name in names),
        )
        for row in rows
    ]
    return PlainTable(("size", "cost (1/100)", *rates), cells, layouts(*reversed(rates)))
