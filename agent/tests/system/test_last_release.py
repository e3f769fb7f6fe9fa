"""The agent of the last release and this one, by turns on one host with guests that run.

Each goes on with what the other has left. A monitor of each QEMU's own tells what holds its guest.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from iokeel.core.values.policy import BUILTIN_CLASSES
from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.migration import Watch
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.packages.last_release import environment
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy

TICKS = "iokeel_agent_tick_seconds_count"
pytestmark = pytest.mark.timeout(600)

FLAVOR = """<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:name>web-1</nova:name><nova:flavor name="io1.large" id="1"/></nova:instance>"""
RULES = '[[rules]]\nname = "io1"\nwhen = {"nova.flavor" = "io1.*"}\nclass = "bronze"\n'
TENANT = "[tenants.acme]\nlimit = 5000\n"
FORMER = {"total_iops_sec": 3000}
BYTES = 2_000_000
# What the last release knows; what only a rule holds; and a bound that it doesn't know.
GUESTS = {
    "own": policy('target="vda" limit="400" burst="800"', tenant="acme"),
    "ruled": FLAVOR,
    "bytes": policy(f'target="vda" max-bytes="{BYTES}"'),
}
MOST_RULED = BUILTIN_CLASSES["bronze"].burst or BUILTIN_CLASSES["bronze"].limit or 0


class Former(HostAgent):
    """The last release's agent, in the environment of this one."""

    def __init__(self, host: Host, tables: str) -> None:
        super().__init__(host, tables)
        self.environment = environment()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with libvirtd. What one agent leaves the other doesn't depend on its kind."""
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


@pytest.fixture
def guests(host: Host) -> Iterator[dict[str, Watch]]:
    """The watches of guests that run."""
    with ExitStack() as stack:
        watches = {}
        for name, metadata in GUESTS.items():
            disk, monitor = make_disk(host.dir / f"{name}.raw", 1), host.dir / f"{name}.watch"
            drives = [DiskSpec("vda", disk, FORMER)]
            vm = Vm.boot(host, name, drives, ready=False, policy=metadata, monitor=monitor)
            stack.enter_context(vm)
            watches[name] = stack.enter_context(Watch(monitor))
        yield watches


def is_held(name: str, limits: dict[str, int]) -> bool:
    """Return whether limits hold a guest to what it may do."""
    if name == "bytes":
        return 0 < limits.get("total_bytes_sec", 0) <= BYTES
    return highest_rate(limits) <= TOLERANCE * (MOST_RULED if name == "ruled" else 800)


@contextmanager
def never_lifted(guests: dict[str, Watch], *names: str) -> Iterator[None]:
    """See that guests are held at each moment, many times a second."""
    begun = {name: len(guests[name].limits) for name in names}
    yield
    for name in names:
        samples = guests[name].limits[begun[name] :]
        assert len(samples) > 50
        assert [limits for limits in samples if not is_held(name, limits)] == []


def check(agent: HostAgent) -> tuple[int, str]:
    """Return the exit status of the agent's check before it is started, and what it says."""
    command = [*agent.command, "agent", "--check", "--config", str(agent.config)]
    with agent.popen(command, env=agent.environment, stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_an_upgrade_and_the_way_back_never_lift_a_limit(
    host: Host, guests: dict[str, Watch]
) -> None:
    agent: HostAgent
    with Former(host, TENANT) as agent:
        eventually(lambda: is_held("own", blkdeviotune(host, "own")))
        earned = eventually(lambda: agent.drive("own")["credit_s"] > 3 and agent.drive("own"))
        agent.stop()
    # The upgrade. What the former one saved holds, and so do its limits.
    with never_lifted(guests, "own"), HostAgent(host, TENANT + RULES) as agent:
        taken = eventually(lambda: agent.drive("own"))
        assert (taken["tenant"], taken["credit_s"] >= earned["credit_s"] - 1) == ("acme", True)
        eventually(lambda: all(is_held(name, blkdeviotune(host, name)) for name in GUESTS))
        assert not agent.says("own/vda: limits set: the policy is new")
        agent.stop(signal.SIGKILL)
    # The way back. With rules in the configuration, the former one is refused before it starts.
    status, said = check(Former(host, TENANT + RULES))
    assert (status, "rules: not known" in said) == (2, True)
    with never_lifted(guests, *GUESTS), Former(host, TENANT) as agent:
        assert eventually(lambda: agent.drive("own"))["credit_s"] > 0
        eventually(lambda: [agent.drive(name) for name in GUESTS])
        ticks = agent.metrics()[TICKS]
        eventually(lambda: agent.metrics()[TICKS] > ticks + 3)
        assert not agent.says("vda: limits set: the drive no longer has a policy")
        agent.stop()
    # The newer one goes on with what it had, and knows what each guest had before.
    with never_lifted(guests, *GUESTS), HostAgent(host, TENANT + RULES) as agent:
        eventually(lambda: agent.drive("ruled")["limit_iops"])
        agent.stop()
    command = [*agent.command, "agent", "--release", "--config", str(agent.config)]
    assert "3 drives have their former limits again" in host.run(command).stdout
    assert {name: blkdeviotune(host, name) for name in GUESTS} == dict.fromkeys(GUESTS, FORMER)
