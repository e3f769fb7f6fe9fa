"""Hosts and guests for the system tests: real libvirtd, real QEMU, real fio."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.lab.needs import missing
from tests.system.rig import policy

if lacking := missing():
    pytest.skip(f"system tests need {lacking}", allow_module_level=True)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host with libvirtd: this machine's own, and Debian 13's."""
    if request.param == "bookworm":
        made = Host.bookworm(hooks=PROJECT / "libvirt-hooks")
    else:
        requirements = PROJECT / "agent/requirements.lock"
        made = Host.trixie(hooks=PROJECT / "libvirt-hooks", requirements=requirements)
    with made:
        made.start_libvirtd()
        yield made


@pytest.fixture(scope="module")
def disk(host: Host) -> Path:
    """An image full of data."""
    return make_disk(host.dir / "disk.raw", 64)


@pytest.fixture(scope="module")
def guest(host: Host, disk: Path) -> Iterator[Vm]:
    """A running guest with a policy on its one drive."""
    drives = [DiskSpec("vda", disk)]
    with Vm.boot(host, "db1", drives, policy=policy('target="vda" limit="2000"')) as vm:
        yield vm


@pytest.fixture
def agent(host: Host) -> Iterator[HostAgent]:
    """A running agent. Its log is shown if the test fails."""
    with HostAgent(host) as running:
        yield running
