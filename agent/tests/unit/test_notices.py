"""What an operator is told once, when it begins."""

from __future__ import annotations

import logging

import pytest

from iokeel.errors import IokeelError
from iokeel.notices import Notices


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
