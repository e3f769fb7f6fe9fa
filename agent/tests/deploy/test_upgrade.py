"""From the last release's package to this one and back, on a booted Debian with guests that run.

Their limits are read from QEMU ten times a second all the while (testing/machines/watch.py). The
tests are steps of one story, in this order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from iokeel import __version__
from iokeel.core.values.policy import BUILTIN_CLASSES
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.machines.container import Machine
from testing.machines.guest import IMAGES, domain, limits
from testing.machines.hypervisor import CONFIG, configure, journal, show, stats
from testing.machines.watch import watch
from testing.packages import last_release
from testing.packages.agent import DISTRIBUTIONS
from testing.packages.folder import LATER, later_folder, package_folder, signed_repository
from testing.waiting import eventually

pytestmark = [pytest.mark.booted, pytest.mark.bookworm, pytest.mark.timeout(3600)]

CODENAME = "bookworm"
LIMIT, BURST = 500, 1000
POLICY = f"""<policy xmlns='{NAMESPACE}'>
  <drive target='vda' limit='{LIMIT}' burst='{BURST}'/></policy>"""
FLAVOR = """<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:name>web-1</nova:name><nova:flavor name="io1.large" id="1"/></nova:instance>"""
RULES = '[[rules]]\nname = "io1"\nwhen = {"nova.flavor" = "io1.*"}\nclass = "bronze"\n'
BRONZE = BUILTIN_CLASSES["bronze"]
#: By guest: what its definition says, and the highest rate of its policy.
GUESTS = {"db1": (POLICY, BURST), "web1": (FLAVOR, BRONZE.burst or BRONZE.limit or 0)}
BY_HAND = {"total_iops_sec": "3000"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with former.deb, this.deb, and a repository that has a later version."""
    folder = tmp_path_factory.mktemp("packages")
    this = package_folder(folder / "this", [CODENAME])
    former = package_folder(folder / "former", [CODENAME], last_release.last_release())
    repository = later_folder(folder / "repository", this)
    signed_repository(repository)
    for name in (this, former):
        (deb,) = name.glob("*.deb")
        shutil.copy(deb, folder / f"{name.name}.deb")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def machine(packages: Path) -> Iterator[Machine]:
    """A hypervisor with the last release's agent, and guests that somebody has limited by hand."""
    with Machine(CODENAME, {"/packages": packages}) as machine:
        for name, (metadata, _) in GUESTS.items():
            machine.run("truncate", "--size=16M", f"{IMAGES}/{name}.img")
            machine.run("virsh", "create", "/dev/stdin", input=domain(name, metadata))
            machine.run("virsh", "blkdeviotune", name, "vda", "--total-iops-sec", "3000", "--live")
        install(machine, "former")
        eventually(lambda: is_held(machine, "db1"), what="the guest has limits")
        yield machine


def install(machine: Machine, name: str) -> str:
    return machine.run("dpkg", "--force-confold", "--install", f"/packages/{name}.deb")


def is_held(machine: Machine, name: str) -> bool:
    shown = limits(machine, name).items()
    numbers = {key: int(value) for key, value in shown if value.isdigit()}
    return highest_rate(numbers) <= TOLERANCE * GUESTS[name][1]


@contextmanager
def never_lifted(machine: Machine, *names: str) -> Iterator[None]:
    """See that no sample of a guest's limits lets more through than its policy."""
    with ExitStack() as stack:
        samples = {name: stack.enter_context(watch(machine, name)) for name in names}
        yield
    for name, found in samples.items():
        print(f"{name}: {len(found)} samples")
        assert len(found) > 20
        most = TOLERANCE * GUESTS[name][1]
        assert [sample for sample in found if highest_rate(sample) > most] == []


def has_ticked(machine: Machine) -> None:
    """Wait until the agent has seen its guests."""
    eventually(lambda: show(machine, "ActiveState") == "active", what="iokeel.service is active")
    eventually(lambda: len(stats(machine)) == len(GUESTS), what="it sees the guests")


def version(machine: Machine) -> str:
    return machine.run("iokeel", "--version").removeprefix("iokeel ").strip()


def credit(machine: Machine) -> float:
    """Return the seconds of burst that db1 has saved."""
    (vm,) = [vm for vm in stats(machine) if vm["domain"] == "db1"]
    (drive,) = vm["drives"]
    seconds: float = drive["credit_s"]
    return seconds


def test_an_upgrade_goes_on_with_policies_credit_and_limits(machine: Machine) -> None:
    assert version(machine) == last_release.VERSION
    eventually(lambda: credit(machine) > 5, what="the guest saves credit")
    earned, pid = credit(machine), show(machine, "MainPID")
    with never_lifted(machine, "db1"):
        install(machine, "this")
        has_ticked(machine)
        assert (version(machine), show(machine, "MainPID") != pid) == (__version__, True)
        assert credit(machine) >= earned - 1
    assert machine.run("dpkg", "--verify", "iokeel") == ""


def test_going_back_is_refused_by_rules_that_the_former_one_does_not_know(machine: Machine) -> None:
    configure(machine, RULES)
    machine.run("systemctl", "reload", "iokeel")
    eventually(lambda: is_held(machine, "web1"), what="the rule holds")
    pid = show(machine, "MainPID")
    with never_lifted(machine, *GUESTS):
        assert "the old agent runs on" in install(machine, "former")
        assert (version(machine), show(machine, "MainPID")) == (last_release.VERSION, pid)


def test_going_back_without_them_lifts_no_limit_either(machine: Machine) -> None:
    with never_lifted(machine, *GUESTS):
        configure(machine, "")
        machine.run("systemctl", "restart", "iokeel")
        has_ticked(machine)
        assert credit(machine) > 0
        install(machine, "former")  # once more, for the agent that runs is that one now
        has_ticked(machine)
    assert "it has no policy any more" not in journal(machine).partition("Started")[2]


def test_what_was_there_before_iokeel_comes_back_after_all(machine: Machine) -> None:
    with never_lifted(machine, *GUESTS):
        configure(machine, RULES)
        install(machine, "this")
        has_ticked(machine)
    machine.run("systemctl", "stop", "iokeel")
    assert "2 drives have their former limits" in machine.run("iokeel", "agent", "--release")
    for name in GUESTS:
        assert {**limits(machine, name), "group_name": ""} == {**BY_HAND, "group_name": ""}
    machine.run("systemctl", "start", "iokeel")
    eventually(lambda: all(is_held(machine, name) for name in GUESTS), what="all are held again")


def test_a_dpkg_that_is_interrupted_harms_nobody(machine: Machine) -> None:
    pid = show(machine, "MainPID")
    with never_lifted(machine, *GUESTS):
        machine.sh("""
            dpkg --force-confold --install /packages/former.deb & dpkg=$!
            until dpkg-query --show --showformat='${db:Status-Status}' iokeel | grep half-installed
            do kill -0 $dpkg; done
            kill -KILL $dpkg""")
        assert show(machine, "MainPID") == pid
        install(machine, "this")
        has_ticked(machine)
    changed = machine.run("dpkg", "--verify", "iokeel").splitlines()
    assert [line.split()[-1] for line in changed] == [CONFIG]  # by this test
    assert version(machine) == __version__


def test_a_repository_that_goes_away_leaves_the_old_agent_running(
    machine: Machine, packages: Path
) -> None:
    machine.sh("""
        rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
        echo 'deb [signed-by=/packages/repository/repository.asc] file:/packages/repository ./' \
            >/etc/apt/sources.list
        apt-get --quiet=2 update""")
    (deb,) = (packages / "repository").glob("*.deb")
    away = deb.rename(packages / "away.deb")
    pid = show(machine, "MainPID")
    upgrade = ("apt-get", "--quiet=2", "--yes", "install", "--only-upgrade", "iokeel")
    with never_lifted(machine, *GUESTS):
        status, said = machine.status(*upgrade)
        assert (status, "File not found" in said) == (100, True)
        assert (show(machine, "MainPID"), version(machine)) == (pid, __version__)
        away.rename(deb)
        machine.run(*upgrade)
        has_ticked(machine)
    assert version(machine) == LATER
    assert DISTRIBUTIONS[CODENAME] in machine.run("dpkg-query", "--show", "iokeel")
