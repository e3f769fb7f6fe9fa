"""Programs that run for minutes, and clean up after themselves when they are interrupted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence

#: What a program may take to clean up.
_END_S = 60


def child(words: Sequence[str], stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. If this one is interrupted, interrupt it and wait for its end.

    It has a session of its own, so that a terminal's Ctrl-C doesn't reach it twice.
    """
    with subprocess.Popen(words, stdout=stdout, text=True, start_new_session=True) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, said)
