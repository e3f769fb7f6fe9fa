"""Brings a drive's measurements up to a new reading of its counters."""

from __future__ import annotations

from collections.abc import Sequence

from iokeel.core.measure.rates import rates
from iokeel.core.measure.zeroes import still_paid, without_zeroes, zeroes_in
from iokeel.core.values.counters import NO_MIX, NS_PER_S, Counters, Mix, Rates
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.mix import flow_cost, has_changed_kind, has_shifted, mean_mix, noise_after
from iokeel.core.values.state import Measured

LOOK_AGAIN_S = 0.4
IDLE_S = 10.0
# With so few requests a second, a look may fall between two of them. It is one in the shortest
# interval, that before a second look.
_FEW_RAW_IOPS = 1.1 / LOOK_AGAIN_S


def measure(
    before: Measured,
    reading: Counters | None,
    model: CostModel,
    *,
    limit: float | None,
    starved: bool,
    charged: bool,
    separate: bool,
    in_force: Sequence[ThrottleLimits] = (),
    sent_ns: int = 0,
) -> Measured:
    """Return the measurements after a reading; None if there was none.

    limit: the rate that its limits held it to in the last interval; None if they weren't in force
    from its beginning. starved: they let hardly any of its last requests pass. charged: QEMU has
    charged by our curve since the last reading, so its own count is the rate. separate: reads and
    writes have a budget each. in_force: the limits in force since the last reading, if QEMU charges
    zeroes as data by them; sent_ns: when the last of them were made.
    """
    last, mix = before.counters, before.mix
    seen = before.rates or mix or NO_MIX
    did = None
    if last is not None and reading is not None:
        did = rates(last, reading, seen.read, seen.write)
    if did is None or last is None or reading is None:
        return before._replace(
            counters=reading or last,
            rates=None,
            rate=None,
            active_ns=None,
            budget_rate=None,
            read_rate=None,
        )
    zeroes = zeroes_in(last, reading, in_force)
    if zeroes is not None:
        did = without_zeroes(did, seen.write)
    zeroes = still_paid(before.zeroes, zeroes, sent_ns, reading.at_ns)
    if charged and did.throttled is not None:
        rate, read_rate = did.throttled.rate, did.throttled.rate_of(write=False)
    else:
        read_rate = flow_cost(model.read, did.read)
        rate = read_rate + flow_cost(model.write, did.write)
    budget_rate = larger_rate(did, model, charged=charged) if separate else rate
    raw_iops, bps = did.read.raw_iops + did.write.raw_iops, did.read.bps + did.write.bps
    if not (bps and raw_iops):  # requests without data, or parts of one, have no size
        idle_ns = before.idle_ns or last.at_ns + _owed_ns(before, limit)
        _, _, _, _, looks, looks_since_shift, size, price, active_ns, _, _, _, _ = before
        if not _may_be_between(mix, starved, reading.at_ns - idle_ns):
            active_ns = None
        return Measured(
            reading,
            did,
            rate,
            mix,
            looks,
            looks_since_shift,
            size,
            price,
            active_ns,
            idle_ns,
            budget_rate,
            zeroes,
            read_rate,
        )
    size = noise_after(before.size, bps / raw_iops)
    shifted = has_shifted(mix, size)
    begins_anew = shifted or has_changed_kind(mix, size)
    return Measured(
        reading,
        did,
        rate,
        mean_mix(None if begins_anew else mix, did),
        1 if begins_anew else before.looks + 1,
        1 if shifted else before.looks_since_shift + 1,
        size,
        noise_after(before.price, bps / rate) if rate else before.price,
        before.active_ns or reading.at_ns,  # it woke up some time before
        None,
        budget_rate,
        zeroes,
        read_rate,
    )


def _owed_ns(before: Measured, limit: float | None) -> int:
    """Return how long a drive's last requests are still to be paid for at its limit.

    If the next ones wait for that, it isn't idle.
    """
    did, rate = before.rates, before.budget_rate
    if did is None or not rate or not limit:
        return 0
    return round(max(0.0, rate / limit - 1) * did.elapsed_s * NS_PER_S)


def _may_be_between(mix: Mix | None, starved: bool, idle_ns: int) -> bool:
    """Return whether a drive may be between two requests, after so long without any."""
    if mix is None or idle_ns >= IDLE_S * NS_PER_S:
        return False
    return starved or mix.read.raw_iops + mix.write.raw_iops <= _FEW_RAW_IOPS


def operations(measured: Measured, *, charged: bool) -> tuple[float, float]:
    """Return the normalized I/O operations of the last interval, of reads and of writes.

    Its rates are known. charged: as in `measure`; then QEMU's own count has its own interval.
    """
    did, rate, read_rate = measured.rates, measured.rate, measured.read_rate
    assert did is not None
    assert rate is not None
    assert read_rate is not None
    elapsed_s = did.elapsed_s
    if charged and did.throttled is not None:
        elapsed_s = did.throttled.elapsed_s
    return read_rate * elapsed_s, max(0.0, rate - read_rate) * elapsed_s


def larger_rate(
    did: Rates, model: CostModel, *, charged: bool, parts: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the normalized rate of reads or of writes, whichever is more.

    charged: as for `measure`. parts: what reads and writes may have of a limit, by which their
    rates are divided.
    """
    read, write = parts
    if charged and did.throttled is not None:
        reads, writes = did.throttled.rate_of(write=False), did.throttled.rate_of(write=True)
    else:
        reads, writes = flow_cost(model.read, did.read), flow_cost(model.write, did.write)
    return max(reads / read, writes / write)
