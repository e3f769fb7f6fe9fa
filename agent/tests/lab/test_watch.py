"""The watch of a migrating guest's limits never ends without a word."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

import pytest

from testing.agents import start_qemu
from testing.hypervisors.qmp_client import QmpClient
from testing.lab.guests.migration import Watch
from testing.waiting import eventually


@dataclass
class Running:
    """A QEMU that runs, with two drives."""

    process: subprocess.Popen[bytes]
    qmp: QmpClient
    watched: Path


@pytest.fixture
def qemu() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="iokeel-") as folder:  # short, for sockets
        process, path = start_qemu(Path(folder))
        try:
            with QmpClient(path) as qmp:
                yield Running(process, qmp, path.with_name("watch.sock"))
        finally:
            process.kill()
            process.communicate()


def test_a_watch_that_cannot_tell_the_drive_fails(qemu: Running) -> None:
    qemu.qmp.ask("cont")
    with pytest.raises(ValueError, match="too many values"), Watch(qemu.watched) as watch:
        eventually(watch.ended)


def test_a_watch_whose_qemu_ends_fails(qemu: Running) -> None:
    qemu.qmp.ask("human-monitor-command", **{"command-line": "drive_del d-vdb"})
    qemu.qmp.ask("cont")
    with pytest.raises((OSError, JSONDecodeError)):
        kill_while_watched(qemu)


def kill_while_watched(qemu: Running) -> None:
    with Watch(qemu.watched) as watch:
        eventually(lambda: watch.limits)
        qemu.process.kill()
        eventually(watch.ended)
