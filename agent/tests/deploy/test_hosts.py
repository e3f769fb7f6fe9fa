"""The playbooks on three booted hosts: a Debian 12, a Debian 13, and one without libvirt.

The tests are steps of one story, in this order: what each leaves, the next one finds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from iokeel import __version__
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.hypervisors.iotune import highest_rate
from testing.machines import guest
from testing.machines.container import VARIABLES, Machine
from testing.machines.manifest import manifest
from testing.machines.ssh import admit
from testing.machines.watch import watch
from testing.packages.folder import (
    LATER,
    add_page,
    later_folder,
    package_folder,
    qemu_folder,
    signed_repository,
)
from testing.playbooks.run import Played, break_off, inventory, play
from testing.waiting import eventually

pytestmark = [pytest.mark.booted, pytest.mark.timeout(1800)]

CONFIG = "/etc/iokeel/agent.toml"
HOOK = "/etc/libvirt/hooks/qemu.d/50-iokeel"
LIMIT = 100
ETCD = ("etcd", "etcdctl")
DOMAINS = {"hv12": "idle1", "hv13": "db1"}
POLICIES = {
    "hv12": {"idle1": {"drives": {"vda": {"limit": 500}}}},
    "hv13": {"db1": {"tenant": "acme", "drives": {"vda": {"limit": LIMIT}}}},
}


@dataclass
class Fleet:
    """The hosts, and what they had before iokeel came."""

    folder: Path
    packages: Path
    later: Path
    key: Path
    machines: dict[str, Machine]
    hosts: dict[str, dict[str, Any]]
    manifests: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    libvirtd: str = ""

    def inventory(self) -> Path:
        """Write the hosts' inventory, and return its file."""
        return inventory(self.folder, self.hosts, iokeel_package=str(self.packages))

    def play(self, playbook: str, *words: str, **variables: Any) -> Played:
        """Run a playbook on all hosts, with variables beside those of the inventory."""
        variables = {"iokeel_serial": 2} | variables
        played = play(playbook, self.inventory(), *words, **variables)
        print(played.out)
        return played

    def good(self, playbook: str, *words: str, **variables: Any) -> Played:
        """Run a playbook on the two hosts that have libvirt; it has to succeed."""
        played = self.play(playbook, "--limit=hv12,hv13", *words, **variables)
        assert played.status == 0
        return played


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    packages = package_folder(folder / "packages")
    add_page(packages, "bookworm")
    later = later_folder(folder / "later", packages)
    key = signed_repository(packages, later)
    machines = {
        "hv12": Machine("bookworm", {"/repository": packages, "/later": later}),
        "hv13": Machine("trixie", {f"/usr/local/bin/{name}": which(name) for name in ETCD}),
        "hv14": Machine("bookworm"),
    }
    with ExitStack() as stack:
        for machine in machines.values():
            stack.enter_context(machine)
        machines["hv14"].sh("apt-get -qq --yes purge libvirt-daemon libvirt-clients")
        # The machines' own sources of packages are out of reach.
        machines["hv12"].sh("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*")
        # The page takes it, and others recommend it, so that apt would leave it there.
        machines["hv12"].sh("dpkg --install /repository/dbus-user-session_*.deb")
        guest.define(machines["hv12"], "idle1")
        machines["hv12"].run("virsh", "destroy", "idle1")
        guest.define(machines["hv13"], "db1")
        by_hand = ["virsh", "blkdeviotune", "db1", "vda", "--total-iops-sec", "3000"]
        machines["hv13"].run(*by_hand, "--live", "--config")
        hosts = {name: {**admit(m), **VARIABLES} for name, m in machines.items()}
        for name, domain in DOMAINS.items():
            machines[name].sh(f"virsh dumpxml --inactive {domain} >/root/{domain}.xml")
        made = Fleet(folder, packages, later, key, machines, hosts)
        made.manifests = {name: manifest(m) for name, m in machines.items()}
        made.limits = guest.limits(machines["hv13"], "db1")
        made.libvirtd = show(machines["hv13"], "MainPID", "libvirtd")
        assert made.limits["total_iops_sec"] == "3000"
        yield made


def which(name: str) -> Path:
    found = shutil.which(name)
    assert found, f"{name} is missing: run agent/prerequisites"
    return Path(found)


def show(machine: Machine, name: str, unit: str = "iokeel") -> str:
    return machine.run("systemctl", "show", "--value", f"--property={name}", unit).strip()


def differences(fleet: Fleet, name: str) -> list[str]:
    """Return what a host has more (+) or less (-) than before iokeel came."""
    before, after = fleet.manifests[name], manifest(fleet.machines[name])
    gone, new = {*before} - {*after}, {*after} - {*before}
    return sorted([f"+{line}" for line in new] + [f"-{line}" for line in gone])


# Before


def test_check_mode_says_what_it_would_do_and_does_nothing(fleet: Fleet) -> None:
    played = fleet.play("deploy.yml", "--check", "--diff")
    assert played.changed["hv12"] > 0
    assert played.changed["hv13"] > 0
    assert f"iokeel {__version__}~deb13 would be installed (now: nothing)" in played.out
    for name in fleet.machines:
        assert differences(fleet, name) == []


def test_hosts_without_an_io_controller_are_refused_unless_told(fleet: Fleet) -> None:
    played = fleet.play("deploy.yml", "--limit=hv13", "--check", iokeel_cgroup={})
    (failure,) = played.failures
    assert "cgroup v2 has no io controller" in failure[1]


def test_policies_are_refused_before_there_is_an_agent(fleet: Fleet) -> None:
    fleet.hosts["hv13"]["iokeel_policies"] = POLICIES["hv13"]
    played = fleet.play("policies.yml", "--limit=hv13")
    ((_, why),) = played.failures
    assert why == "iokeel isn't installed on this host: run deploy.yml first"


def test_configuring_is_refused_before_there_is_an_agent(fleet: Fleet) -> None:
    played = fleet.play("deploy.yml", "--limit=hv13", "--tags=configure")
    ((_, why),) = played.failures
    assert why == "hv13: iokeel isn't installed: run deploy.yml without --tags"
    assert differences(fleet, "hv13") == []


# Deploy


def test_of_three_hosts_two_are_deployed_and_one_is_named_in_one_line(fleet: Fleet) -> None:
    played = fleet.play("deploy.yml", iokeel_serial=1)
    assert played.status != 0
    ((name, why),) = played.failures
    assert name == "hv14"
    assert why.startswith("hv14: libvirt doesn't answer at qemu:///system")
    assert "install libvirt-daemon-system" in why
    assert differences(fleet, "hv14") == []
    for host in ("hv12", "hv13"):
        assert show(fleet.machines[host], "ActiveState") == "active"
        assert "unreachable=0    failed=0" in next(
            line
            for line in played.out.splitlines()
            if line.startswith(f"{host} ") and "ok=" in line
        )


def test_no_guest_is_changed_before_it_has_a_policy(fleet: Fleet) -> None:
    assert guest.limits(fleet.machines["hv13"], "db1") == fleet.limits


def test_second_run_changes_nothing(fleet: Fleet) -> None:
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def test_check_mode_changes_nothing_on_a_deployed_host(fleet: Fleet) -> None:
    assert fleet.good("deploy.yml", "--check", "--diff").changed == {"hv12": 0, "hv13": 0}


@pytest.mark.parametrize("name", DOMAINS)
def test_libvirt_calls_the_hook(fleet: Fleet, name: str) -> None:
    machine, image = fleet.machines[name], f"{guest.IMAGES}/new.img"
    machine.run("truncate", "--size=1M", image)
    bad = guest.domain("new", f"<policy xmlns='{NAMESPACE}' limt='5'/>")
    machine.run("virsh", "create", "/dev/stdin", input=bad)
    machine.sh(f"virsh destroy new; rm {image}")
    said = machine.run("journalctl", "--identifier=iokeel-hook", "--output=cat", "--no-pager")
    assert "guest new starts with a policy that can't be used" in said


def test_libvirt_was_not_restarted_for_the_hook(fleet: Fleet) -> None:
    # The other host's has no guest that runs, so it may end by itself.
    assert show(fleet.machines["hv13"], "MainPID", "libvirtd") == fleet.libvirtd


def test_a_libvirt_that_hangs_is_named_after_half_a_minute(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    machine.run("systemctl", "kill", "--signal=STOP", "libvirtd")
    try:
        played = fleet.play("deploy.yml", "--limit=hv13", "--tags=preflight")
        policies = fleet.play("policies.yml", "--limit=hv13", iokeel_policies=POLICIES["hv13"])
    finally:
        machine.run("systemctl", "kill", "--signal=CONT", "libvirtd")
    said = "libvirt doesn't answer at qemu:///system (it said nothing for 30 s)"
    assert [said in why for _, why in (*played.failures, *policies.failures)] == [True, True]


# Configuration


def test_a_change_is_taken_over_by_a_reload(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    pid = show(machine, "MainPID")
    tenants = {"acme": {"limit": 50000}}
    for host in fleet.hosts.values():
        host["iokeel_tenants"] = tenants
    planned = fleet.good("deploy.yml", "--check", "--diff")
    assert '+[tenants."acme"]\n+limit = 50000' in planned.out
    assert "acme" not in machine.run("cat", CONFIG)
    played = fleet.good("deploy.yml")
    assert played.changed == planned.changed
    assert "limit = 50000" in machine.run("cat", CONFIG)
    assert show(machine, "MainPID") == pid
    assert "the configuration was read again" in machine.run("journalctl", "--unit=iokeel")


def test_a_change_that_takes_a_restart_has_one(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    pid = show(machine, "MainPID")
    for host in fleet.hosts.values():
        host["iokeel_agent"] = {"tick_seconds": 0.5}
    fleet.good("deploy.yml", "--tags=configure")
    assert show(machine, "MainPID") not in ("0", pid)


def test_a_configuration_that_the_agent_refuses_replaces_nothing(fleet: Fleet) -> None:
    machine = fleet.machines["hv12"]
    pid, text = show(machine, "MainPID"), machine.run("cat", CONFIG)
    bad = {"mine": {"limt": 5}}
    for mode in ("--check", "--diff"):
        words = ["--limit=hv12,hv13", mode]
        played = fleet.play("deploy.yml", *words, iokeel_serial=1, iokeel_classes=bad)
        # The run ends with the first batch that fails.
        ((name, why),) = played.failures
        assert name == "hv12"
        assert f"{CONFIG}, [classes.mine] limt: not known" in why
        assert "the old configuration stays" in why
        assert (show(machine, "MainPID"), machine.run("cat", CONFIG)) == (pid, text)


def test_a_deployment_that_broke_off_before_the_restart_is_finished_by_the_next(
    fleet: Fleet,
) -> None:
    machine = fleet.machines["hv13"]
    pid, reads = show(machine, "MainPID"), config_reads(machine)
    fleet.hosts["hv13"]["iokeel_tenants"] = {"acme": {"limit": 60000}}
    at = "Start the agent, now and at each boot"
    break_off("deploy.yml", fleet.inventory(), at, "--limit=hv13")
    assert "limit = 60000" in machine.run("cat", CONFIG)
    assert (show(machine, "MainPID"), config_reads(machine)) == (pid, reads)
    played = fleet.play("deploy.yml", "--limit=hv13")
    assert (played.status, played.changed["hv13"] > 0) == (0, True)
    assert show(machine, "MainPID") not in ("0", pid)
    assert fleet.play("deploy.yml", "--limit=hv13").changed == {"hv13": 0}


def test_a_libvirt_that_does_not_reload_ends_the_deployment_and_not_the_agents_part(
    fleet: Fleet,
) -> None:
    first, second = fleet.machines["hv12"], fleet.machines["hv13"]
    reads, text = config_reads(first), second.run("cat", CONFIG)
    drop_in = "/run/systemd/system/libvirtd.service.d"
    first.sh(f"mkdir {drop_in}; touch {HOOK}")
    first.sh(f"echo '[Service]\nExecReload=\nExecReload=/bin/false' >{drop_in}/broken.conf")
    first.run("systemctl", "daemon-reload")
    for host in fleet.hosts.values():
        host["iokeel_tenants"] = {"acme": {"limit": 70000}}
    played = fleet.play("deploy.yml", "--limit=hv12,hv13", iokeel_serial=1)
    first.sh(f"rm -r {drop_in}; systemctl daemon-reload")
    assert [name for name, _ in played.failures] == ["hv12"]
    assert "Unable to reload service libvirtd.service" in played.out
    assert "limit = 70000" in first.run("cat", CONFIG)
    assert config_reads(first) == reads + 1
    assert second.run("cat", CONFIG) == text
    fleet.good("deploy.yml")
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def config_reads(machine: Machine) -> int:
    """Return how often the agent has read its configuration again."""
    said = machine.run("journalctl", "--unit=iokeel", "--output=cat", "--no-pager")
    return said.count("the configuration was read again")


def test_the_service_is_let_out_to_etcd_as_long_as_there_is_a_fleet(fleet: Fleet) -> None:
    machine, url = fleet.machines["hv13"], "http://10.99.0.1:2379"
    machine.run("ip", "address", "add", "10.99.0.1/32", "dev", "lo")
    urls = (f"--listen-client-urls={url}", f"--advertise-client-urls={url}")
    machine.run("systemd-run", "--quiet", "--unit=etcd", "etcd", "--data-dir=/tmp/etcd", *urls)
    ask = ["etcdctl", f"--endpoints={url}", "get", "--keys-only", "--prefix", "/iokeel/hosts/"]
    eventually(lambda: machine.status(*ask)[0] == 0, what="etcd answers")
    confined = [f"--property=IPAddress{rule}" for rule in ("Deny=any", "Allow=localhost")]
    alone = machine.status("systemd-run", "--quiet", "--wait", "--collect", *confined, *ask)
    assert alone[0] != 0, "the machine's systemd lets everything out"
    assert allowed(machine) == {"127.0.0.0/8", "::1/128"}

    fleet.hosts["hv13"]["iokeel_fleet"] = {"etcd": [url]}
    words = ["--limit=hv13", "--tags=configure,service"]
    planned = fleet.play("deploy.yml", *words, "--check", "--diff")
    assert "+IPAddressAllow=10.99.0.1\n" in planned.out
    for addresses in ("", "10.99.0.0/24, 10.98.0.1/32"):  # as words, which -e gives
        fleet.hosts["hv13"]["iokeel_fleet_addresses"] = addresses
        machine.run("systemctl", "stop", "iokeel")
        eventually(lambda: machine.run(*ask) == "", 60, what="the host has left the fleet")
        for changes in (True, False):
            played = fleet.play("deploy.yml", *words)
            assert (played.status, played.changed["hv13"] > 0) == (0, changes)
        let_out = (addresses or "10.99.0.1/32").split(", ")
        assert allowed(machine) == {"127.0.0.0/8", "::1/128", *let_out}
        eventually(lambda: machine.run(*ask) != "", 60, what="the host is in the fleet")
    del fleet.hosts["hv13"]["iokeel_fleet"]
    assert fleet.play("deploy.yml", *words).status == 0
    assert allowed(machine) == {"127.0.0.0/8", "::1/128"}
    machine.run("systemctl", "stop", "etcd")


def test_a_fleet_that_a_host_cannot_use_ends_the_deployment_there(fleet: Fleet) -> None:
    first, second, url = fleet.machines["hv12"], fleet.machines["hv13"], "https://10.99.0.2:2379"
    text = second.run("cat", CONFIG)
    for given, why in (
        ({"ca": "/etc/ca.pem"}, "/etc/ca.pem: can't be read: no such file or directory"),
        ({}, f"{url}: can't be reached"),
    ):
        words = {"iokeel_serial": 1, "iokeel_fleet": {"etcd": [url], **given}}
        played = fleet.play("deploy.yml", "--limit=hv12,hv13", **words)
        ((name, said),) = played.failures
        assert (name, why in said) == ("hv12", True)
        assert (url in first.run("cat", CONFIG)) == (not given)
        assert second.run("cat", CONFIG) == text
    fleet.good("deploy.yml")


def allowed(machine: Machine) -> set[str]:
    """Return the networks that the service may talk to."""
    return {*show(machine, "IPAddressAllow").split()}


# Policies


def test_policies_are_all_checked_before_any_is_set(fleet: Fleet) -> None:
    good = POLICIES["hv13"]
    for bad, why in (
        (
            {"idle2": {"limit": 5}},
            "idle2: not on this host, and not on exactly one other host of this run; this one has"
            " idle1",
        ),
        ({"idle1": {"limit": "many"}}, "policy of idle1: "),
    ):
        fleet.hosts["hv12"]["iokeel_policies"] = bad
        fleet.hosts["hv13"]["iokeel_policies"] = good
        played = fleet.play("policies.yml", "--limit=hv12,hv13")
        ((name, said),) = [(n, s) for n, s in played.failures if "more items" not in s]
        assert (name, why in said) == ("hv12", True)
        for machine, domain in (("hv12", "idle1"), ("hv13", "db1")):
            xml = fleet.machines[machine].run("virsh", "dumpxml", domain)
            assert "urn:iokeel" not in xml


def test_a_guest_is_throttled_once_it_has_a_policy(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    guest.rate_above(machine, "db1", 2 * LIMIT)  # nobody holds it yet
    for name, policies in POLICIES.items():
        fleet.hosts[name]["iokeel_policies"] = policies
    planned = fleet.good("policies.yml", "--check", "--diff")
    assert f'+  <drive limit="{LIMIT}" target="vda" />' in planned.out
    assert guest.limits(machine, "db1") == fleet.limits
    machine.run("touch", "/root/db1")  # no policy, though it has the guest's name
    fleet.good("policies.yml")
    machine.run("rm", "/root/db1")
    assert LIMIT / 2 < guest.rate(machine, "db1") < 1.1 * LIMIT
    # A guest that doesn't run has it from its next start on.
    assert 'limit="500"' in fleet.machines["hv12"].run("virsh", "dumpxml", "idle1")


def test_policies_that_are_set_are_set_once(fleet: Fleet) -> None:
    assert fleet.good("policies.yml").changed == {"hv12": 0, "hv13": 0}
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def test_a_bad_policy_of_a_guest_is_named_and_ends_no_deployment(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    metadata = ["virsh", "metadata", "db1", "--uri", "urn:iokeel:policy:1", "--key", "iokeel"]
    good = machine.run(*metadata)
    machine.run(*metadata, "--set", '<policy><drive target="vda" limit="-5"/></policy>')
    try:
        played = fleet.play("deploy.yml", "--limit=hv13", "--tags=verify")
        assert played.status == 0
        assert "limit" in next(line for line in played.out.splitlines() if '"msg": "' in line)
        assert int(guest.limits(machine, "db1")["total_iops_sec"]) <= 1.2 * LIMIT
    finally:
        machine.run(*metadata, "--set", good)


def test_a_tenant_that_has_gone_is_named_and_ends_no_deployment(fleet: Fleet) -> None:
    for words in (["--tags=configure"], []):
        played = fleet.good("deploy.yml", *words, iokeel_tenants={})
        assert "[tenants.acme]: has gone from the configuration" in played.out
    fleet.good("deploy.yml")


def test_qemu_packages_that_do_not_fit_are_refused_in_one_line(fleet: Fleet) -> None:
    packages = qemu_folder(fleet.folder / "qemu")
    (common,) = packages.glob("qemu-system-common_*")
    common.unlink()
    words = {"iokeel_qemu_packages": str(packages)}
    played = fleet.play("patched-qemu.yml", "--limit=hv13", **words)
    assert "apt could not install the patched QEMU" in played.failures[-1][1]
    assert "qemu-system-common" in played.failures[-1][1]
    assert "iokeel" not in fleet.machines["hv13"].run("dpkg-query", "-W", "qemu-system-x86")


def test_a_qemu_that_is_newer_than_the_packages_is_not_replaced(fleet: Fleet) -> None:
    older = qemu_folder(fleet.folder / "older", mark="~iokeel1")
    words = {"iokeel_qemu_packages": str(older)}
    for mode in ("--check", "--diff"):
        played = fleet.play("patched-qemu.yml", "--limit=hv13", mode, **words)
        ((_, why),) = played.failures
        assert "qemu-system-x86" in why
        assert "is newer than that in" in why
        assert played.changed == {"hv13": 0}


# Mending, upgrade, rollback


def test_files_that_were_lost_are_put_back(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    files = (HOOK, "/usr/lib/iokeel/iokeel/errors.py")
    machine.run("rm", *files)
    text = machine.run("cat", CONFIG)
    planned = fleet.good("deploy.yml", "--check")
    assert (planned.changed["hv12"], planned.changed["hv13"] > 0) == (0, True)
    with watch(machine, "db1") as samples:
        fleet.good("deploy.yml")
    machine.run("ls", *files)
    assert machine.run("cat", CONFIG) == text
    held(samples)


def test_documentation_that_a_host_leaves_out_is_no_damage(fleet: Fleet) -> None:
    fleet.machines["hv12"].sh("rm -r /usr/share/doc/iokeel /usr/share/man/man*/iokeel*")
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def held(samples: list[dict[str, int]]) -> None:
    """See that a policy's limit was in force in every sample, for requests of any size."""
    assert len(samples) > 20
    assert [sample for sample in samples if highest_rate(sample) > 1.2 * LIMIT] == []


def test_an_upgrade_and_a_rollback_never_lift_a_limit(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    with watch(machine, "db1") as samples:
        fleet.good("deploy.yml", iokeel_package=str(fleet.later))
        assert machine.run("iokeel", "--version") == f"iokeel {LATER}\n"
        fleet.good("deploy.yml", iokeel_version=__version__)
        assert machine.run("iokeel", "--version") == f"iokeel {__version__}\n"
    held(samples)
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def test_another_build_of_the_same_version_replaces_it(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    other = later_folder(fleet.folder / "other", fleet.packages, mark="")
    given = {"iokeel_package": str(other)}
    planned = fleet.good("deploy.yml", "--check", **given)
    assert (
        f"iokeel {__version__}~deb13 would be installed (now: another build of it)" in planned.out
    )
    with watch(machine, "db1") as samples:
        fleet.good("deploy.yml", **given)
        assert machine.run("iokeel", "--version") == f"iokeel {LATER}\n"
        assert fleet.good("deploy.yml", **given).changed == {"hv12": 0, "hv13": 0}
        fleet.good("deploy.yml")
        assert machine.run("iokeel", "--version") == f"iokeel {__version__}\n"
    held(samples)


def test_the_state_of_a_later_version_is_not_given_to_an_earlier_one(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]

    def write_as(version: int) -> None:
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])"
        words = ("/var/lib/iokeel/state.db", f"PRAGMA user_version = {version}")
        machine.run("systemctl", "stop", "iokeel")
        machine.run("python3", "-c", code, *words)

    write_as(2)
    with watch(machine, "db1") as samples:
        ((_, why),) = fleet.play("deploy.yml", "--limit=hv13").failures
        assert "/var/lib/iokeel/state.db: a later iokeel wrote it: it has version 2" in why
        write_as(1)
        fleet.good("deploy.yml")
    held(samples)
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


def test_a_package_that_was_changed_since_it_was_built_is_refused(fleet: Fleet) -> None:
    (deb,) = fleet.later.glob("*~deb13_*.deb")
    deb.write_bytes(deb.read_bytes() + b" ")
    package = str(fleet.later)
    played = fleet.play("deploy.yml", "--limit=hv13", iokeel_package=package)
    ((_, why),) = played.failures
    assert "isn't the one in" in why
    assert fleet.machines["hv13"].run("iokeel", "--version") == f"iokeel {__version__}\n"


def test_a_disk_that_fills_up_in_mid_install_harms_nobody(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    pid = show(machine, "MainPID")
    machine.run("rm", HOOK)
    machine.sh("mount -t tmpfs -o size=64k tmpfs /usr/lib/iokeel")
    with watch(machine, "db1") as samples:
        played = fleet.play("deploy.yml", "--limit=hv13")
        ((_, why),) = played.failures
        assert "No space left on device" in why
        assert "mend that and deploy again" in why
        assert show(machine, "MainPID") == pid
        machine.run("umount", "/usr/lib/iokeel")
        fleet.good("deploy.yml")
    held(samples)
    assert fleet.good("deploy.yml").changed == {"hv12": 0, "hv13": 0}


# Removal


def test_check_mode_of_remove_removes_nothing(fleet: Fleet) -> None:
    played = fleet.good("remove.yml", "--check", "--diff")
    assert played.changed["hv13"] > 0
    assert show(fleet.machines["hv13"], "ActiveState") == "active"
    assert guest.limits(fleet.machines["hv13"], "db1") != fleet.limits


def test_a_release_that_fails_leaves_the_agent_in_charge_and_the_other_host_goes_on(
    fleet: Fleet,
) -> None:
    machine, other = fleet.machines["hv13"], fleet.machines["hv12"]
    # Not by stopping libvirtd: at its start, it ends a guest that answers too late.
    machine.sh("mv /run/libvirt/libvirt-sock /run/libvirt/away")
    played = fleet.play("remove.yml", "--limit=hv12,hv13")
    machine.sh("mv /run/libvirt/away /run/libvirt/libvirt-sock")
    name, why = played.failures[-1]
    assert name == "hv13"
    assert "db1/vda: not given back" in why
    assert "the agent runs again" in why
    assert show(machine, "ActiveState") == "active"

    def seen() -> list[str]:
        return [vm["domain"] for vm in json.loads(machine.run("iokeel", "stats", "--json"))]

    eventually(lambda: seen() == ["db1"], what="the agent sees the guest again")
    assert other.status("ls", CONFIG, "/usr/bin/iokeel")[0] != 0
    assert fleet.play("deploy.yml", "--limit=hv12").status == 0


def test_limits_that_nothing_could_lift_any_more_are_not_forgotten(fleet: Fleet) -> None:
    machine = fleet.machines["hv13"]
    machine.run("mv", "/usr/bin/iokeel", "/tmp/iokeel")
    played = fleet.play("remove.yml", "--limit=hv13")
    machine.run("mv", "/tmp/iokeel", "/usr/bin/iokeel")
    ((_, why),) = played.failures
    assert "db1/vda has limits of the agent's, but /usr/bin/iokeel is missing" in why
    assert "run deploy.yml, then this again" in why
    assert show(machine, "ActiveState") == "active"


def test_removal_leaves_each_host_as_it_was(fleet: Fleet) -> None:
    # One of them was half removed by hand.
    fleet.machines["hv12"].sh("dpkg --remove iokeel; touch /etc/iokeel/notes")
    fleet.good("remove.yml")
    machine = fleet.machines["hv13"]
    assert guest.limits(machine, "db1") == fleet.limits
    assert guest.limits(machine, "db1", "--config")["total_iops_sec"] == "3000"
    assert guest.rate(machine, "db1") > 2 * LIMIT
    for name, domain in DOMAINS.items():
        # Without the policy; libvirt would leave an empty element if only that were removed.
        fleet.machines[name].run("virsh", "define", f"/root/{domain}.xml")
        fleet.machines[name].sh("systemctl daemon-reload; systemctl reset-failed")
        assert differences(fleet, name) == []


def test_second_removal_changes_nothing(fleet: Fleet) -> None:
    assert fleet.good("remove.yml").changed == {"hv12": 0, "hv13": 0}


def test_a_repository_serves_as_well_as_a_folder(fleet: Fleet) -> None:
    machine = fleet.machines["hv12"]
    fleet.hosts["hv12"]["iokeel_repository"] = {
        "uris": "file:/repository", "suites": ["./"], "components": [],
        "key": str(fleet.key),
    }  # fmt: skip
    for version, changes in (("", True), ("", False), (__version__, False)):
        given = {"iokeel_package": "", "iokeel_version": version}
        played = fleet.play("deploy.yml", "--limit=hv12", **given)
        assert played.status == 0
        assert (played.changed["hv12"] > 0) == changes
    assert machine.run("iokeel", "--version") == f"iokeel {__version__}\n"
    assert show(machine, "ActiveState") == "active"


def test_a_damaged_host_keeps_its_version_though_the_repository_has_a_later_one(
    fleet: Fleet,
) -> None:
    machine, lost = fleet.machines["hv12"], "/usr/lib/iokeel/iokeel/errors.py"
    repository = fleet.hosts["hv12"]["iokeel_repository"]
    machine.run("rm", lost)
    for uris in (["file:/later"], ["file:/later", "file:/repository"]):
        given = {"iokeel_package": "", "iokeel_repository": {**repository, "uris": uris}}
        played = fleet.play("deploy.yml", "--limit=hv12", **given)
        if "file:/repository" in uris:
            assert played.status == 0
        else:
            ((_, why),) = played.failures
            assert f"missing or changed, such as {lost}, and apt did not put them back" in why
            assert f"see that its sources have iokeel {__version__}~deb12" in why
    assert machine.run("iokeel", "--version") == f"iokeel {__version__}\n"


def test_a_page_of_a_repository_is_mended_and_has_the_version_that_is_named(fleet: Fleet) -> None:
    machine, page = fleet.machines["hv12"], "/usr/share/cockpit/iokeel/manifest.json"
    repository = fleet.hosts["hv12"]["iokeel_repository"]
    repository = {**repository, "uris": ["file:/later", "file:/repository"]}
    given = {"iokeel_package": "", "iokeel_page": True, "iokeel_repository": repository}
    words = ["--limit=hv12", "--tags=install"]
    for version in (f"{__version__}+1", __version__):
        for changes in (True, False):
            played = fleet.play("deploy.yml", *words, iokeel_version=version, **given)
            assert (played.status, played.changed["hv12"] > 0) == (0, changes)
        shown = machine.run("dpkg-query", "--show", "--showformat=${Version}\n", "*iokeel")
        assert shown == f"{version}\n{version}~deb12\n"
    machine.run("rm", page)
    assert fleet.play("deploy.yml", *words, **given).changed == {"hv12": 1}
    machine.run("ls", page)
    assert fleet.play("deploy.yml", *words, **given).changed == {"hv12": 0}
    machine.run("apt-get", "-qq", "--yes", "purge", "cockpit-iokeel")
    assert fleet.play("deploy.yml", *words, iokeel_package="").changed == {"hv12": 1}  # the source


def test_of_two_pages_in_a_folder_the_version_says_which(fleet: Fleet) -> None:
    both = shutil.copytree(fleet.packages, fleet.folder / "both")
    shutil.copytree(fleet.later, both, dirs_exist_ok=True)
    given = {"iokeel_package": str(both), "iokeel_page": True}
    words = ["--limit=hv12", "--tags=install", "--check"]
    ((_, why),) = fleet.play("deploy.yml", *words, **given).failures
    assert "several packages" in why
    assert "`make packages-page`, or say which by iokeel_version" in why
    played = fleet.play("deploy.yml", *words, iokeel_version=__version__, **given)
    would = f"cockpit-iokeel {__version__} would be installed"
    assert (played.status, would in played.out) == (0, True)


def test_page_and_fleet_come_if_they_are_wanted_and_go_with_the_agent(fleet: Fleet) -> None:
    machine = fleet.machines["hv12"]
    page = "/usr/share/cockpit/iokeel/manifest.json"
    # The packages come from a folder, then from the repository; Cockpit's always from there.
    for package in (str(fleet.packages), ""):
        given = {"iokeel_package": package, "iokeel_page": True}
        words = ["--limit=hv12", "--tags=install"]
        planned = fleet.play("deploy.yml", *words, "--check", **given)
        assert (planned.status, planned.changed) == (0, {"hv12": 1})
        assert machine.status("ls", page)[0] != 0
        assert fleet.play("deploy.yml", *words, **given).changed == {"hv12": 1}
        assert fleet.play("deploy.yml", *words, **given).changed == {"hv12": 0}
        machine.run("ls", page)
        if package:
            machine.run("apt-get", "-qq", "--yes", "purge", "cockpit-iokeel")
    beyond = {"etcd": ["http://10.99.0.1:2379"]}
    words = ["--limit=hv12", "--tags=configure", "--skip-tags=verify"]
    assert fleet.play("deploy.yml", *words, iokeel_package="", iokeel_fleet=beyond).status == 0
    removed = fleet.good("remove.yml")
    assert "hv12: the fleet still counts what it was granted" in removed.out
    assert "hv13: the fleet" not in removed.out
    machine.sh("systemctl daemon-reload; systemctl reset-failed")
    assert differences(fleet, "hv12") == []
