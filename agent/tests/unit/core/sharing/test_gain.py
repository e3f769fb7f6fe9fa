"""The gain of a cut: the room in the loop of follow and gain_after, on disks by formula."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from statistics import fmean

import pytest

from iokeel.core.sharing.capacity import FIRST_ROOM_RATIO, follow
from iokeel.core.sharing.gain import FREE, LESS, LONGEST_HOLD_S, Gain, gain_after

_LEAST_ROOM = 0.05
Strain = Callable[[float, int], float]


def rooms(strain: Strain, seconds: int, active: Callable[[int], bool]) -> Iterator[float]:
    """Yield the room of each second. strain: by the room and the second."""
    room, gain = FIRST_ROOM_RATIO, FREE
    for second in range(seconds):
        yield room
        worst = strain(room, second) if active(second) else None
        after = follow(room, worst, used=room, short=True, loaded=True, elapsed_s=1.0)
        was, gain = gain, gain_after(gain, room, worst, 1.0)
        room = max(_LEAST_ROOM, gain.bound(after, was))


def in_bursts(second: int) -> bool:
    return second % 8 < 2


def always(second: int) -> bool:
    return True


def flat(room: float, second: int) -> float:
    """A latency that no cut changes."""
    return 2.0


def queue(base: float) -> Strain:
    """One queue (M/M/1): the latency is `base` of the target if nobody else is there."""
    return lambda room, second: base / (1 - 0.95 * room)


def noisy(strain: Strain, seed: int) -> Strain:
    draw = random.Random(seed)
    return lambda room, second: strain(room, second) * draw.lognormvariate(0.0, 0.15)


@pytest.mark.parametrize("active", [always, in_bursts])
def test_a_cut_that_gains_nothing_is_taken_back(active: Callable[[int], bool]) -> None:
    seen = list(rooms(flat, 3000, active))
    assert min(seen) > 0.9 * LESS * LESS * FIRST_ROOM_RATIO
    assert fmean(seen[:200]) > 0.8
    assert fmean(seen[1000:]) > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_latency_that_no_cut_changes_costs_little(seed: int) -> None:
    seen = list(rooms(noisy(flat, seed), 3000, in_bursts))
    assert fmean(seen[1000:]) > 0.8


@pytest.mark.parametrize("active", [always, in_bursts])
@pytest.mark.parametrize("base", [0.3, 0.6, 0.8, 0.9])
def test_a_target_that_can_be_had_is_reached(base: float, active: Callable[[int], bool]) -> None:
    strain = queue(base)
    seen = list(rooms(strain, 600, active))
    assert strain(seen[-1], 0) == pytest.approx(1, abs=0.1)
    assert strain(fmean(seen[300:]), 0) < 1.1


@pytest.mark.parametrize("base", [1.2, 2.0, 4.0])
def test_a_target_below_the_latency_alone_gets_the_most_throughput_over_latency(
    base: float,
) -> None:
    strain = queue(base)
    seen = list(rooms(strain, 3000, in_bursts))[1000:]
    power = [room / strain(room, 0) for room in seen]
    best = 1 / (4 * 0.95 * base)  # at half of the queue's capacity
    assert fmean(power) > 0.85 * best


def test_a_hold_ends_once_latency_gets_worse() -> None:
    def later_worse(room: float, second: int) -> float:
        return 2.0 if second < 300 else (room / 0.15) ** 2

    seen = list(rooms(later_worse, 700, in_bursts))
    assert fmean(seen[200:300]) > 0.8
    assert seen[-1] == pytest.approx(0.15, rel=0.1)


def test_holds_last_longer_each_time() -> None:
    room, gain = FIRST_ROOM_RATIO, FREE
    pauses = []
    for _ in range(20_000):
        after = follow(room, 2.0, used=room, short=True, loaded=True, elapsed_s=1.0)
        held = gain.hold_s
        # the latency rises as soon as the others have more than they began with
        strain = 2.0 if room <= FIRST_ROOM_RATIO else 20.0
        was, gain = gain, gain_after(gain, room, strain, 1.0)
        if gain.hold_s > held:
            pauses.append(gain.pause_s)
        room = max(_LEAST_ROOM, gain.bound(after, was))
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_HOLD_S


def test_nothing_is_learnt_while_nobody_is_active() -> None:
    assert gain_after(FREE, 0.5, None, 1.0) == FREE
    held = Gain(least=0.5, hold_s=2.0)
    assert gain_after(held, 0.5, None, 1.0) == Gain(least=0.5, hold_s=1.0)
