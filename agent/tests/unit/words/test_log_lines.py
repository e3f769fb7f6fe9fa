"""Lines of the log, whatever others say."""

from __future__ import annotations

import io
import logging

import pytest

from iokeel.words.log_lines import LogLines

# Terminals act upon these, or end the line, or turn it round.
NASTY = "\x1b[2J\x07\r\n\x85\x9b31m\u2028\u2029\u202e\u2066\u200b\x7f\t"


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLines())
    logger = logging.Logger("iokeel.some")
    logger.addHandler(handler)
    return logger, stream


def test_a_record_is_one_line_that_no_terminal_acts_upon(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = log
    logger.error("drive %s: refused", f"vda{NASTY}Größe")
    assert stream.getvalue() == (
        r"ERROR iokeel.some: drive vda\x1b[2J\x07\r\n\x85\x9b31m\u2028\u2029\u202e\u2066\u200b\x7f"
        "\\tGröße: refused\n"
    )


@pytest.mark.parametrize("forged", ["ERROR iokeel.daemon: all is lost", f"x{NASTY}"])
def test_no_line_of_a_traceback_is_taken_for_a_record(
    log: tuple[logging.Logger, io.StringIO], forged: str
) -> None:
    logger, stream = log
    try:
        raise ValueError(f"a\n{forged}")
    except ValueError:
        logger.exception("please report it")
    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first == "ERROR iokeel.some: please report it"
    assert rest[0] == "| Traceback (most recent call last):"
    assert all(line.startswith("| ") and line.isprintable() for line in rest)
