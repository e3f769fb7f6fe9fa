"""A drive below its own limit does what it would do without iokeel.

But for what a promise to another drive takes, and only on evidence from the storage itself. On the
simulated hosts here the storage is never loaded, so nothing may be taken, whatever its capacity is
believed to be. A host is compared with the same one whose storage nobody has configured.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import STEP_S, Fleet
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.storage import Array, Disk, steady

SECONDS, BEGUN_S, WINDOW_S, HARM = 40, 2, 10, 0.05
REAL_CAPACITY = 200_000
KINDS = (Kind.of(4), Kind.of(16), Kind.of(8, 0.5))


def bursts(kind: Kind, depth: int) -> Iterator[Phase]:
    """Yield volleys with pauses, which wait for their throttle though the mean is below it."""
    while True:
        yield Phase(STEP_S, inf, kind, depth)
        yield idle(STEP_S)


def guests_of(seed: int, exact: bool) -> list[Guest]:
    """Return guests with policies, and neighbours without one. Some read what is cached."""
    chance = random.Random(seed)
    guests = []
    for n in range(chance.randint(2, 5)):
        limit = chance.choice((500, 1000, 3000))
        policy = DrivePolicy(
            limit=limit,
            reservation=chance.choice((0, 0, limit // 2)),
            latency_target_ms=chance.choice((None, None, 8.0)),
            weight=chance.choice((50, 100, 400)),
        )
        kind, depth = chance.choice(KINDS), chance.choice((4, 16, 64))
        rate = chance.choice((inf, 0.8 * limit, 0.3 * limit))
        steadily = iter([Phase(inf, rate, kind, depth)])
        phases = chance.choice((steadily, steadily, bursts(kind, depth)))
        cached = chance.random() < 0.2
        guests.append(Guest(f"g{n}", policy, phases, exact=exact, cached=cached))
    for n in range(chance.randint(0, 2)):
        load = iter([idle(chance.randint(0, 15)), Phase(inf, inf, chance.choice(KINDS), 8)])
        guests.append(Guest(f"stranger{n}", None, load, exact=exact, cached=chance.random() < 0.7))
    return guests


def served(seed: int, exact: bool, policy: StoragePolicy, counted: bool) -> Array:
    """Return the normalized rate of each drive with a policy, a row a second."""
    guests = guests_of(seed, exact)
    disk = Disk(policy, steady(REAL_CAPACITY), 0.0002, 1.0, counted=counted)
    record = Fleet(guests, [disk], seed=seed).run(SECONDS)
    return record.served[:, [guest.policy is not None for guest in guests]]


def windows(rates: Array) -> Array:
    """Return the mean of each WINDOW_S seconds in a row."""
    settled = rates[BEGUN_S:]  # a drive that has never made a request may make a few at first
    sums = np.cumsum(np.vstack((np.zeros(rates.shape[1]), settled)), axis=0)
    means: Array = (sums[WINDOW_S:] - sums[:-WINDOW_S]) / WINDOW_S
    return means


def harm(seed: int, exact: bool, capacity: int, target_ms: float | None, counted: bool) -> float:
    """Return the largest part of a drive's rate that a storage's configuration takes."""
    free = windows(served(seed, exact, StoragePolicy(), counted))
    held = windows(served(seed, exact, StoragePolicy(capacity, target_ms), counted))
    return float(np.max(1 - held / np.maximum(free, 1.0)))


@settings(max_examples=40)
@example(42021, False, 500, 8.0, False)  # the calmest drive's own waits look like a full storage
@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from((500, 2000, 10_000)),
    st.sampled_from((2.0, 8.0)),
    st.booleans(),
)
def test_a_storage_that_isnt_loaded_takes_nothing_from_any_drive(
    seed: int, exact: bool, capacity: int, target_ms: float, counted: bool
) -> None:
    assert harm(seed, exact, capacity, target_ms, counted) <= HARM
