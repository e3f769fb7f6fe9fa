"""The rules and commands of docs/platforms.md, with the domains that each platform makes.

Proxmox VE's and Ganeti's VMs are real QEMUs, started as they start them.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from iokeel.config.load import parse
from iokeel.config.rules import rule_complaints
from iokeel.config.settings import Config
from iokeel.core.values.policy import BUILTIN_CLASSES
from iokeel.libvirt_xml.domain import Disk, DomainXml, parse_domain
from iokeel.rules.compose import compose
from iokeel.rules.proxmox import proxmox_facts
from testing.agents import Agent, iokeel
from testing.hypervisors.proxmox import QEMU, Owner, ProxmoxHost
from testing.waiting import eventually
from tests.edges.cli.test_rules import Host
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
    return dedent(found[1])


def without_libvirt(section: str) -> str:
    """Return what a section shows beside that there is no libvirt, as the lab's agents say."""
    text = rules(section)
    rest = text.replace("[libvirt]\nenabled = false\n", "")
    assert rest != text
    return rest


def commands() -> list[str]:
    """Return the commands that the page begins with."""
    lines = PAGE.split("```sh\n")[1].split("```")[0].splitlines()
    return [line.partition("#")[0].strip() for line in lines]


def with_limits(xml: str, iotune: str) -> str:
    """Return a domain whose last disk has limits of the platform's."""
    head, _, tail = xml.rpartition("</disk>")
    return f"{head}{iotune}{tail}"


# What each drive has: its limit, and whether reads and writes have it apart.
CASES: list[tuple[str, str, dict[str, int | None], str | None]] = [
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


# These run elsewhere: with a real libvirt in tests/system, by the role in tests/deploy.
ELSEWHERE = {
    "cp /etc/iokeel/agent.toml .",
    "virsh dumpxml instance-0000002a >vm.xml",
    "cp agent.toml /etc/iokeel/agent.toml",
    "systemctl reload iokeel",
}


FIRST = {section: (xml, limits) for section, xml, limits, _ in reversed(CASES)}


@pytest.mark.parametrize("section", FIRST)
async def test_the_first_steps_lead_to_a_guest_that_is_held(
    tmp_path: Path, short_folder: Path, section: str
) -> None:
    """As they are written, in a folder with the rules and the guest's XML."""
    xml, limits = FIRST[section]
    (tmp_path / "agent.toml").write_text(rules(section))
    (tmp_path / "vm.xml").write_text(xml)
    host = Host(short_folder / "agent.sock", Config(), guests={parse_domain(xml).name: xml})
    environment = {"IOKEEL_SOCKET": str(host.socket)}

    def run(command: str) -> str:
        done = iokeel(*command.split()[1:], cwd=tmp_path, environment=environment)
        assert (done.status, done.err) == (0, ""), command
        return done.out

    said = {}
    for command in commands():
        if command == "systemctl reload iokeel":
            host.config = parse(rules(section).encode(), "agent.toml")
        if command not in ELSEWHERE:
            async with host.serves():
                said[command] = await asyncio.to_thread(run, command)
    explained, checked, differs, listed = said.values()
    assert "name" in explained
    assert checked == "", "nothing is wrong with it"
    assert "->" in differs
    assert any(line.split()[1:3] == ["1", str(len(limits))] for line in listed.splitlines())


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


needs_qemu = pytest.mark.skipif(shutil.which(QEMU[0]) is None, reason=f"needs {QEMU[0]}")


@needs_qemu
def test_a_vm_of_proxmox_is_held_by_its_rules_and_given_back(short_folder: Path) -> None:
    folder = short_folder / "pve"
    folder.mkdir()
    with ProxmoxHost(folder) as host:
        table = without_libvirt("Proxmox VE").replace("/run/qemu-server", str(host.run))
        facts = f'facts = "{host.configs}/{{name}}.conf"'  # which is /etc/pve's there
        table = table.replace('format = "proxmox"', f'format = "proxmox"\n{facts}')
        disks = {"scsi0": "local-lvm:vm-100-disk-0,iops=700", "ide2": "none,media=cdrom"}
        host.configure(100, **disks)
        host.pool(100)
        host.start(100, limits={"iops-total": 700})
        owner = Owner(host.monitor(100))
        with Agent(folder, table) as agent:
            eventually(lambda: 0 < owner.iops() < 700, what="it is held")
            environment = {"IOKEEL_SOCKET": str(agent.socket)}
            said = [iokeel(*words.split(), environment=environment) for words in PVE_COMMANDS]
            agent.stop()
        assert [(done.status, done.err) for done in said] == [(0, "")] * len(said)
        listed, stats, why = (done.out for done in said)
        assert re.search(r"^sold +1 +1 +700 ", listed, re.MULTILINE)
        assert re.search(r"^100 +scsi0 .* 700 ", stats, re.MULTILINE)
        assert "Rule sold gives a limit of 700 iops" in why
        done = iokeel("agent", "--release", "--config", agent.config)
        assert (done.status, done.err, owner.iops()) == (0, "", 700)


PVE_COMMANDS = ("rules", "stats", "why 100 scsi0")


def test_the_commands_for_proxmox_are_all_run_here() -> None:
    section = PAGE.split("## Proxmox VE\n")[1].split("\n## ")[0]
    assert {*re.findall(r"`iokeel ([^`]+)`", section)} == {*PVE_COMMANDS, "agent --release"}


@contextmanager
def ganeti(folder: Path, name: str) -> Iterator[Path]:
    """Run a VM with the two monitors that Ganeti gives it. Return the one for kvmd."""
    disk, monitors = folder / "disk", [folder / f"{name}.{end}" for end in ("qmp", "kvmd")]
    disk.write_bytes(bytes(1 << 20))
    words = ["-S", "-display", "none", "-nodefaults", "-machine", "q35,accel=tcg", "-m", "32"]
    for monitor in monitors:
        words += ["-qmp", f"unix:{monitor},server=on,wait=off"]
    words += ["-drive", f"file={disk},format=raw,if=none,cache=none,id=hotdisk-1"]
    words += ["-device", "virtio-blk-pci,id=disk-1,drive=hotdisk-1"]
    process = subprocess.Popen([*QEMU, *words])
    try:
        eventually(lambda: all(map(Path.exists, monitors)), process=process)
        yield monitors[1]
    finally:
        process.kill()
        process.wait()


@needs_qemu
def test_a_vm_of_ganeti_is_held_by_a_file_of_facts(short_folder: Path) -> None:
    folder = short_folder / "ganeti"
    folder.mkdir()
    text = without_libvirt("Ganeti and Incus")
    (folder / "tags.json").write_text(re.findall(r"facts\.d: (.*)", text)[0])
    table = text.replace("/run/ganeti/kvm-hypervisor/ctrl", str(folder))
    with ganeti(folder, "web1.example.com") as kvmd:
        table += f'[policy]\nfacts_dir = "{folder}"\n'
        with Agent(folder, table) as agent:
            gold = BUILTIN_CLASSES["gold"].limit
            eventually(lambda: agent.drive("web1.example.com", "disk-1")["limit_iops"] == gold)
            eventually(lambda: Owner(kvmd).ask("query-block")[0]["inserted"]["iops"] > 0)


@pytest.mark.parametrize("section", ["Proxmox VE", "Ganeti and Incus"])
def test_platforms_without_libvirt_are_found(section: str) -> None:
    config = parse(rules(section).encode(), "x")
    assert config.discover
    assert [*rule_complaints(config)] == []


def test_each_platform_with_rules_has_a_guest_here() -> None:
    shown = [s.split("\n")[0] for s in PAGE.split("\n## ")[1:] if "```toml" in s]
    found = {"Proxmox VE", "Ganeti and Incus"}
    assert {section for section, *_ in CASES} | found == {*shown}
