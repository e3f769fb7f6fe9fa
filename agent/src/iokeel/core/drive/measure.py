"""Brings a drive's measurements up to a new reading of its counters."""

from __future__ import annotations

from iokeel.core.counters import Counters, Rates, rates
from iokeel.core.curve import CostModel
from iokeel.core.drive.mix import NO_MIX, Mix, Noise, has_shifted, mean_mix, mix_cost, with_seen
from iokeel.core.state import Measured


def measure(
    before: Measured, reading: Counters | None, model: CostModel, *, charged: bool
) -> Measured:
    """Return the measurements after a reading; None if there was none.

    charged: QEMU has charged by our curve since the last reading, so its own count is the rate.
    """
    last = before.counters
    if last is None or reading is None or (did := rates(last, reading)) is None:
        return before._replace(counters=reading or last, rates=None, rate=None, active_ns=None)
    seen = before.mix or NO_MIX
    did = Rates(
        did.elapsed_s,
        with_seen(did.read, seen.read),
        with_seen(did.write, seen.write),
        did.read_latency_s,
        did.write_latency_s,
        did.throttled,
    )
    if charged and did.throttled is not None:
        rate = did.throttled.rate
    else:
        rate = mix_cost(model, Mix(did.read, did.write))
    if did.idle:
        idle_ns = before.idle_ns or last.at_ns
        return before._replace(
            counters=reading, rates=did, rate=rate, active_ns=None, idle_ns=idle_ns
        )
    bps = did.read.bps + did.write.bps
    size = before.size.after(bps / (did.read.raw_iops + did.write.raw_iops))
    shifted = has_shifted(before.mix, size)
    return Measured(
        counters=reading,
        rates=did,
        rate=rate,
        mix=mean_mix(None if shifted else before.mix, did),
        looks=1 if shifted else before.looks + 1,
        size=size,
        price=_price_after(before.price, bps / rate, shifted=shifted) if rate else before.price,
        active_ns=before.active_ns or reading.at_ns,  # it woke up some time before
        idle_ns=None,
    )


def _price_after(before: Noise, price: float, *, shifted: bool) -> Noise:
    """Return the noise of the price after one more look. A shift's own change is no noise."""
    return Noise(price, before.ratio) if shifted else before.after(price)
