"""Names the abilities of a QEMU that the control law makes use of."""

from __future__ import annotations

from typing import NamedTuple


class Abilities(NamedTuple):
    """The abilities of a QEMU's throttle groups; stock QEMU has none of them.

    cost_curve: they charge each request by a cost curve, and limit the credit after idleness.
    keeps_levels: a change of limits leaves the buckets' levels as they are. Stock QEMU empties the
    buckets, so each change lets a tenth of a second through for nothing. counts: they tell their
    charges, waits and request sizes. splits: large reads may wait in pieces. measures_latency: they
    tell how long requests took below them. bounds_in_flight: they bound the requests there.
    dialect: the words in which an edge speaks to the QEMU; they mean nothing to the law.
    """

    cost_curve: bool = False
    keeps_levels: bool = False
    counts: bool = False
    splits: bool = False
    measures_latency: bool = False
    bounds_in_flight: bool = False
    dialect: str = ""


#: What isn't known is None, and never STOCK: stock limits are looser by up to 8 % with any QEMU.
STOCK = Abilities()
