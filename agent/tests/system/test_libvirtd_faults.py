"""A libvirtd that is absent or hangs: one clear line, limits hold, and all goes on afterwards."""

import signal

import pytest

from testing.agents import HostAgent
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)


def test_an_absent_libvirtd_is_waited_for_and_told_once(guest: Vm, host: Host) -> None:
    host.kill_libvirtd()
    try:
        with HostAgent(host) as agent:
            eventually(lambda: agent.metrics()['iokeel_agent_errors_total{kind="connect"}'] >= 2)
            complaints = [line for line in agent.log().splitlines() if "ERROR" in line]
            assert len(complaints) == 1
            assert "see that libvirtd or virtqemud runs" in complaints[0]
            host.start_libvirtd()
            eventually(lambda: agent.drive("db1")["limits_in_force"], 40)
    finally:
        host.start_libvirtd()


def test_a_libvirtd_that_hangs_loses_no_limit(guest: Vm, host: Host, agent: HostAgent) -> None:
    eventually(lambda: agent.drive("db1")["normalized_iops"] is not None)
    held = blkdeviotune(host, "db1")
    host.signal_libvirtd(signal.SIGSTOP)
    try:
        key = 'iokeel_agent_errors_total{kind="timeout"}'
        eventually(lambda: agent.metrics().get(key, 0) >= 2)
        assert agent.drive("db1")["normalized_iops"] is None
    finally:
        host.signal_libvirtd(signal.SIGCONT)
    assert blkdeviotune(host, "db1") == held
    eventually(lambda: agent.drive("db1")["normalized_iops"] is not None, 40)
    set_metadata(host, "db1", '<policy><drive target="vda" limit="600"/></policy>')
    eventually(lambda: agent.drive("db1")["limit_iops"] == 600)
    eventually(lambda: blkdeviotune(host, "db1") != held)
