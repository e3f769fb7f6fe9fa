"""What the page begins with: how often iokeel is ahead, and a row for each question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.bench.controllers import NONE, PATCHED_QEMU, STOCK_QEMU, title
from benchmarks.bench.report.beside import Both
from benchmarks.bench.report.verdict import Verdict, verdicts
from benchmarks.bench.scenario import Suite

#: After the title of a scenario whose result has a caveat.
_CAVEAT = " *"
_OVER_BFQ = "iokeel-bfq"


@dataclass(frozen=True)
class Ours:
    """iokeel on one QEMU. figures: of each way to run it there, the best first.

    sign: of the first way; "" if there is no verdict. elsewhere: in how many other cases that way
    is behind.
    """

    figures: str
    sign: str
    elsewhere: int

    @property
    def note(self) -> str:
        """What stands after its sign."""
        cases = "case" if self.elsewhere == 1 else "cases"
        return f" (- in {self.elsewhere} other {cases})" if self.elsewhere else ""


@dataclass(frozen=True)
class Row:
    """A question, and its headline's medians. mark: after its title, if it has a caveat."""

    suite: Suite
    mark: str
    figure: str
    none: str
    other: str
    stock: Ours
    patched: Ours


def overview(both: Both) -> Row:
    """Return a scenario's row."""
    found, other = verdicts(both.real), both.best_other
    return Row(
        both.real.suite,
        _CAVEAT if both.real.result and both.real.suite.caveat else "",
        both.real.shown[0].title,
        both.median(NONE),
        f"{title(other)}: {both.median(other)}" if other else "",
        _ours(both, found, STOCK_QEMU),
        _ours(both, found, PATCHED_QEMU),
    )


def _ours(both: Both, found: Sequence[Verdict], ways: Sequence[str]) -> Ours:
    """Return the ways to run iokeel on one QEMU. found: the verdicts, the best way first."""
    judged = {one.ours: one for one in found if one.ours in ways}
    real = [way for way in ways if both.real.spread(both.real.shown[0], way)]
    first, *others = dict.fromkeys([*judged, *real]) or ways[:1]
    text = both.median(first) + " over BFQ" * (first == _OVER_BFQ)
    for way in others:
        sign = f" ({judged[way].sign})" if way in judged else ""
        text += f"; {both.median(way)} {'over' if way == _OVER_BFQ else 'without'} BFQ{sign}"
    best = judged.get(first)
    return Ours(text, best.sign if best else "", len(best.elsewhere) if best else 0)


def sentence(rows: Sequence[Row]) -> str:
    """Return in how many questions iokeel is ahead, even and behind."""
    stock, patched = _counts(row.stock for row in rows), _counts(row.patched for row in rows)
    return (
        f"On stock QEMU, iokeel is ahead of the best other controller in {stock['+']} of the "
        f"{stock.total()} questions measured there, even in {stock['=']} and behind in "
        f"{stock['-']}; on the patched QEMU, it is ahead in {patched['+']} of {patched.total()}, "
        f"even in {patched['=']} and behind in {patched['-']}."
    )


def _counts(ours: Iterable[Ours]) -> Counter[str]:
    return Counter(one.sign for one in ours if one.sign)
