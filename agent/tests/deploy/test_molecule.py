"""The role's scenario for Molecule, as somebody who works on the role runs it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from testing.playbooks.role_doc import ROLE
from testing.playbooks.run import BIN, GROUP

pytestmark = [pytest.mark.booted, pytest.mark.timeout(1200)]

GROUPS = Path("/sys/fs/cgroup")
#: What Molecule itself keeps of a scenario that has been destroyed.
KEPT = {"ansible.cfg", "inventory/ansible_inventory.yml", "state.yml"}


def molecule(folder: Path, *words: str) -> None:
    own = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(folder),
        "ANSIBLE_HOME": str(folder.parent / "ansible"),
    }
    done = subprocess.run(
        ["molecule", *words], cwd=ROLE, env=os.environ | own, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0


def left(name: str) -> list[str]:
    """Return the processes, control groups and mounts that have a name in their own."""
    found = [str(path) for at in ("", "*/") for path in GROUPS.glob(f"{at}*") if path.name == name]
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(file.read_text().replace("\0", " "))
    found += Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in found if name in line]


def test_scenario_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "molecule"
    try:
        molecule(folder, "test", "--destroy=never")
        hosts = json.loads((folder / "inventory/hosts.json").read_text())[GROUP]["hosts"]
        assert {*hosts} == {"bookworm", "trixie"}
        names = [str(folder), *(host["ansible_host"] for host in hosts.values())]
        assert all(left(name) for name in names)
    finally:
        molecule(folder, "destroy")
    assert [line for name in names for line in left(name)] == []
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == KEPT
