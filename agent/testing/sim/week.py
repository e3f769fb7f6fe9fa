"""A week of a host: daily shifts, a noisy neighbour, and a drive that was sold too little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from iokeel.core.values.counters import DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, Division, DriveState, Measured, StorageState
from iokeel.core.values.storage import StoragePolicy
from testing.sim.loads import DAY_S, Load, loads
from testing.sim.recording import Recording

NOISY, SMALL = DriveId("noisy", "vda"), DriveId("small", "vda")
_OTHERS = 198
_SOLD_TOO_LITTLE = DrivePolicy(limit=300)
_NOISE_IOPS, _NOISY_ABOVE_IOPS = 20_000.0, 900
# A few of the others have a promise, and half of it while the storage is slow; some have a limit
# that they never come near.
_PROMISED = DrivePolicy(reservation=400)
_ROOMY = DrivePolicy(limit=100_000)


@dataclass
class Week:
    """What was recorded: each drive's rate in each step; but NOISY's and SMALL's.

    throttled_s: how long SMALL was held. missed_s: how long the storage "ssd" was slow. took: what
    NOISY did in that time, in normalized operations.
    """

    demands: dict[DriveId, list[float]]
    noisy: list[float]
    throttled_s: float = 0.0
    missed_s: float = 0.0
    took: float = 0.0


def record_week(recording: Recording, step_s: float, seconds: float = 7 * DAY_S) -> Week:
    """Record a week, or so many seconds of it. step_s: 60 at most."""
    steps = round(seconds / step_s)
    demands = {
        DriveId(f"vm{n:03}", "vda"): [*islice(load.demands(step_s), steps)]
        for n, load in enumerate(loads(5, _OTHERS))
    }
    noisy = [
        _NOISE_IOPS if base > _NOISY_ABOVE_IOPS else base
        for base in islice(Load(1, 300, spread=0.8).demands(step_s), steps)
    ]
    small = [*islice(Load(2, 400).demands(step_s), steps)]
    policies = {
        drive: _PROMISED if number < 3 else _ROOMY for number, drive in enumerate([*demands][:23])
    }
    calm = StorageState(StoragePolicy(capacity=200_000), promised=20_000.0)
    slow = replace(calm, division=Division(200_000.0, kept=0.5))
    week = Week(demands, noisy)
    for number in range(steps):
        is_slow = noisy[number] == _NOISE_IOPS
        drives = {
            drive: _state(its[number], policies.get(drive), is_slow=is_slow)
            for drive, its in demands.items()
        }
        rate = min(small[number], 300.0)
        week.throttled_s += step_s * (rate >= 0.95 * 300)
        held = Demand(throttled_s=week.throttled_s)
        small_measured = Measured(rate=rate)
        drives[SMALL] = DriveState(_SOLD_TOO_LITTLE, "ssd", measured=small_measured, demand=held)
        drives[NOISY] = DriveState(storage="ssd", measured=Measured(rate=noisy[number]))
        week.missed_s += step_s * is_slow
        week.took += step_s * noisy[number] * is_slow
        recording.sample(drives, step_s, {"ssd": slow if is_slow else calm})
    recording.stop()
    return week


def _state(rate: float, policy: DrivePolicy | None, *, is_slow: bool) -> DriveState:
    if policy is not _PROMISED:
        return DriveState(policy, "ssd", measured=Measured(rate=rate))
    measured = Measured(
        rates=Rates(1.0, Flow(rate, 4096 * rate), Flow(0, 0), None, None), rate=rate
    )
    return DriveState(policy, "ssd", measured=measured, demand=Demand(backlogged=is_slow))
