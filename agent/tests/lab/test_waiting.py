"""Waiting ends with an answer, or says why there is none."""

import subprocess
from pathlib import Path

import pytest

from testing.processes import end, ready
from testing.waiting import eventually, until


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, "", None, 7, 8])
    assert eventually(lambda: next(answers)) == 7


def test_a_failure_is_tried_again_and_raised_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        eventually(file.read_text, 0.1)
    with pytest.raises(AssertionError, match=r"^it is there: not so within 0.1 s$"):
        eventually(file.exists, 0.1, what="it is there")


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    with subprocess.Popen(["true"]) as process, pytest.raises(AssertionError, match="has ended"):
        eventually(lambda: False, 60, process=process)


async def test_the_event_loop_runs_meanwhile() -> None:
    answers = iter([0, 0, 1])
    assert await until(lambda: next(answers)) == 1


def test_a_program_that_does_not_start_says_why() -> None:
    words = ["sh", "-c", "echo no disk >&2; exit 1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    with pytest.raises(RuntimeError, match=r"^it doesn't start: no disk$"):
        ready(process, lambda: False, "it")


def test_a_program_is_ended() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    end(process)
    assert process.returncode == -15
