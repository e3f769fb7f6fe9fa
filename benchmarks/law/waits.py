"""What is each rule worth by which a wait for a throttle isn't taken for its storage's latency?

    python -m benchmarks.law.waits [--hosts N]

Random hosts with stock QEMUs, some of whose guests come in bursts (tests/unit/core's
test_do_no_harm.py), each with one rule of core/measure/storage.py left out. Their storage is never
loaded, so nothing may be taken from any drive: a host is compared with the same one whose storage
nobody has configured. Prints a row for each rule, for storages with and without counters:

- harmed: the part of the hosts on which a drive loses more than 5 % in any 10 s;
- worst: the largest loss;
- missed: the part of the seconds in which a storage has more than 1.25 times its target, on hosts
  of the same guests whose storage is too small for them. This is what the rules cost.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np

from iokeel.core import decide  # noqa: F401  all of the law is loaded
from iokeel.core.measure import storage
from iokeel.core.values.limits import BUCKET_S
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Fleet
from testing.sim.storage import Disk, steady
from tests.unit.core.test_do_no_harm import HARM, SECONDS, guests_of, harm

_CAPACITIES, _TARGETS_MS = (500, 2_000, 10_000), (2.0, 8.0)
_REAL_CAPACITIES, _CONFIGURED = (800, 1500, 3000), (0.7, 1.0, 2.0)
_BEGUN_S, _MISSED = 10, 1.25
_device_latency_s = storage.device_latency_s
_may_have_waited = storage._may_have_waited


def _believed(known: Any, activity: Any) -> float | None:
    did = known.measured.rates
    return None if did is None else did.mean_device_latency_s


def _is_held(known: Any, did: Any) -> bool:
    return did.throttled is None and bool(known.demand.backlogged or known.sent.group)


def _waited_in_this_interval(known: Any, did: Any) -> bool:
    used_s = max((storage._used_s(limits, did) for limits in known.sent.ours), default=0.0)
    return did.throttled is None and (_is_held(known, did) or used_s > BUCKET_S)


def _without_device(known: Any, activity: Any) -> float | None:
    did = known.measured.rates
    if did is None or storage._may_have_waited(known, did):
        return None
    return _device_latency_s(known, activity)


def _without_queue(known: Any, activity: Any) -> float | None:
    did = known.measured.rates
    if did is None or not storage._may_have_waited(known, did):
        return _believed(known, activity)
    return _device_latency_s(known, activity)


def _tells(_policy: Any, known: Any) -> bool:
    return storage.device_latency_s(known, None) is not None


def _mean(pairs: Any) -> float | None:
    pairs = [*pairs]
    weight = fsum(each for _, each in pairs)
    return fsum(value * each for value, each in pairs) / weight if weight else None


#: The functions that replace others of the module, by the rule that is left out.
RULES: dict[str, tuple[str, Callable[..., Any]] | None] = {
    "none": None,
    "all: a wait is latency": ("device_latency_s", _believed),
    "who doesn't fill a bucket can't have waited": ("_may_have_waited", _is_held),
    "... in two intervals": ("_may_have_waited", _waited_in_this_interval),
    "the device's time for who may have waited": ("device_latency_s", _without_device),
    "no longer than all requests took": ("device_latency_s", _without_queue),
    "no counters: a calm drive counts": ("_tells", _tells),
    "no counters: the median of VMs": ("weighted_median", _mean),
}


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Leave a rule out, wherever its function was imported."""
    if (replaced := RULES[rule]) is None:
        yield
        return
    name, by = replaced
    old = getattr(storage, name)
    modules = [m for m in [*sys.modules.values()] if getattr(m, name, None) is old]
    for module in modules:
        setattr(module, name, by)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, old)


def losses(rule: str, counted: bool, hosts: int) -> list[float]:
    """Return the largest loss on each host without a rule."""
    with without(rule):
        return [
            harm(seed, False, _CAPACITIES[seed % 3], _TARGETS_MS[seed % 2], counted)
            for seed in range(hosts)
        ]


def missed(rule: str, counted: bool, hosts: int) -> float:
    """Return the part of the seconds in which a storage that is too small misses its target."""
    with without(rule):
        return sum(_missed(seed, counted) for seed in range(hosts)) / hosts


def _missed(seed: int, counted: bool) -> float:
    chance = random.Random(seed)
    capacity = chance.choice(_REAL_CAPACITIES)
    policy = StoragePolicy(round(capacity * chance.choice(_CONFIGURED)), chance.choice(_TARGETS_MS))
    held = [guest for guest in guests_of(seed, False) if guest.policy is not None]
    guests = [replace(guest, cached=False) for guest in held]
    disk = Disk(policy, steady(capacity), 0.0005, 2.0, counted=counted)
    waits_ms = Fleet(guests, [disk], seed=seed).run(SECONDS).wait_s[_BEGUN_S:, 0] * 1000
    return float(np.mean(waits_ms > _MISSED * (policy.latency_target_ms or 0.0)))


def main() -> None:
    """Print a row for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=40)
    hosts = parser.parse_args().hosts
    for counted in (True, False):
        print(f"{'with counters' if counted else 'without counters':44} harmed  worst  missed")
        for rule in RULES:
            found = losses(rule, counted, hosts)
            harmed = sum(loss > HARM for loss in found) / hosts
            over = missed(rule, counted, hosts)
            print(f"{rule:44} {harmed:6.1%} {max(found):6.0%} {over:7.1%}", flush=True)


if __name__ == "__main__":
    main()
