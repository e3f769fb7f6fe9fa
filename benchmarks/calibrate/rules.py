"""The rates and latencies of a simulated disk by its rules (disksim/twin.py).

Rates and times are the disk's own: its slowdown is not in them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import mean

from benchmarks.calibrate.rows import Mix
from benchmarks.disksim.twin import Command, Device, Flash, Hdd, serve
from iokeel.core.measure.storage import storage_strain
from iokeel.core.values.curve import KIB
from iokeel.core.values.storage import StorageActivity, StoragePolicy
from testing.lab.disks.disksim import params

DEEPEST = 512  # requests always in the disk
LOAD_RATIO = 0.8  # of saturation
# Requests whose rate is taken, and those before, until a write buffer is full.
COUNTED, BEFORE = 3_000, 1_000
BUFFERS_BEFORE = 3


def closed_rate(disk: str, kind: str, size: int, depth: int) -> float:
    """Return the rate with `depth` random requests always in the disk."""
    device = _device(disk)
    dice = random.Random(f"{disk} {kind} {size} {depth}")
    before = BEFORE
    if kind == "write":
        before += int(BUFFERS_BEFORE * device.p["buffer_bytes"]) // size
    ends: list[int] = []
    finish = device.finish

    def submit() -> None:
        device.queue.append(_command(disk, kind, size, device.now, dice))
        device.let_in()

    def finished(command: Command, when: int) -> None:
        finish(command, when)
        ends.append(when)
        if len(ends) < before + COUNTED:
            device.at(when, submit)

    device.finish = finished  # type: ignore[method-assign]
    for _ in range(depth):
        device.at(0, submit)
    device.run_until(float("inf"))
    ends.sort()
    last = before + COUNTED - 1
    return 1e9 * (last - before) / (ends[last] - ends[before])


def open_latency_s(disk: str, kind: str, rates: Mapping[int, float]) -> float:
    """Return the mean latency of random requests that arrive at random.

    rates: requests a second, by their size in bytes.
    """
    dice = random.Random(f"{disk} {kind} {rates}")
    at, commands = 0.0, []
    for _ in range(BEFORE + 10 * COUNTED):
        at += dice.expovariate(sum(rates.values()))
        (size,) = dice.choices(list(rates), list(rates.values()))
        commands.append(_command(disk, kind, size, int(1e9 * at), dice))
    serve(params(disk), commands)
    return mean(command.done - command.arrival for command in commands[BEFORE:]) / 1e9


def mixes(disk: str) -> list[Mix]:
    """Return mixes of 4 KiB and larger reads at 80 % of saturation.

    The target is the latency of 4 KiB reads alone at that load.
    """
    capacity = closed_rate(disk, "read", 4 * KIB, DEEPEST)
    target_s = open_latency_s(disk, "read", {4 * KIB: LOAD_RATIO * capacity})
    policy = StoragePolicy(round(capacity), 1e3 * target_s)
    found = []
    for size in (16 * KIB, 64 * KIB, 256 * KIB, KIB**2):
        cost = capacity / closed_rate(disk, "read", size, DEEPEST)
        for part in (0.0, 0.1, 0.5, 0.9):
            small = LOAD_RATIO * capacity * part
            large = LOAD_RATIO * capacity * (1 - part) / cost
            latency_s = open_latency_s(disk, "read", {4 * KIB: small, size: large})
            mean_cost = (small + large * cost) / (small + large)
            served_cost = (small + large * cost**2) / (small + large * cost)
            activity = StorageActivity(1.0, 1.0, latency_s, 1.0, 1.0, mean_cost, served_cost)
            strain = storage_strain(policy, activity)
            assert strain is not None
            found.append(Mix(size, part, 1e3 * latency_s, strain))
    return found


def _device(disk: str) -> Device:
    values = params(disk)
    return Hdd(values) if "rpm" in values else Flash(values)


def _command(disk: str, kind: str, size: int, now: int, dice: random.Random) -> Command:
    blocks = int(params(disk)["capacity"]) // size
    return Command(kind, False, dice.randrange(blocks) * size, size, now)
