"""The rules of docs/platforms.md, with the domains that each platform makes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.config.rules import rule_complaints
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.rules.compose import compose
from iokeel.rules.proxmox import proxmox_facts
from testing.agents import iokeel
from tests.unit.rules import platforms

PAGE = (Path(__file__).parents[4] / "docs/platforms.md").read_text()
SOLD = "<iotune><total_iops_sec>700</total_iops_sec></iotune></disk>"
APART = (
    "<iotune><read_iops_sec>700</read_iops_sec><write_iops_sec>700</write_iops_sec></iotune></disk>"
)


def rules(section: str) -> str:
    """Return the configuration that a section shows."""
    text = PAGE.split(f"## {section}\n")[1]
    found = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def with_limits(xml: str, iotune: str) -> str:
    """Return a domain whose last disk has limits of the platform's."""
    head, _, tail = xml.rpartition("</disk>")
    return f"{head}{iotune}{tail}"


# What each drive has: its limit, and whether reads and writes have it apart.
CASES = [
    ("OpenStack", platforms.nova(), {"vda": 10_000, "vdb": 10_000}, platforms.PROJECT),
    (
        "OpenStack",
        platforms.nova("m1.small", iokeel__class="silver"),
        {"vda": 4000, "vdb": 4000},
        platforms.PROJECT,
    ),
    (
        "OpenStack",
        with_limits(platforms.nova("m1.small", quota__disk_total_iops_sec="500"), SOLD),
        {"vda": 500, "vdb": 700},
        platforms.PROJECT,
    ),
    ("OpenStack", platforms.nova("m1.small"), {"vda": 1000, "vdb": 1000}, platforms.PROJECT),
    ("oVirt", platforms.ovirt(), {"sda": 10_000}, None),
    ("OpenNebula", with_limits(platforms.opennebula(), SOLD), {"vda": 700}, "acme"),
    ("OpenNebula", platforms.opennebula(), {"vda": 1000}, "acme"),
    ("KubeVirt", platforms.kubevirt(), {"vda": 4000}, "mynamespace"),
    ("CloudStack", with_limits(platforms.cloudstack(), APART), {"vda": 700}, "account-7"),
    ("CloudStack", platforms.cloudstack("r-4-VM"), {"vda": None}, None),
]


@pytest.mark.parametrize(("section", "xml", "limits", "tenant"), CASES)
def test_the_rules_of_a_platform_hold_its_guests(
    tmp_path: Path, section: str, xml: str, limits: dict[str, int | None], tenant: str | None
) -> None:
    (tmp_path / "agent.toml").write_text(rules(section))
    (tmp_path / "vm.xml").write_text(xml)
    words = ("--config", tmp_path / "agent.toml", "--json")
    done = iokeel("rules", "explain", tmp_path / "vm.xml", *words)
    assert (done.status, done.err) == (0, "")
    guest = json.loads(done.out)
    has = {target: drive and drive["limit_iops"] for target, drive in guest["promised"].items()}
    assert has == limits
    assert guest["tenant"] == tenant
    apart = any(drive and drive["separate_budgets"] for drive in guest["promised"].values())
    assert apart == (APART in xml)


@pytest.mark.parametrize("section", sorted({section for section, *_ in CASES}))
def test_nothing_is_wrong_with_the_rules_of_a_platform(tmp_path: Path, section: str) -> None:
    text = f'[agent]\nsocket = "{tmp_path}/s"\nstate_dir = "{tmp_path}"\n{rules(section)}'
    (tmp_path / "agent.toml").write_text(text)
    done = iokeel("agent", "--check", "--config", tmp_path / "agent.toml")
    assert (done.status, done.err) == (0, "")


PVE = "scsi0: local-lvm:vm-1-disk-0,iops=700\nscsi1: ceph-ssd:vm-1-disk-1\nname: web\n"


@pytest.mark.parametrize(
    ("pool", "tenant", "limits"), [("acme", "acme", {"scsi0": 700, "scsi1": 4000}), ("", None, {})]
)
def test_the_rules_for_proxmox_hold_its_vms(
    pool: str, tenant: str | None, limits: dict[str, int]
) -> None:
    config = parse(rules("Proxmox VE").encode(), "x")
    vm = DomainXml("100", (Disk("scsi0"), Disk("scsi1")))
    facts = proxmox_facts(f"{pool}\n{PVE}", vm, "VM 100")
    fit = config.rules.fit(facts, config.classes, "VM 100")
    policy = compose(None, fit, vm.targets, config.classes).policy
    assert policy is not None
    assert policy.tenant == tenant
    for target, limit in limits.items():
        drive = policy.for_drive(target)
        assert drive is not None
        assert drive.limit == limit


@pytest.mark.parametrize("section", ["Proxmox VE", "Ganeti and Incus"])
def test_platforms_without_libvirt_are_found(section: str) -> None:
    config = parse(rules(section).encode(), "x")
    assert config.discover
    assert [*rule_complaints(config)] == []


def test_each_platform_with_rules_has_a_guest_here() -> None:
    shown = [s.split("\n")[0] for s in PAGE.split("\n## ")[1:] if "```toml" in s]
    found = {"Proxmox VE", "Ganeti and Incus"}
    assert {section for section, *_ in CASES} | found == {*shown}
