"""Which log lines are worth writing."""

import pytest

from iokeel.words.log_lines import Sparing


def test_each_subject_has_its_lines_and_has_them_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Sparing(2, 60.0)
    assert [lines.may("a") for _ in range(4)] == [True, True, False, False]
    assert lines.may("b")
    now += 59
    assert not lines.may("a")
    now += 1
    assert [lines.may("a") for _ in range(3)] == [True, True, False]


def test_subjects_whose_time_is_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Sparing(1, 60.0)
    for number in range(100_000):
        now += 1
        assert lines.may(number)
    assert len(lines._told) <= 1000
