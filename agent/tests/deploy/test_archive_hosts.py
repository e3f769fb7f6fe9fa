"""The role with the archive, on booted hosts that have no Python libraries of the distribution.

The tests are steps of one story on each host, in this order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from iokeel import __version__
from testing.lab.cache import cached
from testing.machines.container import VARIABLES, Machine
from testing.machines.hypervisor import IMAGE, is_held, show, start_guest
from testing.machines.manifest import manifest
from testing.machines.root import hypervisor
from testing.machines.ssh import admit
from testing.packages.agent import put
from testing.packages.archive import archive
from testing.packages.folder import networked, signed_repository
from testing.playbooks.run import Played, break_off, inventory, play
from testing.waiting import eventually

pytestmark = [pytest.mark.booted, pytest.mark.timeout(3000)]

PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
BINDING = "python3-libvirt"
SETUP = "/usr/lib/iokeel/setup"
SOURCE = "deb [signed-by=/repository/repository.asc] file:/repository ./"


@dataclass
class Deployed:
    """A host, the folders of the archive and of a later build of it, and what it had before."""

    machine: Machine
    folder: Path
    later: Path
    variables: dict[str, Any]
    before: list[str]

    def play(self, playbook: str, *words: str, **variables: Any) -> Played:
        played = play(playbook, self.inventory, *words, **variables)
        print(played.out)
        return played

    def good(self, playbook: str, *words: str, **variables: Any) -> Played:
        played = self.play(playbook, *words, **variables)
        assert played.status == 0
        return played

    @property
    def inventory(self) -> Path:
        return inventory(self.folder, {"hv1": self.variables})


def later_build(present: Path, to: Path) -> Path:
    """Write another build of an archive into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["tar", "-xf", present, "-C", scratch], check=True)
        (tree,) = Path(scratch).iterdir()
        (tree / "build").write_text(re.sub(" .*", " later", (tree / "build").read_text()))
        made = Path(scratch) / present.name
        subprocess.run(["tar", "--sort=name", "-czf", made, "-C", scratch, tree.name], check=True)
        shutil.rmtree(tree)
        put(Path(scratch), to)
    return to


def repository(folder: Path, codename: str) -> Path:
    """Fill a folder with libvirt's binding of a distribution, as a repository for apt."""
    root = hypervisor(codename)

    def download(to: Path) -> None:
        with networked(root, {Path("/debs"): to}) as inside:
            inside.run(["apt-get", "-qq", "update"], timeout=600)
            inside.run(["env", "--chdir=/debs", "apt-get", "-qq", "download", BINDING], timeout=600)

    folder.mkdir(mode=0o755)
    for deb in cached(f"binding-{codename}", [root.name], download).glob("*.deb"):
        shutil.copy(deb, folder)
    signed_repository(folder)
    return folder


@pytest.fixture(scope="module", params=PYTHONS)
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    codename = request.param
    folder = tmp_path_factory.mktemp(codename)
    folder.chmod(0o755)
    (folder / "built").mkdir()
    built = archive(folder / "built", [(PYTHONS[codename], "x86_64")])
    put(built.parent, folder / "packages")
    later = later_build(built, folder / "later")
    binds = {"/repository": repository(folder / "repository", codename)}
    with Machine(codename, binds) as machine:
        machine.sh("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*")
        machine.sh(
            f"apt-get -qq --yes purge '{BINDING}' python3-venv; apt-get -qq --yes autoremove"
        )
        machine.sh(f"echo '{SOURCE}' >/etc/apt/sources.list.d/test.list")
        variables = {
            **admit(machine), **VARIABLES, "iokeel_install": "archive",
            "iokeel_package": str(folder / "packages"),
        }  # fmt: skip
        machine.run("virsh", "list")  # libvirtd writes files of its own as it starts
        yield Deployed(machine, folder, later, variables, manifest(machine))


def differences(host: Deployed) -> list[str]:
    """Return what a host has more (+) or less (-) than before iokeel came."""
    before, after = {*host.before}, {*manifest(host.machine)}
    return sorted([f"+{line}" for line in after - before] + [f"-{line}" for line in before - after])


def test_check_mode_says_what_it_would_do_and_does_nothing(host: Deployed) -> None:
    played = host.good("deploy.yml", "--check", "--diff")
    assert f"iokeel {__version__} would be installed (now: nothing)" in played.out
    assert differences(host) == []


def test_a_deployment_brings_the_agent_and_libvirts_binding(host: Deployed) -> None:
    assert host.machine.status("dpkg-query", "--status", BINDING)[0] != 0
    host.good("deploy.yml")
    assert show(host.machine, "ActiveState") == "active"
    assert show(host.machine, "UnitFileState") == "enabled"
    assert show(host.machine, "NRestarts") == "0"
    assert "ok installed" in host.machine.run("dpkg-query", "--status", BINDING)
    host.machine.run(SETUP, "verify")


def test_second_run_changes_nothing(host: Deployed) -> None:
    assert host.good("deploy.yml").changed == {"hv1": 0}


def test_a_guest_with_a_policy_is_held(host: Deployed) -> None:
    start_guest(host.machine)


def test_a_run_that_breaks_off_is_mended_by_another(host: Deployed) -> None:
    variables = {"iokeel_package": str(host.later)}
    break_off("deploy.yml", host.inventory, "Refuse to go on without the agent", **variables)
    host.machine.sh(
        f"rm {SETUP} /usr/lib/iokeel/iokeel/errors.py; touch /usr/lib/iokeel/unfinished"
    )
    assert is_held(host.machine)
    host.good("deploy.yml", **variables)
    assert host.machine.run(SETUP, "verify") == f"{__version__} later\n"
    assert show(host.machine, "ActiveState") == "active"


def test_another_build_is_an_upgrade_in_place_and_the_guest_stays_held(host: Deployed) -> None:
    pid = show(host.machine, "MainPID")
    host.good("deploy.yml")
    assert not host.machine.run(SETUP, "verify").endswith(" later\n")
    assert show(host.machine, "MainPID") not in ("0", pid)
    assert is_held(host.machine)


def test_packages_are_refused_beside_the_archive(host: Deployed) -> None:
    ((_, why),) = host.play("deploy.yml", iokeel_install="packages", iokeel_package="").failures
    assert why == (
        "hv1: has iokeel from the archive: set iokeel_install to archive, or run remove.yml and "
        "then this again"
    )


def test_a_removal_gives_limits_back_and_leaves_no_trace(host: Deployed) -> None:
    host.good("remove.yml")
    eventually(lambda: not is_held(host.machine), what="the limits are given back")
    host.machine.run("virsh", "destroy", "db1")
    host.machine.run("rm", IMAGE)
    host.machine.sh("systemctl daemon-reload; systemctl reset-failed")
    assert differences(host) == []
