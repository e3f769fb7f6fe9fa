"""A guest that migrates between two hosts of a fleet, under load: its limits and its credit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.demo.fio_log import Completions
from testing.agents import HostAgent
from testing.fleet import etcd as real
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.migration import Watch, destroy, migrate
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy, set_metadata

pytestmark = pytest.mark.timeout(900)
LIMIT, BURST = 30, 75  # a busy machine that emulates the guest can still do this
SAVED_S = 30  # all that it can save
LEAST_S = 5  # more than the guest can have saved on the way
BOOT_S, RUN_S = 300, 60
FIO = (
    "fio --name=a --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randread"
    " --bs=4k --norandommap --time_based --runtime=%d --output=/dev/null --write_iops_log=/tmp/a"
    " --log_unix_epoch=1"
)


@dataclass
class Place:
    """A host of the fleet, with its agent."""

    host: Host
    agent: HostAgent

    @property
    def monitor(self) -> Path:
        return self.host.dir / "db1.watch"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Etcd]:
    with real.running(real.Etcd(tmp_path_factory.mktemp("etcd"))) as etcd:
        yield etcd


def bookworm() -> Host:
    return Host.bookworm(hooks=PROJECT / "libvirt-hooks")


def trixie() -> Host:
    requirements = PROJECT / "agent/requirements.lock"
    return Host.trixie(hooks=PROJECT / "libvirt-hooks", requirements=requirements)


@pytest.fixture(params=[bookworm, trixie])
def places(request: pytest.FixtureRequest, etcd: real.Etcd) -> Iterator[list[Place]]:
    """Two hosts, each with an agent in the fleet: with this machine's libvirt, or Debian 13's."""
    with request.param() as a, request.param() as b:
        for host in (a, b):
            host.start_libvirtd()
        tables = [f"[fleet]\netcd = {list(etcd.urls)}\nhost = '{name}'\n" for name in "ab"]
        with HostAgent(a, tables[0]) as one, HostAgent(b, tables[1]) as other:
            yield [Place(a, one), Place(b, other)]


@pytest.fixture
def guest(places: list[Place]) -> Iterator[Vm]:
    """A guest of the first host with some credit."""
    first = places[0]
    drives = [DiskSpec("vda", make_disk(first.host.dir / "disk.raw", 64))]
    wanted = policy(f'target="vda" limit="{LIMIT}" burst="{BURST}" burst-seconds="{SAVED_S}"')
    vm, folder = Vm(first.host, "db1"), first.host.dir
    xml = domain_xml(
        "db1", drives, image=image(), folder=folder, policy=wanted, monitor=first.monitor
    )
    vm.define(xml)
    vm.start(BOOT_S)
    eventually(lambda: credit(first) >= SAVED_S, 90)
    yield vm
    destroy("db1", [place.host for place in places])


def credit(place: Place) -> float:
    return float(place.agent.drive("db1")["credit_s"])


def spent_s(rate: float) -> float:
    """Return the credit that a second at this rate takes: the part of a whole burst."""
    return max(0.0, rate - 1.05 * LIMIT) / (BURST - LIMIT)


def least_left_s(credit_s: float, rates: Sequence[float]) -> float:
    """Return the least credit that was left in any second, by the rule and the guest's own log."""
    least = credit_s
    for rate in rates:
        saved_s = 1.0 if rate < 0.95 * LIMIT else 0.0
        credit_s = min(credit_s + saved_s, SAVED_S) - spent_s(rate)
        least = min(least, credit_s)
    return least


def test_limits_and_credit_go_along(guest: Vm, places: list[Place], etcd: real.Etcd) -> None:
    source, target = places
    had = credit(source)
    running = guest.start_program(FIO % RUN_S)
    try:
        eventually(lambda: credit(source) < had - 5, RUN_S)
    except AssertionError as error:
        ended = guest.wait(running, 2 * RUN_S)
        raise AssertionError(f"{source.agent.drive('db1')}, {ended}") from error
    guest.agent.close()

    with Watch(target.monitor) as watch:
        left = credit(source)
        migrate("db1", source.host, target.host)
        eventually(lambda: target.agent.says("its burst credit has come after it"), 60)
        eventually(lambda: credit(target) > LEAST_S, 20)
        came = credit(target)
        moved = Vm(target.host, "db1")
        assert moved.wait(running, 2 * RUN_S).status == 0

    print(f"credit: {had:.1f} s, {left:.1f} s as it left, {came:.1f} s as it came")
    assert len(watch.limits) > 100
    assert max(map(highest_rate, watch.limits)) <= TOLERANCE * BURST, "at no moment without"
    log = moved.read("/tmp/a_iops.1.log")
    rates = Completions.parse(log).seconds(0, RUN_S)
    print([round(rate) for rate in rates])
    assert max(rates) <= 1.25 * BURST
    used_s = sum(spent_s(rate) for rate in rates)
    print(f"credit used: {used_s:.1f} s, least left: {least_left_s(had, rates):.1f} s")
    assert used_s > had - left + 3, "the credit that came was of use"
    assert least_left_s(had, rates) > -2, "no second of credit was used twice"
    assert "credit/" not in etcd.ctl("get", "/iokeel/", "--prefix", "--keys-only")


def test_a_bad_policy_keeps_the_limits_that_came_along(guest: Vm, places: list[Place]) -> None:
    source, target = places
    set_metadata(source.host, "db1", '<policy><drive target="vda" limit="-5"/></policy>')
    eventually(lambda: source.agent.stats("db1")[0]["policy_error"])
    guest.agent.close()
    migrate("db1", source.host, target.host)
    came = blkdeviotune(target.host, "db1")
    told = eventually(lambda: target.agent.stats("db1")[0]["policy_error"])
    assert "limit" in told["what"]
    time.sleep(5)
    assert blkdeviotune(target.host, "db1") == came
    assert highest_rate(came) <= TOLERANCE * BURST


def test_a_migration_that_fails_leaves_the_credit(
    guest: Vm, places: list[Place], etcd: real.Etcd
) -> None:
    source, target = places
    had = credit(source)
    source.host.virsh("migrate-setspeed", "db1", "1")
    abort = threading.Timer(2.0, lambda: source.host.virsh("domjobabort", "db1"))
    abort.start()
    with pytest.raises(RuntimeError, match=r"abort|cancel"):
        migrate("db1", source.host, target.host)
    abort.join()
    assert guest.running()
    time.sleep(3)
    assert had <= credit(source) <= SAVED_S
    assert "credit/" not in etcd.ctl("get", "/iokeel/", "--prefix", "--keys-only")
    assert not target.agent.says("credit")
