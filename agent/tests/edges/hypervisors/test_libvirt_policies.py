"""Last good policies of libvirt's domains, on libvirt's own test driver."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import libvirt
import pytest

from iokeel.core.values.policy import (
    UNKNOWN,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    PolicyInPart,
    VmPolicy,
)
from iokeel.hypervisors.libvirt.source import LibvirtSource
from tests.edges.hypervisors.sources import lines

URI = "test:///default"
UUID = "1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11"
OTHER = "2e9c5dab-1f10-4b8f-8e69-3a7c1b4d8f22"
GOOD = DomainPolicy({"vda": DrivePolicy(limit=500)})
XML = """<domain type='test'><name>{}</name><uuid>{}</uuid><memory>1024</memory>
<os><type>hvm</type></os>
<metadata><iokeel:policy xmlns:iokeel='urn:iokeel:policy:1'>
<iokeel:drive target='vda' limit='{}'/></iokeel:policy></metadata>
<devices><disk type='file' device='disk'><source file='/a'/><target dev='vda' bus='virtio'/></disk>
</devices></domain>"""


@pytest.fixture
def libvirtd() -> Iterator[Any]:
    """A connection to the test driver, whose domains end with the last one to it."""
    connection = libvirt.open(URI)
    yield connection
    for domain in connection.listAllDomains():
        if domain.name() in ("web", "shop"):
            if domain.isPersistent():
                domain.undefine()
            if domain.isActive():
                domain.destroy()
    connection.close()


async def policy_of(source: LibvirtSource, name: str) -> object:
    await source.resync()
    return source.vms()[name].policy


@pytest.mark.parametrize("listed", [True, False])
async def test_a_domain_that_is_renamed_keeps_its_last_good_policy(
    libvirtd: Any, listed: bool
) -> None:
    """listed: the agent lists the domains while it is shut off, or has been restarted since."""
    saved: dict[str, LastGood] = {}
    domain = libvirtd.defineXML(XML.format("web", UUID, 500))
    domain.create()
    source = LibvirtSource(URI, {}, saved)
    assert await policy_of(source, "web") == GOOD
    assert saved == {UUID: LastGood(GOOD, UUID)}
    domain.destroy()
    domain = libvirtd.defineXML(XML.format("web", UUID, "5OO"))
    domain.rename("shop", 0)
    if listed:
        await source.resync()
    else:
        source = LibvirtSource(URI, {}, saved)
    libvirtd.lookupByName("shop").create()
    assert await policy_of(source, "shop") == GOOD
    assert saved == {UUID: LastGood(GOOD, UUID)}
    domain.destroy()
    domain.undefine()
    await source.resync()
    assert saved == {}


@pytest.mark.parametrize("listed", [True, False])
async def test_a_domain_that_takes_over_anothers_name_keeps_its_own_last_good_policy(
    libvirtd: Any, listed: bool
) -> None:
    """listed: the agent lists the domains while both are shut off."""
    saved: dict[str, LastGood] = {}
    source = LibvirtSource(URI, {}, saved)
    for name, uuid, limit in (("web", UUID, 500), ("shop", OTHER, 90)):
        libvirtd.defineXML(XML.format(name, uuid, limit)).create()
    await source.resync()
    for name, uuid in (("web", UUID), ("shop", OTHER)):
        libvirtd.lookupByName(name).destroy()
        libvirtd.defineXML(XML.format(name, uuid, "bad"))
    for name, new in (("web", "old"), ("shop", "web"), ("old", "shop")):
        libvirtd.lookupByName(name).rename(new, 0)
    if listed:
        await source.resync()
    for name in ("web", "shop"):
        libvirtd.lookupByName(name).create()
    assert await policy_of(source, "web") == DomainPolicy({"vda": DrivePolicy(limit=90)})
    assert await policy_of(source, "shop") == GOOD


async def test_a_new_domain_does_not_get_the_last_good_policy_of_one_that_had_its_name(
    libvirtd: Any,
) -> None:
    saved: dict[str, LastGood] = {}
    domain = libvirtd.createXML(XML.format("web", UUID, 500), 0)
    source = LibvirtSource(URI, {}, saved)
    assert await policy_of(source, "web") == GOOD
    domain.destroy()
    libvirtd.createXML(XML.format("web", OTHER, "bad"), 0)
    assert await policy_of(source, "web") is UNKNOWN
    assert saved == {}


async def test_a_last_good_policy_that_an_older_version_saved_by_name_is_the_domains(
    libvirtd: Any,
) -> None:
    saved = {"web": LastGood(GOOD)}
    libvirtd.createXML(XML.format("web", UUID, "bad"), 0)
    assert await policy_of(LibvirtSource(URI, {}, saved), "web") == GOOD
    assert saved == {UUID: LastGood(GOOD, UUID)}


async def test_the_log_tells_of_a_last_good_policy_only_if_there_is_one(
    libvirtd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    libvirtd.createXML(XML.format("web", UUID, "5OO"), 0)
    source = LibvirtSource(URI, {}, {})
    assert await policy_of(source, "web") is UNKNOWN
    (line,) = lines(caplog)
    assert line.endswith("; there is no last good one, so its limits stay")


@pytest.mark.parametrize(
    "good", [GOOD, DomainPolicy({}, GOOD.drives["vda"]), replace(GOOD, tenant="a", vm=VmPolicy(9))]
)
async def test_a_misspelt_target_leaves_the_others_their_policies_over_a_start_of_the_guest(
    libvirtd: Any, good: DomainPolicy
) -> None:
    """good: the last good policy names the drive, or is for all, or has a tenant and a VM's."""
    saved = {UUID: LastGood(good, UUID)}
    misspelt = XML.format("web", UUID, 90).replace("target='vda'", "target='vdz'")
    drives = {"vdz": DrivePolicy(limit=90), **GOOD.drives}
    expected = PolicyInPart(DomainPolicy(drives, None, good.tenant, good.vm), {"vda"})
    assert (expected.for_drive("vda"), expected.for_new("vda")) == (UNKNOWN, GOOD.drives["vda"])
    domain = libvirtd.defineXML(misspelt)
    source = LibvirtSource(URI, {}, saved)
    for _ in range(2):
        domain.create()
        assert await policy_of(source, "web") == expected
        domain.destroy()
        await source.resync()
    domain.create()
    assert await policy_of(LibvirtSource(URI, {}, saved), "web") == expected


@pytest.mark.parametrize("limit", [500, "bad"])
async def test_the_log_tells_once_that_a_policy_has_gone(
    libvirtd: Any, caplog: pytest.LogCaptureFixture, limit: object
) -> None:
    """limit: of the policy that it had last."""
    caplog.set_level(logging.INFO)
    libvirtd.createXML(XML.format("web", UUID, 500), 0)
    source = LibvirtSource(URI, {}, {})
    assert await policy_of(source, "web") == GOOD
    libvirtd.lookupByName("web").destroy()
    libvirtd.createXML(XML.format("web", UUID, limit), 0)
    assert await policy_of(source, "web") == GOOD
    libvirtd.lookupByName("web").destroy()
    without = re.sub("(?s)<metadata>.*</metadata>", "", XML.format("web", UUID, 0))
    libvirtd.createXML(without, 0)
    for _ in range(2):
        assert await policy_of(source, "web") is None
    gone = [line for line in lines(caplog, logging.INFO) if "no policy" in line]
    assert gone == ["domain web: it has no policy any more"]


async def test_of_two_policies_in_one_group_the_lowest_counts_and_the_log_says_so_once(
    libvirtd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group = "<iotune><total_iops_sec>9</total_iops_sec><group_name>a</group_name></iotune>"
    one = re.findall("<disk.*?</disk>", XML, re.DOTALL)[0].replace("</disk>", f"{group}</disk>")
    xml = re.sub("<disk.*</disk>", one + one.replace("vda", "vdb"), XML, flags=re.DOTALL)
    xml = xml.replace("</iokeel:policy>", "<iokeel:drive target='vdb' limit='90'/></iokeel:policy>")
    libvirtd.createXML(xml.format("web", UUID, 500), 0)
    saved: dict[str, LastGood] = {}
    source = LibvirtSource(URI, {}, saved)
    low, high = DrivePolicy(limit=90), DrivePolicy(limit=500)
    for _ in range(2):
        assert await policy_of(source, "web") == DomainPolicy({"vda": low, "vdb": low})
    assert saved == {UUID: LastGood(DomainPolicy({"vda": high, "vdb": low}), UUID)}
    (line,) = lines(caplog)
    assert "so the lowest counts for each; give these disks the same policy" in line
    assert source.errors["policy"] == 1
