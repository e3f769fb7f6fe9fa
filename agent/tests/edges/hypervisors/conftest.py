"""A QMP server with one drive, and a source that is connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iokeel.hypervisors.qmp.source import QmpSource
from testing.hypervisors.qmp_server import QmpServer
from testing.waiting import until
from tests.edges.hypervisors.sources import running, vm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a short path, for sockets."""
    assert len(str(tmp_path)) < 90
    return tmp_path


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[QmpServer]:
    made = await QmpServer(folder / "db1.qmp").start()
    yield made
    await made.stop()


@pytest.fixture
async def source(server: QmpServer) -> AsyncIterator[QmpSource]:
    """A source that is connected to the server."""
    async with running(vm(server.path)) as made:
        await until(made.vms)
        yield made
