"""Answers that are made once for all who ask."""

from __future__ import annotations

import msgspec

from iokeel.report.shared_answers import SharedAnswers


def test_an_answer_is_made_once_for_all_until_the_agent_looks_again() -> None:
    looks, made = 0, 0

    def make() -> list[msgspec.Struct]:
        nonlocal made
        made += 1
        return []

    shared = SharedAnswers(lambda: looks)
    assert [shared.get("vms", make) for _ in range(5)] == [b"[]"] * 5
    assert made == 1
    shared.get("storages", make)
    assert made == 2
    looks = 1
    shared.get("vms", make)
    assert made == 3
