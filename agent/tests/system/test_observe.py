"""A real guest that is only observed, and then held, under the same load."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testing.agents import HostAgent
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from testing.workers import Alone
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)

LIMIT = 60
OBSERVE = '[policy]\nmode = "observe"\n'
POLICY = f'<policy><drive target="vda" limit="{LIMIT}"/></policy>'
# So many reads of 4K a second, which is above the limit, and which a busy machine can still do.
LOAD = "--direct=1 --ioengine=libaio --iodepth=8 --rw=randread --bs=4k --rate_iops=100"
SECONDS = 40


@contextmanager
def watched(host: Host) -> Iterator[list[dict[str, int]]]:
    """Read a guest's limits all the time, and yield what is found."""
    found: list[dict[str, int]] = []
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.2):
            found.append(blkdeviotune(host, "db1"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def reads(host: Host) -> int:
    """Return how many reads QEMU has done. Each is of 4K, which costs 1."""
    stats = host.virsh("domblkstat", "db1", "vda").split()
    return int(stats[stats.index("rd_req") + 1])


def reads_under_load(guest: Vm, host: Host, seconds: int = SECONDS) -> int:
    """Return how many reads QEMU does while the load runs."""
    before = reads(host)
    load = f"fio {LOAD} --name=a --filename=/dev/vda --time_based --runtime={seconds}"
    guest.exec(f"{load} --output=/dev/null", timeout=120)
    done = reads(host) - before
    print(f"{done / seconds:.0f} a second")
    return done


def reload(agent: HostAgent, text: str) -> None:
    agent.config.write_text(text)
    agent.send(signal.SIGHUP)


@pytest.mark.alone
def test_a_guest_is_observed_then_held_then_observed(guest: Vm, host: Host, alone: Alone) -> None:
    """What is said to be held is what is held; and until then no limit is set."""
    set_metadata(host, "db1", POLICY)
    with HostAgent(host, OBSERVE) as agent:
        eventually(lambda: agent.drive("db1")["mode"] == "observe")
        with alone(), watched(host) as found:
            before = agent.drive("db1")
            done = reads_under_load(guest, host)
            time.sleep(3)  # the last of them are counted
            after = agent.drive("db1")
        assert found
        assert not any(found), "no limit was ever set"
        assert done > 1.2 * LIMIT * SECONDS, "the machine is too slow for the load"
        above = after["above_operations"] - before["above_operations"]
        assert "is only observed" in agent.why("db1")
        assert f"a limit of {LIMIT} iops" in agent.why("db1")
        assert "would have been set" in agent.why("db1")
        assert "In force" not in agent.why("db1")
        key = 'iokeel_drive_would_hold_seconds_total{domain="db1",target_device="vda"}'
        assert agent.metrics()[key] == pytest.approx(after["above_s"], abs=2)

        observing = agent.config.read_text()
        reload(agent, observing.replace(OBSERVE, ""))
        eventually(lambda: blkdeviotune(host, "db1") != {})
        with alone():
            reads_under_load(guest, host, seconds=6)  # then limits are made for its mix
            assert reads_under_load(guest, host) == pytest.approx(done - above, rel=0.05)

        reload(agent, observing)
        eventually(lambda: blkdeviotune(host, "db1") == {})
        agent.stop(signal.SIGKILL)
        agent.start()
        eventually(lambda: agent.drive("db1")["mode"] == "observe")
        assert blkdeviotune(host, "db1") == {}


def test_a_ceiling_holds_a_guest_whose_own_policy_says_observe(guest: Vm, host: Host) -> None:
    """Its tenant may write that; the configuration's mode is the operator's."""
    ceiling = f"[ceilings.all]\nlimit = {LIMIT}\n"
    set_metadata(host, "db1", '<policy mode="observe"><drive target="vda" limit="50"/></policy>')
    with HostAgent(host) as agent:
        eventually(lambda: agent.drive("db1")["mode"] == "observe")
        assert blkdeviotune(host, "db1") == {}
        reload(agent, f"{agent.config.read_text()}\n{ceiling}")
        eventually(lambda: blkdeviotune(host, "db1") != {})
        assert agent.drive("db1")["limit_iops"] == 50
        reload(agent, f"{agent.config.read_text()}\n{OBSERVE}")
        eventually(lambda: blkdeviotune(host, "db1") == {})
