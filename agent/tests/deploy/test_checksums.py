"""Package files that aren't those that were built: refused, wherever the role installs one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from testing.playbooks.role_doc import ROLE
from testing.playbooks.run import inventory, play

LOCAL = {"ansible_connection": "local", "ansible_become": False}
# Those that copy a package file to the host.
# Each with what installs it.
INSTALLING = dict.fromkeys(("install.yml", "page.yml", "patched_qemu.yml"), "- apt-get\n")
INSTALLING["archive.yml"] = "/setup', 'install'"


@pytest.mark.parametrize("damage", ["none", "changed", "not listed", "no sums"])
def test_a_package_file_that_is_not_the_one_that_was_built_is_refused(
    tmp_path: Path, damage: str
) -> None:
    built, host = tmp_path / "built", tmp_path / "host"
    listed = ""
    for folder in (built, host):
        folder.mkdir()
        for name in ("a_1_amd64.deb", "b_1_amd64.deb"):
            (folder / name).write_bytes(name.encode())
            listed += f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
    if damage == "changed":
        (host / "b_1_amd64.deb").write_bytes(b"other")
    if damage == "not listed":
        listed = listed.replace("b_1", "c_1")
    if damage != "no sums":
        (built / "SHA256SUMS").write_text(listed)
    task = {
        "ansible.builtin.include_tasks": f"{ROLE}/tasks/checksums.yml",
        "vars": {
            "__iokeel_copies": [f"{host}/a_1_amd64.deb", f"{host}/b_1_amd64.deb"],
            "__iokeel_from": f"{built}",
            "__iokeel_make": "make packages-x",
        },
    }
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    said = [why for _, why in play(playbook, inventory(tmp_path, {"hv1": LOCAL})).failures]
    wrong = f"hv1: {built}/b_1_amd64.deb isn't the one in {built}/SHA256SUMS"
    refused = [f"{wrong}: build it again with `make packages-x`"]
    assert said == ([] if damage in ("none", "no sums") else refused)


@pytest.mark.parametrize("file", INSTALLING)
def test_each_copy_of_a_package_file_is_compared_before_it_is_installed(file: str) -> None:
    text = (ROLE / "tasks" / file).read_text()
    copied, compared = text.index("ansible.builtin.copy:"), text.index(": checksums.yml")
    assert copied < compared < text.index(INSTALLING[file])


def test_no_other_task_copies_a_package_file() -> None:
    copying = {
        file.name
        for file in (ROLE / "tasks").glob("*.yml")
        if 'dest: "/var/cache/apt/archives' in (text := file.read_text())
        or 'dest: "{{ __iokeel_copy }}' in text
    }
    assert copying == {*INSTALLING}
