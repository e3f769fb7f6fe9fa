"""The commands of docs/operations.md, and the three in README.md, on a booted host, in order."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from iokeel import __version__
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.machines import guest
from testing.machines.container import VARIABLES, Machine
from testing.machines.ssh import admit
from testing.packages.folder import qemu_folder, summed
from testing.packages.qemu import MARK
from testing.playbooks.run import BIN, PLAYBOOKS, inventory
from testing.waiting import eventually

pytestmark = [pytest.mark.booted, pytest.mark.trixie, pytest.mark.timeout(1800)]

PROJECT = PLAYBOOKS.parent
NAME = "hv1.example.com"
# A calibration of minutes, in a folder that the guest uses.
FASTER = {"quick": True, "seconds": 0.2, "size": "32m", "even_if_in_use": True}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A trial is for hosts that hold nothing yet; test_archive_hosts.py has the other ways to install.
_ELSEWHERE = re.compile(r"^## (?:A trial|Distributions)\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
OBSERVED = '<policy><drive target="vda" limit="100"/></policy>'


@dataclass
class Desk:
    """A machine to administer, and the operator's inventory."""

    machine: Machine
    folder: Path
    host: dict[str, Any]
    qemu: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def controller(self, command: str, cwd: Path) -> None:
        """Run a command where Ansible runs; it has to succeed."""
        hosts = inventory(self.folder, {NAME: self.host}, **self.variables)
        own = {".venv/bin/": f"{BIN}/",
               "iokeel_version=0.1.0": f"iokeel_version={__version__}",  # test_upgrade.py goes back
               "make -C .. packages-qemu": f"ls {self.qemu}",
               "iokeel_qemu_packages=../build/packages": f"iokeel_qemu_packages={self.qemu}",
               "-i playbooks/inventory": f"-i {hosts}"}  # fmt: skip
        for shown, here in own.items():
            command = command.replace(shown, here)
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "ANSIBLE_INVENTORY": str(hosts),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
        }
        done = subprocess.run(
            ["sh", "-c", command], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200,
        )  # fmt: skip
        print(f"$ {command}\n{done.stdout}")
        assert done.returncode == 0, command

    def hypervisor(self, command: str) -> str:
        """Run a command on the hypervisor; it has to succeed."""
        out = self.machine.run("sh", "-c", command)
        print(f"# {command}\n{out}")
        return out

    def follow(self, text: str) -> int:
        """Set a page's variables and run its commands, in their order; return how many."""
        ran = 0
        for kind, block in _BLOCK.findall(text):
            if kind == "yaml":
                self.variables |= yaml.safe_load(block)
                for one in self.variables.get("iokeel_calibrate", ()):
                    one |= FASTER
                continue
            if kind == "promql":  # tests/monitoring asks a Prometheus
                continue
            assert kind == "console"
            for line in block.splitlines():
                assert line[:2] in ("$ ", "# ")
                if line[0] == "$":
                    self.controller(line[2:], PLAYBOOKS)
                else:
                    self.hypervisor(line[2:])
                ran += 1
        return ran


@pytest.fixture(scope="module")
def qemu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the patched QEMU's packages."""
    return qemu_folder(tmp_path_factory.mktemp("qemu") / "qemu")


@contextmanager
def administered(folder: Path, qemu: Path, *guests: str) -> Iterator[Desk]:
    with Machine("trixie") as machine:
        for name in guests:
            guest.define(machine, name)
        variables = {"iokeel_package": "{{ playbook_dir }}/../build/packages", **VARIABLES}
        yield Desk(machine, folder, dict(admit(machine)), qemu, variables)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, qemu: Path) -> Iterator[Desk]:
    with administered(tmp_path_factory.mktemp("desk"), qemu, "db1") as made:
        yield made


def test_a_trial_holds_the_one_guest_that_it_says_and_no_other(tmp_path: Path, qemu: Path) -> None:
    with administered(tmp_path, qemu, "db1", "db7") as desk:
        words = ("virsh", "metadata", "db1", NAMESPACE, "--key", "iokeel", "--set", OBSERVED)
        desk.machine.run(*words, "--live", "--config")
        desk.controller("make packages-agent", PROJECT)
        page = (PROJECT / "docs/operations.md").read_text()
        trial = page.split("\n## A trial\n")[1].split("\n## ")[0]
        watching, enforcing = trial.split("**Day eight.**")
        assert desk.follow(watching) == 7
        assert "limit of 100" in desk.hypervisor("iokeel why db1")
        assert guest.limits(desk.machine, "db1") == guest.limits(desk.machine, "db7") == {}
        assert desk.follow(enforcing) == 3
        eventually(lambda: "total_iops_sec" in guest.limits(desk.machine, "db7"))
        assert guest.limits(desk.machine, "db1") == {}


def test_three_commands_of_the_readme_throttle_the_first_guest(desk: Desk) -> None:
    text = (PROJECT / "README.md").read_text().split("## On your hypervisors")[1]
    commands = _BLOCK.findall(text)[0][1].splitlines()
    assert len(commands) == 3
    example = PLAYBOOKS / f"inventory/host_vars/{NAME}/main.yml"
    desk.variables["iokeel_policies"] = yaml.safe_load(example.read_text())["iokeel_policies"]
    assert guest.limits(desk.machine, "db1") == {}
    for command in commands:
        desk.controller(command, PROJECT)
    assert 'limit="1500"' in desk.machine.run("virsh", "dumpxml", "db1")
    assert int(guest.limits(desk.machine, "db1")["total_iops_sec"]) > 0


def test_commands_of_the_operations_page_succeed_in_their_order(desk: Desk) -> None:
    page, sections = _ELSEWHERE.subn("", (PROJECT / "docs/operations.md").read_text())
    assert sections == 2
    assert desk.follow(page) > 20
    assert desk.machine.status("iokeel")[0] == 127
    assert guest.limits(desk.machine, "db1") == {}


def test_another_build_of_the_patched_qemu_replaces_it(desk: Desk, tmp_path: Path) -> None:
    (deb,) = desk.qemu.glob("qemu-utils_*.deb")
    subprocess.run(["dpkg-deb", "-R", deb, tmp_path], check=True)
    (tmp_path / "usr/share/another-build").touch()
    with (tmp_path / "DEBIAN/md5sums").open("a") as sums:
        sums.write("d41d8cd98f00b204e9800998ecf8427e  usr/share/another-build\n")
    subprocess.run(["dpkg-deb", "-b", "--root-owner-group", "-Znone", tmp_path, deb], check=True)
    summed(desk.qemu)
    command = "ansible-playbook patched-qemu.yml -e iokeel_qemu_packages=../build/packages"
    desk.controller(command, PLAYBOOKS)
    assert desk.machine.run("ls", "/usr/share/another-build")
    files = desk.machine.sh("ls --full-time /usr/bin/qemu-system-x86_64 /var/lib/dpkg/info")
    desk.controller(command, PLAYBOOKS)
    again = desk.machine.sh("ls --full-time /usr/bin/qemu-system-x86_64 /var/lib/dpkg/info")
    assert again == files


def test_the_way_back_from_the_patched_qemu_names_debians_versions(desk: Desk) -> None:
    page = (PROJECT / "docs/operations.md").read_text()
    command = page.split("\n# apt-get install --allow-downgrades")[1].split("```")[0]
    named = desk.machine.sh(f"echo {command}").split()
    installed = desk.machine.sh(
        "dpkg-query --show --showformat='${Package}=${Version}\\n' 'qemu-*' | grep iokeel"
    ).split()
    assert len(named) > 2
    assert [f"{name}{MARK}" for name in named] == installed
