"""The playbooks on whole machines with a kernel, cgroups and a boot of their own: from nothing to
a throttled guest, through a kill, a reboot, an upgrade and another QEMU, and back to nothing.

The tests are steps of one story, in this order: what each leaves, the next one finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.hypervisors.iotune import highest_rate
from testing.machines import guest
from testing.machines.emulated import EmulatedMachine
from testing.machines.hypervisor import mode, stats
from testing.machines.manifest import manifest
from testing.machines.ssh import admit
from testing.machines.watch import watch
from testing.packages.agent import DISTRIBUTIONS
from testing.packages.folder import LATER, later_folder, package_folder
from testing.packages.qemu import CODENAME, qemu_packages
from testing.playbooks.run import Played, inventory, play
from testing.waiting import eventually
from tests.exact.guests import exact

pytestmark = [pytest.mark.booted, pytest.mark.timeout(3600)]

LIMIT, LOWER = 40, 24
SCOPE = r"/sys/fs/cgroup/machine.slice/machine-qemu\\x2d*\\x2ddb1.scope"


@dataclass
class Site:
    """The machine, and what it had before iokeel came.

    replaced: the files of packages that were replaced since, and that stay.
    """

    codename: str
    folder: Path
    packages: Path
    machine: EmulatedMachine
    host: dict[str, Any]
    files: list[str]
    limits: dict[str, str]
    io_max: str
    replaced: set[str] = field(default_factory=set)

    def play(self, playbook: str, *words: str, **variables: Any) -> Played:
        """Run a playbook; it has to succeed."""
        hosts = inventory(self.folder, {"hv1": self.host}, iokeel_package=str(self.packages))
        played = play(playbook, hosts, *words, timeout_s=1800, **variables)
        print(played.out)
        assert played.status == 0
        return played


@contextmanager
def opened(codename: str, folder: Path) -> Iterator[Site]:
    """Boot a machine with a guest that has limits of its own, set by hand."""
    packages = package_folder(folder / "packages", [codename])
    (folder / "machine").mkdir()
    with EmulatedMachine(codename, folder / "machine") as machine:
        # The guest has no system that a shutdown could ask to end.
        machine.sh("echo SHUTDOWN_TIMEOUT=5 >>/etc/default/libvirt-guests")
        guest.define(machine, "db1")
        slow(machine)
        machine.run("virsh", "autostart", "db1")
        by_hand = ["virsh", "blkdeviotune", "db1", "vda", "--total-iops-sec", "3000"]
        machine.run(*by_hand, "--live", "--config")
        machine.sh("virsh dumpxml --inactive db1 >/root/db1.xml")
        host = admit(machine)
        files, limits = manifest(machine), guest.limits(machine, "db1")
        yield Site(codename, folder, packages, machine, host, files, limits, io_max(machine))


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with opened(request.param, tmp_path_factory.mktemp("site")) as made:
        yield made


def slow(machine: EmulatedMachine) -> None:
    """Leave the guest a tenth of a processor, because it waits for its disk in a loop."""
    words = ["global_period=100000", "global_quota=10000"]
    machine.run("virsh", "schedinfo", "db1", "--live", "--config", *words)


def rate(machine: EmulatedMachine) -> float:
    """Return the guest's normalized rate with a whole processor."""
    machine.run("virsh", "schedinfo", "db1", "--live", "global_quota=-1")
    found = guest.rate(machine, "db1")
    slow(machine)
    return found


def io_max(machine: EmulatedMachine) -> str:
    """Return the bounds on the guest's cgroup, by the kernel's own account."""
    return machine.sh(f"cat {SCOPE}/io.max")


def held(samples: list[dict[str, int]], limit: int) -> None:
    """See that a policy's limit was in force in every sample, for requests of any size."""
    assert len(samples) > 20
    assert [s for s in samples if highest_rate(s) > 1.2 * limit] == []


def test_a_guest_is_throttled_after_two_playbooks(site: Site) -> None:
    machine = site.machine
    assert rate(machine) > 2 * LIMIT
    site.play("deploy.yml")
    assert guest.limits(machine, "db1") == site.limits
    site.host["iokeel_policies"] = {"db1": {"drives": {"vda": {"limit": LIMIT}}}}
    site.play("policies.yml")
    assert LIMIT / 2 < rate(machine) < 1.1 * LIMIT


def test_second_run_changes_nothing(site: Site) -> None:
    assert site.play("deploy.yml").changed == {"hv1": 0}


def test_the_guests_cgroup_is_bounded_too(site: Site) -> None:
    eventually(lambda: "riops=" in io_max(site.machine), 30, what="io.max is set")
    (vm,) = stats(site.machine)
    assert any(setting.startswith("io.max") for setting in vm["cgroup"])


def test_a_policy_is_changed_while_the_guest_runs(site: Site) -> None:
    site.host["iokeel_policies"] = {"db1": {"drives": {"vda": {"limit": LOWER}}}}
    site.play("policies.yml")
    assert LOWER / 2 < rate(site.machine) < 1.1 * LOWER


def test_an_upgrade_and_a_kill_never_lift_a_limit(site: Site) -> None:
    machine = site.machine
    later = later_folder(site.folder / "later", site.packages)
    with watch(machine, "db1") as samples:
        site.play("deploy.yml", iokeel_package=str(later))
        assert machine.run("iokeel", "--version") == f"iokeel {LATER}\n"
        machine.run("systemctl", "kill", "--signal=KILL", "iokeel")
        eventually(lambda: answers(machine), 120, what="the agent is back")
    held(samples, LOWER)


def answers(machine: EmulatedMachine) -> bool:
    """Return whether the agent has the guest's limit in force."""
    status, out = machine.status("iokeel", "stats", "--json")
    if status:
        return False
    drives = [drive for vm in json.loads(out) for drive in vm["drives"]]
    return [drive["limit_iops"] for drive in drives if drive["limits_in_force"]] == [LOWER]


def test_a_reboot_loses_nothing(site: Site) -> None:
    machine = site.machine
    config = machine.run("cat", "/etc/iokeel/agent.toml")
    machine.reboot()
    eventually(lambda: answers(machine), 300, what="the guest is limited again")
    assert machine.run("cat", "/etc/iokeel/agent.toml") == config
    assert LOWER / 2 < rate(machine) < 1.1 * LOWER


def test_patched_qemu_limits_a_guest_exactly_from_its_next_start_on(site: Site) -> None:
    machine = site.machine
    if site.codename != CODENAME:
        refuse_patched_qemu(site)
        return
    with watch(machine, "db1") as samples:
        played = site.play("patched-qemu.yml", iokeel_qemu_packages=str(qemu_packages()))
    held(samples, LOWER)
    site.replaced = {*machine.sh("cat /var/lib/dpkg/info/qemu-*.list").splitlines()}
    assert "hv1: db1: still on the old QEMU" in played.out
    assert mode(machine) == "retune"

    machine.run("virsh", "destroy", "db1")
    machine.run("virsh", "start", "db1")
    eventually(lambda: exact(machine, LOWER), 120, what="QEMU has the limit and the curve")
    assert mode(machine) == "exact"
    with watch(machine, "db1") as samples:
        assert LOWER / 2 < rate(machine) < 1.1 * LOWER
    # QEMU's curve needs no size, and libvirt doesn't tell of it.
    assert len(samples) > 20
    assert [s for s in samples if not 0 < s["total_iops_sec"] <= 1.2 * LOWER] == []


def refuse_patched_qemu(site: Site) -> None:
    """See that a distribution that it isn't built for is refused."""
    folder = site.folder / "qemu"
    folder.mkdir()
    (folder / "qemu-utils_1_amd64.deb").touch()
    hosts = inventory(site.folder, {"hv1": site.host})
    refused = play("patched-qemu.yml", hosts, iokeel_qemu_packages=str(folder))
    ((_, why),) = refused.failures
    assert why.endswith("and the patched QEMU is built for Debian 13")


def test_a_calibration_goes_through_host_vars_into_the_configuration(site: Site) -> None:
    one = {"name": "images", "target": "/var/lib/libvirt/images", "quick": True}
    site.host["iokeel_calibrate"] = [one]
    hosts = inventory(site.folder, {"hv1": site.host})
    refused = play("calibrate.yml", hosts)
    assert "even-if-in-use" in refused.failures[-1][1]
    one |= {"even_if_in_use": True, "size": "64m", "seconds": 0.3}
    site.play("calibrate.yml")
    written = site.folder / "host_vars/hv1/iokeel_calibrated.yml"
    measured = yaml.safe_load(written.read_text())["iokeel_storage_calibrated"]["images"]
    assert measured["capacity"] > 0
    site.play("deploy.yml", "--tags=configure")
    ask = ["iokeel", "stats", "--storage", "--json"]

    def capacities() -> dict[str, float]:
        return {s["storage"]: s["capacity_iops"] for s in json.loads(site.machine.run(*ask))}

    known = measured["capacity"]
    eventually(lambda: capacities()["images"] == known, 60, what="the agent knows the capacity")


def test_removal_leaves_the_host_as_it_was(site: Site) -> None:
    machine = site.machine
    site.play("remove.yml")
    assert guest.limits(machine, "db1") == site.limits
    assert io_max(machine) == site.io_max
    assert rate(machine) > 2 * LIMIT
    machine.run("virsh", "define", "/root/db1.xml")
    machine.sh("systemctl daemon-reload; systemctl reset-failed")
    before, after = {*site.files}, {*manifest(machine)}
    changed = {line for line in before ^ after if line.split()[-1] not in site.replaced}
    assert (sorted(changed & before), sorted(changed & after)) == ([], [])
