"""The packages on a booted Debian: installed, used, upgraded, removed, purged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.lab.roots.namespace import Namespace
from testing.machines.container import Machine
from testing.machines.hypervisor import (
    CONFIG,
    IMAGE,
    configure,
    is_held,
    journal,
    show,
    start_guest,
    stats,
)
from testing.machines.manifest import manifest
from testing.packages.agent import DISTRIBUTIONS, build_root
from testing.packages.folder import LATER, later_folder, package_folder
from testing.waiting import eventually

HOOK = "/etc/libvirt/hooks/qemu.d/50-iokeel"

pytestmark = [pytest.mark.booted, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def codename(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def built(codename: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as `old.deb`, and the same with a later version as `new.deb`."""
    folder = tmp_path_factory.mktemp("packages")
    present = package_folder(folder / "present", [codename])
    later = later_folder(folder / "later", present)
    for name, of in (("old", present), ("new", later)):
        (deb,) = of.glob("iokeel_*.deb")
        shutil.copy(deb, folder / f"{name}.deb")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def machine(codename: str, built: Path) -> Iterator[Machine]:
    with Machine(codename, {"/packages": built}) as running:
        yield running


@pytest.fixture(scope="module")
def before(machine: Machine) -> list[str]:
    """What the machine had before the package."""
    machine.run("virsh", "list")  # libvirtd writes files of its own as it starts
    return manifest(machine)


@pytest.fixture(scope="module")
def host(machine: Machine, before: list[str]) -> Machine:
    """The machine with the package, and a guest with a policy."""
    machine.run("dpkg", "--install", "/packages/old.deb")
    eventually(lambda: show(machine, "ActiveState") == "active", what="iokeel.service is active")
    return machine


@pytest.fixture(scope="module")
def guest(host: Machine) -> Machine:
    start_guest(host)
    return host


def test_lintian_has_no_errors_and_no_warnings(
    codename: str, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lintian")
    (folder / "run").mkdir()
    packages_of = {Path("/packages"): (built, "ro")}
    with Namespace(folder / "run", build_root(codename), packages_of) as inside:
        done = inside.run(["lintian", "/packages/old.deb"], check=False)
    assert done.stdout.splitlines() == []


def test_completions_are_scripts_of_their_shells(
    codename: str, built: Path, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "-x", built / "old.deb", tmp_path / "x"], check=True)
    (tmp_path / "run").mkdir()
    files = {
        "bash": "bash-completion/completions/iokeel",
        "zsh": "zsh/vendor-completions/_iokeel",
        "fish": "fish/vendor_completions.d/iokeel.fish",
    }
    with Namespace(
        tmp_path / "run", build_root(codename), {Path("/x"): (tmp_path / "x", "ro")}
    ) as inside:
        for shell, file in files.items():
            inside.run([shell, "-n", f"/x/usr/share/{file}"])


def test_service_is_ready_and_the_command_answers(host: Machine) -> None:
    assert show(host, "StatusText") == "VMs: 0, drives with limits: 0"
    assert stats(host) == []
    assert show(host, "UnitFileState") == "enabled"
    assert show(host, "NRestarts") == "0"


def test_members_of_the_group_may_ask_and_others_may_not(host: Machine) -> None:
    ask = "setpriv --reuid=65534 --regid=65534 --clear-groups iokeel stats --json"
    status, said = host.status("sh", "-c", ask)
    assert (status, "permission denied" in said) == (1, True)
    assert host.sh(ask.replace("--clear-groups", "--groups=iokeel")) == "[]\n"


def test_manuals_are_there(host: Machine) -> None:
    pages = host.sh("ls /usr/share/man/man1/iokeel* /usr/share/man/man5/agent.toml*").split()
    names = {Path(page).name for page in pages}
    assert {"iokeel.1.gz", "iokeel-policy-check.1.gz", "agent.toml.5.gz"} <= names


def test_exposure_of_the_running_unit_is_low(host: Machine) -> None:
    host.run("systemd-analyze", "security", "--no-pager", "--threshold=30", "iokeel.service")


def test_a_guest_with_a_policy_gets_limits_and_a_storage(guest: Machine) -> None:
    (vm,) = stats(guest)
    (drive,) = vm["drives"]
    assert (vm["domain"], drive["limit_iops"], drive["error"]) == ("db1", 500, None)
    eventually(
        lambda: show(guest, "StatusText") == "VMs: 1, drives with limits: 1", what="the status"
    )


def test_reload_takes_a_good_configuration_over(guest: Machine) -> None:
    pid = show(guest, "MainPID")
    configure(guest, '[agent]\nmetrics_address = "127.0.0.1:9632"\nlog_level = "info"\n')
    guest.run("systemctl", "reload", "iokeel")
    eventually(
        lambda: "[agent] metrics_address: takes a restart" in journal(guest), what="it is told"
    )
    assert show(guest, "MainPID") == pid
    guest.run("systemctl", "restart", "iokeel")
    assert "iokeel_agent_tick_seconds" in guest.run(
        "python3", "-c",
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9632/metrics').read())",
    )  # fmt: skip


def test_reload_of_a_bad_configuration_fails_and_changes_nothing(guest: Machine) -> None:
    pid = show(guest, "MainPID")
    configure(guest, "[agent]\ntick_second = 1.0\n")
    status, _ = guest.status("systemctl", "reload", "iokeel")
    wrong = f"{CONFIG}, [agent] tick_second: not known; did you mean 'tick_seconds'?"
    try:
        assert status == 1
        eventually(lambda: show(guest, "StatusText").endswith(wrong), what="the status says it")
    finally:
        configure(guest, "")
    assert f"the configuration stays as it was: {wrong}" in journal(guest)
    assert (show(guest, "ActiveState"), show(guest, "MainPID")) == ("active", pid)
    assert is_held(guest)
    guest.run("systemctl", "reload", "iokeel")
    eventually(lambda: show(guest, "StatusText").endswith("limits: 1"), what="the status is good")


def test_a_killed_agent_is_started_again_and_its_limits_stay(guest: Machine) -> None:
    pid = show(guest, "MainPID")
    guest.run("kill", "-KILL", pid)
    assert is_held(guest)
    eventually(
        lambda: show(guest, "MainPID") not in ("0", pid) and show(guest, "SubState") == "running",
        what="it runs again",
    )
    assert is_held(guest)


def test_a_hung_agent_is_started_again(guest: Machine) -> None:
    folder = "/run/systemd/system/iokeel.service.d"
    guest.sh(f"mkdir {folder}; echo '[Service]\nWatchdogSec=10s' >{folder}/watchdog.conf")
    guest.sh("systemctl daemon-reload; systemctl restart iokeel")
    pid = show(guest, "MainPID")
    guest.run("kill", "-STOP", pid)
    eventually(
        lambda: show(guest, "MainPID") not in ("0", pid) and show(guest, "SubState") == "running",
        60, what="it runs again",
    )  # fmt: skip
    assert "Watchdog timeout" in guest.run("journalctl", "--unit=iokeel", "--no-pager")
    assert is_held(guest)
    guest.sh(f"rm -r {folder}; systemctl daemon-reload; systemctl restart iokeel")


def test_restart_of_libvirtd_and_of_the_hook_lose_nothing(guest: Machine) -> None:
    guest.run("systemctl", "restart", "libvirtd")
    assert is_held(guest)
    xml = guest.run("virsh", "dumpxml", "db1")
    bad = xml.replace("limit=", "limt=")
    said = guest.run(HOOK, "db1", "prepare", "begin", "-", input=bad)
    assert "attribute 'limt' is not known" in said
    assert guest.run(HOOK, "db1", "prepare", "begin", "-", input=xml) == ""


def test_upgrade_that_refuses_the_configuration_leaves_the_old_agent_running(
    guest: Machine,
) -> None:
    pid = show(guest, "MainPID")
    configure(guest, "[agent]\nlog_levl = 1\n")
    said = guest.run("dpkg", "--force-confold", "--install", "/packages/new.deb")
    assert "the old agent runs on" in said
    assert guest.run("iokeel", "--version") == f"iokeel {LATER}\n"
    assert (show(guest, "ActiveState"), show(guest, "MainPID")) == ("active", pid)
    assert is_held(guest)
    configure(guest, "")
    guest.run("dpkg", "--force-confold", "--install", "/packages/old.deb")
    eventually(lambda: show(guest, "MainPID") not in ("0", pid), what="the agent is another")


def test_upgrade_restarts_the_agent_and_keeps_configuration_and_limits(guest: Machine) -> None:
    configure(guest, '[agent]\nlog_level = "debug"\n')
    pid = show(guest, "MainPID")
    guest.run("dpkg", "--force-confold", "--install", "/packages/new.deb")
    assert show(guest, "MainPID") not in ("0", pid)
    assert "debug" in guest.run("cat", CONFIG)
    assert is_held(guest)
    assert show(guest, "ActiveState") == "active"


def test_removal_leaves_limits_and_purge_leaves_nothing(guest: Machine, before: list[str]) -> None:
    guest.run("dpkg", "--remove", "iokeel")
    assert is_held(guest)
    assert show(guest, "ActiveState") == "inactive"
    assert guest.run("cat", CONFIG)
    assert "state.db" in guest.run("ls", "/var/lib/iokeel")
    xml = guest.run("virsh", "dumpxml", "db1")
    assert "urn:iokeel:policy" in xml
    assert guest.run(HOOK, "db1", "prepare", "begin", "-", input=xml) == ""
    guest.run("dpkg", "--purge", "iokeel")
    guest.run("virsh", "destroy", "db1")
    guest.run("rm", IMAGE)
    guest.sh("systemctl daemon-reload; systemctl reset-failed")
    after = manifest(guest)
    assert [f"+{line}" for line in after if line not in before] + [
        f"-{line}" for line in before if line not in after
    ] == []
