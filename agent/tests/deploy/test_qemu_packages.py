"""The patched QEMU packages over Debian's on a booted Debian 13, with a guest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.machines.container import Machine
from testing.machines.guest import limits
from testing.machines.hypervisor import LIMIT, create_guest, mode, show, start_guest
from testing.packages.agent import packages
from testing.packages.qemu import CODENAME, MARK, qemu_packages
from testing.waiting import eventually
from tests.exact.guests import exact

pytestmark = [pytest.mark.booted, pytest.mark.trixie, pytest.mark.timeout(3 * 3600)]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    folders = {"/packages": packages(CODENAME), "/qemu": qemu_packages()}
    with Machine(CODENAME, folders) as running:
        yield running


def test_a_guest_has_exact_limits_once_it_is_started_on_the_packages(machine: Machine) -> None:
    machine.sh("dpkg --install /packages/iokeel_*.deb")
    eventually(lambda: show(machine, "ActiveState") == "active", what="iokeel.service is active")
    start_guest(machine)
    held = limits(machine, "db1")
    assert mode(machine) == "retune"
    pid = machine.run("pgrep", "qemu-system").strip()
    show_each = "dpkg-query --show --showformat='${db:Status-Status} ${Package}\\n' 'qemu-*'"
    known = [line.split() for line in machine.sh(show_each).splitlines()]
    there = [package for status, package in known if status == "installed"]
    debs = sorted(Path(deb).name for deb in machine.sh("ls /qemu/*.deb").split())
    wanted = [f"/qemu/{deb}" for deb in debs if deb.split("_")[0] in there]
    assert {Path(deb).name.split("_")[0] for deb in wanted} >= {
        "qemu-system-common", "qemu-system-x86", "qemu-utils",
    }  # fmt: skip
    machine.run("dpkg", "--install", *wanted)
    assert MARK in machine.run("qemu-system-x86_64", "--version")
    assert machine.run("pgrep", "qemu-system").strip() == pid  # the guest runs on, as it was
    assert (limits(machine, "db1"), mode(machine)) == (held, "retune")
    machine.run("virsh", "destroy", "db1")
    create_guest(machine)
    eventually(lambda: exact(machine, LIMIT), what="QEMU has the limit and the curve")
    assert mode(machine) == "exact"
    assert machine.run("dpkg", "--audit") == ""
