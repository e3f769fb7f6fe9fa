"""Sources of VMs by QMP, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st

from iokeel.config.settings import VmConfig
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.source import QmpSource

GOLD = DrivePolicy(limit=1000)
VDA = DriveId("db1", "vda")
#: For calls that have to succeed, on a busy machine too.
PATIENCE_S = 30.0
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@contextlib.asynccontextmanager
async def running(
    *vms: VmConfig, ran: Mapping[str, Process] | None = None
) -> AsyncIterator[QmpSource]:
    """Run a source of these VMs. ran: as in QmpSource."""
    source = QmpSource(vms, ran)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def vm(path: Path, name: str = "db1", policy: DomainPolicy | None = None) -> VmConfig:
    return VmConfig(name, path, policy or DomainPolicy({}, GOLD))


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= level]
