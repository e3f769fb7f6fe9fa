"""Limits that are set past libvirt, of which nobody tells the agent."""

from __future__ import annotations

import pytest

from iokeel.hypervisors.libvirt.source import RESYNC_S
from testing.agents import HostAgent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.vm import Vm
from testing.waiting import eventually
from tests.system.rig import blkdeviotune

pytestmark = pytest.mark.timeout(600)

TRIES = 8
QDEV = "/machine/peripheral/virtio-disk0/virtio-backend"
FIO = (
    "fio --name=x --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randread --bs=4k"
    " --iodepth=16 --time_based --runtime=120"
)


def lift(agent: HostAgent) -> None:
    """Lift the guest's limits as an operator would by QEMU's own monitor."""
    command = f"block_set_io_throttle {QDEV} 0 0 0 0 0 0"
    said = agent.host.virsh("qemu-monitor-command", "db1", "--hmp", command)
    assert not said.strip()  # the agent may have put them back by now, and counts that


def is_held(agent: HostAgent) -> bool:
    shown = blkdeviotune(agent.host, "db1")  # as QEMU has them
    return bool(shown) and highest_rate(shown) <= 1.25 * 2000


@pytest.mark.parametrize("is_busy", [True, False])
def test_they_are_put_back(guest: Vm, agent: HostAgent, is_busy: bool) -> None:
    eventually(lambda: agent.drive("db1")["limits_in_force"])  # it has read the guest
    eventually(lambda: is_held(agent))
    pid = guest.start_program(FIO) if is_busy else None
    if is_busy:  # whether it reaches its limit depends on the machine
        eventually(lambda: (agent.drive("db1")["normalized_iops"] or 0) > 50)
    before = agent.drive("db1")["overwritten"]
    for _ in range(TRIES):  # its limits may be made anew just then, by which nobody notices
        lift(agent)
        # Reading all domains again takes twice as long in the mean.
        eventually(lambda: is_held(agent), RESYNC_S / 4)
        if agent.drive("db1")["overwritten"] >= before + 2:
            break
    assert agent.drive("db1")["overwritten"] >= before + 2
    if pid is not None:
        guest.exec("killall -KILL fio")  # told to end, it may take a minute on a busy machine
        guest.wait(pid)
