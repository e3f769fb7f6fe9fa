"""Which guest a policy is set on: policies.yml, and real virsh with names that differ in blanks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from testing.playbooks.run import inventory, play

OURS, THEIRS = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")
LOCAL = {"ansible_connection": "local", "ansible_become": False}
# The last ends a line for Python's str, and what comes after it would be `db1` of another UUID.
ALIKE = ("db1 ", " db1", "db1\u00a0", f"x\u2028{THEIRS} db1")


@pytest.mark.parametrize("alike", ALIKE)
def test_a_policy_is_set_on_the_guest_of_exactly_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: str
) -> None:
    # libvirt's driver for tests forgets what is set, so it is noted which guest is asked for.
    log, virsh = tmp_path / "log", tmp_path / "bin/virsh"
    virsh.parent.mkdir()
    virsh.write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec {shutil.which("virsh")} "$@"\n')
    virsh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{virsh.parent}:{os.environ['PATH']}")
    node = tmp_path / "node.xml"
    domains = [domain("db1", OURS), domain(alike, THEIRS)]
    node.write_text(f"<node>{''.join(domains)}</node>", encoding="utf-8")
    policy = {"db1": {"tenant": "acme"}, alike: {"tenant": "theirs"}}
    for name, uuid in (("db1", OURS), (alike, THEIRS)):
        log.unlink(missing_ok=True)
        hosts = inventory(
            tmp_path,
            {"hv1": LOCAL},
            iokeel_libvirt={"uri": f"test://{node}"},
            iokeel_policies={name: policy[name]},
        )
        played = play("policies.yml", hosts, "--check", "--diff")
        assert played.changed == {"hv1": 2}, played.out  # as checked, and as it would be set
        asked = [
            words[3]
            for line in log.read_text().splitlines()
            if "dumpxml" in (words := line.split())
        ]
        assert {*asked} == {uuid}


def domain(name: str, uuid: str) -> str:
    return (
        f"<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>"
        "<os><type>hvm</type></os></domain>"
    )
