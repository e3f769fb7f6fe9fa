"""Programs, files and the clock of a guest, through its agent's standard commands."""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testing.lab.guests.qga import GuestAgent

CHUNK_BYTES = 1 << 20
_CLOCK_SAMPLES = 20


@dataclass(frozen=True)
class Finished:
    """A program of the guest that has ended. A signal's number is in `signal`, else None."""

    status: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes


# A guest measures its processor's clock as it boots, and may take it to be five times too fast if
# the machine is busy just then. These clocks have a known rate.
_SOUND_CLOCK = """
cd /sys/devices/system/clocksource/clocksource0
for clock in hpet acpi_pm; do
    grep -qw $clock available_clocksource && echo $clock >current_clocksource && exit
done
"""


class ClockOffset(NamedTuple):
    """How far the guest's clock is ahead of the host's, and the error of that."""

    seconds: float
    error_s: float


class Programs:
    """Runs programs and moves files in one guest."""

    def __init__(self, agent: GuestAgent) -> None:
        self.agent = agent

    def exec(
        self, program: str | Sequence[str], timeout: float = 60, check: bool = True
    ) -> Finished:
        """Run a program in the guest, wait for its end, and return what it wrote.

        program: a shell script, or the words of one command.
        timeout: seconds; past it TimeoutError is raised, and the program runs on.
        Raises RuntimeError with its own words when it fails, unless check is False.
        """
        finished = self.wait(self.start_program(program), timeout)
        if check and finished.status != 0:
            said = (finished.stderr or finished.stdout).decode(errors="replace").strip()
            raise RuntimeError(f"in the guest: {program}: {said or finished}")
        return finished

    def start_program(self, program: str | Sequence[str]) -> int:
        """Start a program in the guest and return its process id there; see exec()."""
        path, *words = ["sh", "-c", program] if isinstance(program, str) else program
        started = self.agent.call("guest-exec", path=path, arg=words, **{"capture-output": True})
        pid: int = started["pid"]
        return pid

    def wait(self, pid: int, timeout: float = 60) -> Finished:
        """Wait for a program that start_program() started. It can be waited for once.

        timeout: seconds; past it TimeoutError is raised.
        """
        deadline = time.monotonic() + timeout
        pause_s = 0.02
        while not (state := self.agent.call("guest-exec-status", pid=pid))["exited"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"in the guest: process {pid} still runs after {timeout} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.5)  # each poll costs the guest some processor time
        out, err = (base64.b64decode(state.get(f"{name}-data", "")) for name in ("out", "err"))
        return Finished(state.get("exitcode"), state.get("signal"), out, err)

    def read(self, path: str) -> bytes:
        """Return the content of a file in the guest."""
        handle = self.agent.call("guest-file-open", path=path, mode="r")
        content = bytearray()
        try:
            while True:
                part = self.agent.call("guest-file-read", handle=handle, count=CHUNK_BYTES)
                content += base64.b64decode(part["buf-b64"])
                if part["eof"]:
                    return bytes(content)
        finally:
            self.agent.call("guest-file-close", handle=handle)

    def write(self, path: str, content: bytes) -> None:
        """Write a file in the guest."""
        handle = self.agent.call("guest-file-open", path=path, mode="w")
        try:
            for start in range(0, len(content), CHUNK_BYTES):
                part = base64.b64encode(content[start : start + CHUNK_BYTES]).decode()
                self.agent.call("guest-file-write", **{"handle": handle, "buf-b64": part})
        finally:
            self.agent.call("guest-file-close", handle=handle)

    def _use_sound_clock(self) -> None:
        """Have the guest use a clock whose rate doesn't depend on the host's load."""
        self.exec(_SOUND_CLOCK)

    def clock_offset(self) -> ClockOffset:
        """Return how far the guest's clock is ahead of this machine's.

        Subtract it from a guest's epoch time to get the host's. The sample with the shortest round
        trip counts; half of the trip is the error. Clocks drift: ask again.
        """
        best = ClockOffset(0.0, float("inf"))
        for _ in range(_CLOCK_SAMPLES):
            before = time.time_ns()
            guest = self.agent.call("guest-get-time")
            after = time.time_ns()
            error_s = (after - before) / 2e9
            if error_s < best.error_s:
                best = ClockOffset((guest - (before + after) / 2) / 1e9, error_s)
        return best
