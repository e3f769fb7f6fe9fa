"""The facts in the XML that platforms write, and who controls them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import Disk, parse_domain
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.known import DRIVE_FACTS, INFO, TENANT, VM_FACTS, info_of, who_controls
from tests.unit.rules import platforms
from tests.unit.rules.platforms import PROJECT, USER, UUID, VOLUME


def read(xml: str) -> Facts:
    return facts_of(xml, parse_domain(xml), "domain x")


def test_nova_tells_flavor_project_user_and_extra_specs() -> None:
    facts = read(platforms.nova(quota__disk_total_iops_sec="500", iokeel__class="gold"))
    assert facts.vm == {
        "name": "instance-0000002a",
        "uuid": UUID,
        "nova.name": "web-1",
        "nova.flavor": "io1.large",
        "nova.flavor.id": "7e6c4a4e-3f0f-4f3e-8a2e-1f2d3c4b5a69",
        "nova.extra.quota:disk_total_iops_sec": "500",
        "nova.extra.iokeel:class": "gold",
        "nova.user": USER,
        "nova.user.name": "alice",
        "nova.project": PROJECT,
        "nova.project.name": "acme",
        "nova.image": "155d900f-4e14-4e4c-a73d-069cbf4541e6",
    }
    assert facts.drives["vda"] == {
        "target": "vda",
        "bus": "virtio",
        "source": "/var/lib/nova/instances/x/disk",
        "readonly": "no",
        "shareable": "no",
        "iotune": "no",
    }
    assert facts.of_drive("vdb") == {
        **facts.vm,
        "target": "vdb",
        "bus": "virtio",
        "serial": VOLUME,
        "alias": f"ua-{VOLUME}",
        "source": f"rbd://192.0.2.11:6789/volumes-ssd/volume-{VOLUME}",
        "storage": "rbd:volumes-ssd",
        "readonly": "no",
        "shareable": "no",
        "iotune": "no",
    }


def test_ovirt_tells_the_cluster_and_each_disks_storage_domain() -> None:
    facts = read(platforms.ovirt())
    assert facts.vm["ovirt.cluster"] == "4.7"
    assert facts.vm["ovirt.custom.tier"] == "gold"
    assert facts.drives["sda"]["ovirt.domain"] == "88252cf6-381e-48f0-8795-a294a32c7149"
    assert facts.drives["sda"]["ovirt.image"] == "89f05c7d-b961-4935-993f-514499024515"
    assert facts.drives["sda"]["boot"] == "1"


def test_opennebula_tells_group_and_user() -> None:
    facts = read(platforms.opennebula()).vm
    assert {name: text for name, text in facts.items() if name.startswith("one.")} == {
        "one.gname": "acme",
        "one.gid": "104",
        "one.uname": "alice",
        "one.uid": "7",
        "one.name": "web <1>",
        "one.datastore": "/var/lib/one//datastores/0/42",
    }


def test_kubevirt_tells_the_namespace_by_the_name() -> None:
    facts = read(platforms.kubevirt()).vm
    assert (facts["kubevirt.namespace"], facts["kubevirt.name"]) == ("mynamespace", "testvmi")
    assert "kubevirt.namespace" not in read(platforms.domain("web_1")).vm, "not KubeVirt's"


@pytest.mark.parametrize(("name", "account"), [("i-7-42-VM", "7"), ("s-1-VM", None)])
def test_cloudstack_tells_the_account_by_the_name(name: str, account: str | None) -> None:
    assert read(platforms.cloudstack(name)).vm.get("cloudstack.account") == account
    assert "cloudstack.account" not in read(platforms.domain(name)).vm, "not CloudStack's"


def test_a_volume_of_a_pool_goes_by_both_and_flags_are_told() -> None:
    disk = (
        "<disk type='volume' device='disk'><source pool='fast' volume='db.qcow2'/>"
        "<target dev='sda'/><readonly/><shareable/></disk>"
    )
    facts = read(platforms.domain("db1", disks=disk)).drives["sda"]
    assert (facts["pool"], facts["volume"]) == ("fast", "db.qcow2")
    assert (facts["readonly"], facts["shareable"]) == ("yes", "yes")
    assert "storage" not in facts, "it depends on the host where the volume's path leads"


def test_a_drive_of_qemus_command_line_is_known_by_its_name() -> None:
    xml = platforms.domain("db1")
    domain = parse_domain(xml).with_hidden([Disk("NVME0", "/img", hidden=True)])
    facts = facts_of(xml, domain, "domain db1")
    assert facts.drives["NVME0"] == {"target": "NVME0", "source": "/img"}


def test_an_element_that_is_not_where_the_platform_writes_it_is_no_fact() -> None:
    """A description, or metadata of somebody else's around it, makes nobody rich."""
    inner = platforms.nova(iokeel__class="gold").split("<metadata>")[1].split("</metadata>")[0]
    hidden = f"<x:notes xmlns:x='urn:x'>{inner}</x:notes>"
    assert read(platforms.domain("db1", hidden)).vm == {"name": "db1", "uuid": UUID}


def test_the_first_of_two_elements_counts() -> None:
    first, second = (platforms.nova(flavor) for flavor in ("small", "huge"))
    inner = second.split("<metadata>")[1].split("</metadata>")[0]
    assert read(first.replace("</metadata>", f"{inner}</metadata>")).vm["nova.flavor"] == "small"


def test_metadata_that_is_too_large_tells_no_facts_and_says_so() -> None:
    much = "<x:a xmlns:x='urn:x'>" + "<x:b/>" * 30_000 + "</x:a>"
    xml = platforms.domain("db1", much)
    with pytest.raises(PolicyError, match="more than 20000 tags"):
        read(xml)
    with pytest.raises(PolicyError, match="too large to be read"):
        facts_of("<policy xmlns='urn:iokeel:policy:1'/>", parse_domain(xml), "domain db1")


def test_a_domain_of_many_disks_has_its_facts_all_the_same() -> None:
    disk = "<disk><source file='/a'/><target dev='sd{}'/>" + "<a/>" * 20 + "</disk>"
    disks = "".join(disk.format(number) for number in range(1500))
    about = platforms.nova().split("<metadata>")[1].split("</metadata>")[0]
    facts = read(platforms.domain("db1", about, disks))
    assert facts.vm["nova.flavor"] == "io1.large"
    assert facts.drives["sd1499"]["source"] == "/a"


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.just("\t"))


@given(st.dictionaries(TEXTS, TEXTS, max_size=100))
def test_extra_specs_of_any_text_are_told_as_they_are(extra: dict[str, str]) -> None:
    """Markup, quotes and blanks: a key and a value are what the XML says, without outer blanks."""

    def escaped(text: str) -> str:
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), ('"', "&quot;"), ("\t", "&#9;")):
            text = text.replace(character, entity)
        return text

    facts = read(platforms.nova(**{escaped(key): escaped(text) for key, text in extra.items()}))
    expected: dict[str, str] = {}
    for key, text in extra.items():
        if text.strip():
            expected.setdefault(f"nova.extra.{key.replace('__', ':').strip()}", text.strip())
    assert {n: t for n, t in facts.vm.items() if n.startswith("nova.extra.")} == expected


def test_a_value_that_is_too_long_is_no_fact() -> None:
    facts = read(platforms.nova(a="x" * 4096, b="x" * 4097)).vm
    assert "nova.extra.a" in facts
    assert "nova.extra.b" not in facts


@pytest.mark.parametrize(
    "xml", [platforms.nova(a="1"), platforms.ovirt(), platforms.opennebula(), platforms.kubevirt()]
)
def test_each_fact_that_is_told_is_known(xml: str) -> None:
    facts = read(xml)
    assert [name for name in facts.vm if who_controls(name) is None] == []
    assert {name for drive in facts.drives.values() for name in drive} <= DRIVE_FACTS.keys()


def test_what_tenants_call_their_things_is_theirs() -> None:
    named = {"title", "nova.name", "nova.image", "one.name", "kubevirt.name"}
    named |= {"pve.name", "pve.tags", "pve.tag."}
    assert {name for name, who in VM_FACTS.items() if who == TENANT} == named
    assert who_controls("nova.extra.") is None
    assert who_controls("nova.flavour") is None


def test_the_documentation_has_each_fact_with_who_decides_on_it() -> None:
    page = (Path(__file__).parents[4] / "docs/configuration.md").read_text()
    told = {
        fact: row[1]
        for row in re.findall(r"^\| (.*) \| .* \| (platform|tenant) \|$", page, re.MULTILINE)
        for fact in re.findall(r"`([a-z._]+(?:KEY)?)`", row[0])
    }
    assert told == {
        f"{name}KEY" if name.endswith(".") else name: who
        for name, who in (VM_FACTS | DRIVE_FACTS).items()
    }


def test_metrics_tell_facts_that_there_are_and_projects_that_no_tenant_controls() -> None:
    assert all(fact in VM_FACTS for by in INFO.values() for fact in by.values())
    assert TENANT not in {who_controls(fact) for fact in INFO["project"].values()}


@pytest.mark.parametrize(
    ("xml", "project", "guest"),
    [
        (platforms.nova(), PROJECT, "web-1"),
        (platforms.opennebula(), "acme", "web <1>"),
        (platforms.kubevirt(), "mynamespace", "testvmi"),
        (platforms.cloudstack(), "7", ""),
        (platforms.ovirt(), "", ""),
        (platforms.domain("db1"), "", ""),
    ],
)
def test_metrics_tell_what_the_platform_calls_a_vm_and_its_owner(
    xml: str, project: str, guest: str
) -> None:
    assert info_of(read(xml).vm) == (project, guest)
