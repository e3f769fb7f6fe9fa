"""The demo's outcome for a reader: a table of all phases, and a few lines on what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from benchmarks.demo.limits_in_force import Sample, most_passed
from benchmarks.demo.scenario import Bounds
from benchmarks.demo.verdict import Outcome, Rows, Verdict

_COLOURS = {"kept": "green", "missed": "red", "unclear": "yellow"}


def table(held: Rows, static: Rows | None, bounds: Bounds) -> Table:
    """Return a row for each drive and phase. static: the same under static limits, if run."""
    shown = Table(
        title="Each drive's normalized rate over its limit, from fio's log in the guests",
        caption=(
            f"back: seconds from a shift until the rate stays within {bounds.within_ratio:.0%}\n"
            f"mean: after the first {bounds.settled_s:.0f} s    worst: of any one second"
        ),
    )
    for heading in ("drive", "phase"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("back", "mean", "worst", *["static\nmean", "static\nworst"] * bool(static)):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("iokeel", no_wrap=True)
    for drive, rows in held.items():
        for i, row in enumerate(rows):
            beside = []
            if static is not None:
                other = static[drive][i]
                beside = [f"{other.did_mean_ratio:.0%}", f"{other.did_worst_ratio:.0%}"]
            colour = _COLOURS[row.verdict]
            shown.add_row(
                drive if i == 0 else "",
                row.span.phase,
                f"{row.back_s} s",
                "-" if row.mean_ratio is None else f"{row.mean_ratio:.1%}",
                f"{row.worst_ratio:.0%}",
                *beside,
                f"[{colour}]{row.verdict}[/]",
            )
        shown.add_section()
    return shown


def lines(verdict: Verdict, limits: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """Yield what the verdict is, and what the machine did to the run.

    limits: those in force, by guest.
    """
    passed = [(name, most_passed(samples)) for name, samples in limits.items()]
    if shown := ", ".join(f"{name} {most:.1%}" for name, most in passed if most is not None):
        yield (
            f"By QEMU's own count, the most that it let through in a second: {shown} of the limit."
            " Fio's log may show more, because a busy guest sees completions late."
        )
    if any(seconds >= 0.5 for seconds in verdict.held_up_s.values()):
        guests = ", ".join(f"{name} {s:.1f} s" for name, s in verdict.held_up_s.items())
        yield (
            "This machine was busy and kept guests from asking for all that they were allowed:"
            f" {guests}. That isn't iokeel's doing, so it doesn't count."
        )
    if verdict.unclear:
        places = "; ".join(f"{name}, {row.span.phase}" for name, row in verdict.unclear)
        yield f"Unclear, because the guest asked for too little: {places}."
    for name, row in verdict.missed:
        yield f"[red]Missed:[/] {name}, {row.span.phase}: {', '.join(row.misses)}."
    if verdict.outcome is Outcome.MISSED:
        yield "[bold red]iokeel missed a limit.[/]"
    elif verdict.outcome is Outcome.UNCLEAR:
        yield "[bold yellow]No verdict: run it again when this machine is less busy.[/]"
    elif verdict.unclear:
        yield "[bold green]iokeel kept every limit that could be judged.[/]"
    else:
        yield "[bold green]iokeel kept every limit.[/]"
