"""How often the agent does what others ask for."""

import time

import pytest

from iokeel.hypervisors.pace import Pace


def test_what_is_asked_for_without_end_is_done_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("iokeel.hypervisors.pace.time.monotonic", lambda: now)
    pace = Pace()
    assert [pace.wait_s("db1") for _ in range(5)] == pytest.approx([0, 0, 0, 1, 2])
    assert pace.wait_s("web") == 0  # which asks for the first time
    now += 60
    assert [pace.wait_s("db1") for _ in range(4)] == pytest.approx([0, 0, 0, 1])
    pace.forget("db1")
    assert pace.wait_s("db1") == 0
