"""Hosts for the tests of exact mode."""

from collections.abc import Iterator

import pytest

from testing.agents import HostAgent
from testing.lab.host import Host

# A fixture
from tests.system.test_below_qemu import folder as folder


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


@pytest.fixture
def agent(host: Host) -> Iterator[HostAgent]:
    with HostAgent(host) as running:
        yield running
