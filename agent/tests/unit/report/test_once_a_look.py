"""An answer that is made once for all who ask."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from iokeel.report.http import OnceALook, OnceAWhile


class Made(msgspec.Struct):
    """An answer, with how many were made before it."""

    before: int


def test_an_answer_is_made_once_for_all_until_the_agent_looks_again() -> None:
    looks, made = 0, 0

    def make() -> Made:
        nonlocal made
        made += 1
        return Made(made - 1)

    answer = OnceALook(lambda: looks, make)
    assert [answer.get() for _ in range(5)] == [b'{"before":0}'] * 5
    looks = 1
    assert [answer.get() for _ in range(5)] == [b'{"before":1}'] * 5


async def test_metrics_are_made_once_for_all_who_ask_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made, takes_s = 100.0, 0, 0.5

    async def make() -> bytes:
        nonlocal made, now
        made += 1
        now += takes_s
        await asyncio.sleep(0)
        return b"%d" % made

    monkeypatch.setattr("time.monotonic", lambda: now)
    metrics = OnceAWhile(make)
    assert await asyncio.gather(*(metrics.get() for _ in range(5))) == [b"1"] * 5
    now += 4.9
    assert await metrics.get() == b"1", "it may take a tenth of the time"
    now += 0.1
    assert await metrics.get() == b"2"
    takes_s = 0.0
    now += 5
    assert await metrics.get() == b"3"
    now += 1
    assert await metrics.get() == b"4", "a second at least"


async def test_metrics_that_could_not_be_made_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    async def make() -> bytes:
        if now < 101:
            raise ValueError
        return b"1"

    monkeypatch.setattr("time.monotonic", lambda: now)
    metrics = OnceAWhile(make)
    with pytest.raises(ValueError):  # noqa: PT011
        await metrics.get()
    now += 1
    assert await metrics.get() == b"1"
