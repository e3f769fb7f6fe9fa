"""Fixtures of several edges' tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import QEMU, Agent, free_port, start_qemu

VM = """
[[vm]]
name = "db1"
socket = "{}"
tenant = "acme"
[vm.drives.vda]
limit = 400
reservation = 100
"""


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder with a short path, for sockets, that all users can enter."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def vm(short_folder: Path) -> Iterator[str]:
    """The configuration of a running VM: a QEMU with the drives vda and vdb, without limits."""
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not there")
    process, path = start_qemu(short_folder)
    try:
        yield VM.format(path)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def agent(vm: str) -> Iterator[Agent]:
    """An agent with one VM and a port for metrics. Tests leave it running."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        Path(name).chmod(0o755)
        running = Agent(Path(name), vm, f'metrics_address = "127.0.0.1:{free_port()}"')
        with running:
            yield running
