"""Hosts for the tests of exact mode."""

from collections.abc import Iterator

import pytest

from testing.lab.host import Host
from tests.system.rig import Agent, running_agent


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


@pytest.fixture
def agent(host: Host) -> Iterator[Agent]:
    with running_agent(host) as running:
        yield running
