"""The agent with a QEMU that charges by the cost curve itself (make test-qemu)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from conformance import Completions
from iokeel.curve import DEFAULT_CURVE
from lab.domain import DiskSpec, make_disk
from lab.host import Host
from lab.qemu import patched
from lab.vm import Vm
from tests.system.rig import Agent, blkdeviotune, eventually, policy, set_metadata

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
POINTS = [{"size": size, "cost": cost} for size, cost in DEFAULT_CURVE.points]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    drives = [DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))]
    wanted = policy('target="vda" limit="2000"')
    with Vm.boot(host, "db1", drives, policy=wanted, emulator=patched(host)) as vm:
        yield vm


@pytest.fixture
def agent(host: Host) -> Iterator[Agent]:
    running = Agent(host).start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.kill()
    print(running.log.read_text())
    running.log.unlink()


def group(host: Host) -> dict[str, Any]:
    """What QEMU says of the drive's throttle group."""
    command = json.dumps({"execute": "query-throttle-groups"})
    answer = json.loads(host.virsh("qemu-monitor-command", "db1", command))
    (found,) = answer["return"]
    limits: dict[str, Any] = found["limits"]
    return limits


def exact(host: Host, limit: int) -> bool:
    limits = group(host)
    curves = limits.get("cost-read") == limits.get("cost-write") == POINTS
    return bool(curves and limits["iops-total"] == limit and not limits.get("bps-total"))


def test_curve_and_limit_are_in_force_and_virsh_shows_the_limit(guest: Vm, agent: Agent) -> None:
    eventually(lambda: exact(agent.host, 2000))
    assert blkdeviotune(agent.host, "db1") == {"total_iops_sec": 2000}
    assert agent.drive("db1")["mode"] == "exact"
    assert "by the cost curve itself" in agent.why("db1")


def test_a_new_limit_keeps_the_curve(guest: Vm, agent: Agent) -> None:
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: exact(agent.host, 900))
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: exact(agent.host, 2000))


def test_a_curve_lost_to_a_change_by_hand_is_put_back(guest: Vm, agent: Agent) -> None:
    host = agent.host
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(host, 2000))
    words = ["--total-iops-sec", "5000", "--size-iops-sec", "4096"]
    host.virsh("blkdeviotune", "db1", "vda", *words, "--live")
    eventually(lambda: agent.drive("db1")["overwritten"] == 1, 5)
    eventually(lambda: exact(host, 2000))


def test_a_shift_needs_no_retune_and_every_second_is_at_the_limit(guest: Vm, agent: Agent) -> None:
    eventually(lambda: exact(agent.host, 2000))
    common = "--filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw"
    logs = "--write_iops_log=/tmp/a --per_job_logs=0 --log_unix_epoch=1 --output=/dev/null"
    jobs = "--name=a --bs=8k --runtime=5 --name=b --bs=64k --startdelay=5 --runtime=5"
    options = f"{common} --norandommap --time_based --thread {logs}"
    jobs = jobs.replace("--name=b", f"--name=b {options}")
    guest.exec(f"rm -f /tmp/a*; fio {options} {jobs}", timeout=90)
    done = Completions.parse(guest.read("/tmp/a_iops.log"))
    rates = done.seconds(0, 10)
    # The first second has the tenth that a fresh bucket holds; the sixth the change of jobs.
    for second in (1, 2, 3, 7, 8):
        assert rates[second] <= 1.02 * 2000
        assert rates[second] >= 0.5 * 2000  # however slow the machine that emulates
    assert agent.drive("db1")["retunes"] == 0


def test_a_stopped_agent_leaves_limit_and_curve(guest: Vm, agent: Agent) -> None:
    eventually(lambda: agent.drive("db1")["mode"] == "exact" and exact(agent.host, 2000))
    assert agent.stop() == 0
    assert exact(agent.host, 2000)
