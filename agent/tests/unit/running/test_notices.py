"""What an operator is told once, when it begins."""

from __future__ import annotations

import logging

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import State
from iokeel.errors import IokeelError
from iokeel.running.notices import Notices


def test_each_time_that_the_state_cant_be_saved_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices({})
    full = IokeelError("state.db", "can't be written: disk is full", "free some space")
    for error in (None, full, full, None, None, full):
        notices.tell_saved(error)
    again = "the state is saved again"
    assert caplog.messages == [str(full), again, str(full)]


def test_a_vm_that_is_not_served_for_its_name_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notices = Notices({})
    assert [notices.tell_namesakes(n) for n in ((), {"db1"}, {"db1", "web1"}, {"db1"})] == [
        0, 1, 1, 0,
    ]  # fmt: skip
    assert [message.split(":")[0] for message in caplog.messages] == ["VM db1", "VM web1"]


def test_a_failure_of_the_law_that_lasts_is_told_again_each_hour(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    notices = Notices({})
    error = ValueError("no")
    failing = State(failures={DriveId("db1", "vda"): error, "sda": error, None: error})
    new = []
    for _ in range(3700):
        now += 1
        new.append(notices.tell(failing))
    assert (new[0], sum(new)) == (3, 3), "each failure counts once"
    places = [message.split(": the control law failed")[0] for message in caplog.messages]
    assert places == 2 * ["db1/vda", "storage sda", "shares of storages and tenants"]


def test_a_vm_with_absurd_counters_is_told_each_hour_and_each_drive_counts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    notices = Notices({})
    drives = [DriveId("db1", "vda"), DriveId("db1", "vdb"), DriveId("web1", "vda")]
    for _ in range(3700):
        now += 1
        assert notices.tell_absurd(drives) == 3
    assert [message.split(":")[0] for message in caplog.messages] == ["db1/vda", "web1/vda"] * 2
