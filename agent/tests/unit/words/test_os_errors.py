"""The reasons of failed calls, in words."""

import errno
import socket

import pytest

from iokeel.words.quoting import reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "no such file or"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (OSError(errno.EADDRINUSE, "error while binding ('::', 80)"), "address already in use"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service"),
        (OSError("timed out"), "timed out"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_a_reason_can_stand_within_a_sentence(error: OSError | ValueError, said: str) -> None:
    assert reason(error).startswith(said)
