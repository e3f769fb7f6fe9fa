"""What the agent counts of a real guest's drive, by fio's own count."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from iokeel.core.values.curve import DEFAULT_CURVE, KIB
from testing.agents import HostAgent
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)

SECONDS = 20
# Rates that a busy machine can still do. By the curve: 60, 10 times 2.7, and 4 times 10.
JOBS = (
    "--name=small --rw=randread --bs=4k --rate_iops=60",
    "--name=writes --rw=randwrite --bs=16k --rate_iops=10",
)
LARGER = "--name=larger --rw=randread --bs=64k --rate_iops=4"
OPERATIONS = "iokeel_drive_normalized_operations_total"
PROMISE = "iokeel_drive_promise_seconds_total"


def run(guest: Vm, *jobs: str) -> list[dict[str, Any]]:
    """Run fio's jobs together in the guest, and return its report of each."""
    common = "--direct=1 --ioengine=libaio --iodepth=4 --filename=/dev/vda --output-format=json"
    words = f"fio {common} --time_based --runtime={SECONDS} {' '.join(jobs)}"
    reports: list[dict[str, Any]] = json.loads(guest.exec(words, timeout=120).stdout)["jobs"]
    return reports


def counted(agent: HostAgent) -> dict[str, float]:
    """Return the operations by direction, and the seconds of its limit by outcome."""
    time.sleep(3)  # the last requests are counted
    metrics = agent.metrics()
    drive = 'domain="db1",target_device="vda"'
    of = {way: metrics[f'{OPERATIONS}{{{drive},direction="{way}"}}'] for way in ("read", "write")}
    for outcome in ("kept", "missed"):
        of[outcome] = metrics[f'{PROMISE}{{{drive},promise="limit",outcome="{outcome}"}}']
    return of


def test_operations_are_those_that_fio_did_and_seconds_those_below_the_limit(
    guest: Vm, host: Host
) -> None:
    set_metadata(host, "db1", '<policy tenant="acme"><drive target="vda" limit="500"/></policy>')
    with HostAgent(host) as agent:
        eventually(lambda: blkdeviotune(host, "db1") != {})
        (vm,) = agent.ask("/v1/vms")
        info = f'iokeel_domain_info{{domain="db1",uuid="{vm["uuid"]}",tenant="acme"'
        assert f'{info},project="",guest=""}}' in agent.metrics()
        assert host.virsh("domuuid", "db1").strip() == vm["uuid"]
        before = counted(agent)
        reads = writes = 0.0
        for jobs in (JOBS, (LARGER,)):  # stock QEMU tells a mean size in each direction
            for job in run(guest, *jobs):
                size = int(job["job options"]["bs"].removesuffix("k")) * KIB
                reads += job["read"]["total_ios"] * DEFAULT_CURVE.cost(size)
                writes += job["write"]["total_ios"] * DEFAULT_CURVE.cost(size)
            time.sleep(3)
        after = counted(agent)
        read, written = after["read"] - before["read"], after["write"] - before["write"]
        print(f"reads {read:.1f} of {reads:.1f}, writes {written:.1f} of {writes:.1f}")
        assert reads > 0
        assert read == pytest.approx(reads, rel=0.02)
        assert written == pytest.approx(writes, rel=0.02)
        assert after["missed"] == before["missed"]
        assert after["kept"] > before["kept"]
