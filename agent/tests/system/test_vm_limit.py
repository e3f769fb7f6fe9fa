"""A VM's own limit over two drives of a real guest."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.demo.fio_log import Completions
from iokeel.core.enforce.envelope import limits_for_any_size
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)  # the first run makes a Debian 13
LIMIT = 600  # a busy machine that emulates the guest can still do this
VM_LIMIT = f'<policy limit="{LIMIT}"/>'


@pytest.fixture
def guest2(guest: Vm, host: Host, agent: HostAgent) -> Iterator[Vm]:
    """A guest with two drives, and a limit for both together."""
    set_metadata(host, "db1", VM_LIMIT)
    guest.attach(DiskSpec("vdb", make_disk(host.dir / "second.raw", 64)))
    yield guest
    guest.detach("vdb")


def allowed(agent: HostAgent) -> dict[str, float]:
    """Return what each drive may do now."""
    (vm,) = agent.ask("/v1/vms")
    return {drive["target"]: drive["allowed_iops"] for drive in vm["drives"]}


def divided(agent: HostAgent) -> bool:
    """Return whether the limit is divided between both drives; parts are whole numbers."""
    parts = allowed(agent)
    return parts.keys() == {"vda", "vdb"} and LIMIT - 2 <= sum(parts.values()) <= LIMIT


def in_force(host: Host) -> list[int | None]:
    return [blkdeviotune(host, "db1", target).get("total_iops_sec") for target in ("vda", "vdb")]


def held(agent: HostAgent) -> bool:
    """Return whether no drive may do more than its part, whatever its requests' sizes."""
    return all(
        highest_rate(blkdeviotune(agent.host, "db1", target)) <= TOLERANCE * part
        for target, part in allowed(agent).items()
    )


def test_drives_that_no_policy_names_divide_the_vms_limit(guest2: Vm, agent: HostAgent) -> None:
    host = agent.host
    eventually(lambda: divided(agent))
    eventually(lambda: held(agent))
    (vm,) = agent.ask("/v1/vms")
    assert (vm["limit_iops"], vm["allowed_iops"]) == (LIMIT, LIMIT)
    assert "All drives of db1 together have a limit of 600 iops." in agent.why("db1")
    guest2.detach("vdb")
    eventually(lambda: allowed(agent) == {"vda": LIMIT})
    guest2.attach(DiskSpec("vdb", host.dir / "second.raw"))
    eventually(lambda: divided(agent))
    eventually(lambda: None not in in_force(host))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_bad_policy_keeps_the_vms_limit_over_a_restart(
    guest2: Vm, agent: HostAgent, end: signal.Signals
) -> None:
    host = agent.host
    eventually(lambda: divided(agent) and None not in in_force(host))
    set_metadata(host, "db1", '<policy limit="-5"/>')
    key = 'iokeel_domain_policy_valid{domain="db1"}'
    eventually(lambda: agent.metrics()[key] == 0)
    agent.stop(end)
    if end is signal.SIGTERM:
        static = limits_for_any_size(DEFAULT_MODEL, LIMIT / 2).iops_total
        assert in_force(host) == [static, static]
    assert None not in in_force(host)
    agent.start()
    eventually(lambda: agent.metrics()[key] == 0)
    eventually(lambda: divided(agent))
    (vm,) = agent.ask("/v1/vms")
    assert vm["limit_iops"] == LIMIT
    assert None not in in_force(host)


@pytest.mark.alone
def test_fio_on_two_drives_is_held_to_the_vms_limit(guest2: Vm, agent: HostAgent) -> None:
    """By fio's own log: what a drive leaves the other gets, and together never more."""
    eventually(lambda: divided(agent))
    common = "--direct=1 --ioengine=libaio --iodepth=16 --rw=randread --bs=8k --norandommap"
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            guest2.exec,
            f"fio {common} --time_based --write_iops_log=/tmp/a --log_unix_epoch=1"
            " --output=/dev/null --name=a --filename=/dev/vda --runtime=30"
            " --name=b --filename=/dev/vdb --startdelay=12 --runtime=8",
            timeout=120,
        )
        sums, parts = [], []
        while not run.done():
            now = allowed(agent)
            sums.append(sum(now.values()))
            parts.append(now["vda"])
            time.sleep(0.2)
        run.result()
    assert max(sums) <= LIMIT
    alone = [i for i, part in enumerate(parts) if part >= 0.95 * LIMIT]
    assert alone
    # It gave some of that back when the other drive began.
    assert min(parts[alone[0] :]) < 0.9 * LIMIT
    logs = [guest2.read(f"/tmp/a_iops.{job}.log") for job in (1, 2)]
    both = Completions.parse(b"".join(logs))
    assert both.worst_window(0, 30) <= 1.25 * LIMIT
    assert both.rate(3, 30) <= 1.05 * LIMIT
