"""An answer that is made once for all who ask."""

from __future__ import annotations

import msgspec

from iokeel.report.once_a_look import OnceALook


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
