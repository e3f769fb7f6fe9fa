"""The history of weeks waits for a disk that is full or read-only, and says so once."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.recorder import Recorder
from iokeel.store.weeks import HOUR_S, read
from testing.host.storage import mounted
from testing.sim.recording import FIRST, Recording

DRIVES = {DriveId(f"vm{number}", "vda"): 10.0 * number for number in range(100)}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own."""
    with mounted(tmp_path / "state", "state", "-t", "tmpfs", "-o", "size=1m") as folder:
        yield folder


@pytest.fixture
def recording(small: Path, tmp_path: Path) -> Recording:
    """A recorder whose file is on the small disk, and whose journals aren't."""
    made = Recording(tmp_path)
    made.recorder = Recorder(small / "history.db", tmp_path / "agent.sock", Metrics(), 336)
    return made


def _hours(folder: Path) -> list[int]:
    return [hour.hour for hour in read(folder / "history.db", 0, 10**9)]


@pytest.mark.parametrize("begins_full", [True, False])
def test_hours_wait_for_room(
    small: Path, recording: Recording, caplog: pytest.LogCaptureFixture, begins_full: bool
) -> None:
    caplog.set_level(logging.INFO)
    if not begins_full:
        recording.run(HOUR_S, DRIVES, step_s=20)
    with (small / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    recording.run(3 * HOUR_S, DRIVES, step_s=20)
    (line,) = caplog.messages
    assert line.startswith(f"{small / 'history.db'}: can't be written: ")
    assert line.endswith("; free some space, or let the agent write it; until then hours wait in"
                         " memory")  # fmt: skip
    told = {hour.hour for hour in recording.recorder.hours(0, 10**9)}
    assert told >= {FIRST, FIRST + 1, FIRST + 2}
    (small / "filler").unlink()
    recording.run(180, DRIVES, step_s=20)
    assert caplog.messages[1:] == [f"{small / 'history.db'}: the history is written again"]
    assert _hours(small) == [*range(FIRST, FIRST + 3 + (not begins_full))]


def test_hours_wait_for_a_disk_that_is_read_only(
    small: Path, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    recording.run(HOUR_S, DRIVES, step_s=20)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    recording.run(3 * HOUR_S, DRIVES, step_s=20)
    assert len(caplog.messages) == 1
    told = [hour.hour for hour in recording.recorder.hours(0, 10**9)]
    assert told == [*range(FIRST, FIRST + 4)]
    subprocess.run(["mount", "-o", "remount,rw", small], check=True)
    recording.stop()
    assert _hours(small) == [*told, FIRST + 4]


@pytest.mark.parametrize("away", ["away", "file"])
def test_journals_that_cant_be_written_cost_no_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    (tmp_path / "file").touch()
    recording = Recording(tmp_path)
    recording.recorder = Recorder(
        tmp_path / "history.db", tmp_path / away / "agent.sock", Metrics(), 336
    )
    recording.run(2 * HOUR_S, DRIVES, step_s=20)
    recording.stop()
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path / away}: can't be written: no")
    assert "an agent that is killed forgets the hour" in line
    assert _hours(tmp_path) == [FIRST, FIRST + 1, FIRST + 2]
