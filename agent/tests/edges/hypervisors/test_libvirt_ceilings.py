"""What metadata can't do on a host with a ceiling, or to a policy with a serial.

On libvirt's own test driver, with real snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from iokeel.config.load import parse
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, LastGood, PolicyInPart
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.hypervisors.source import VmInfo
from tests.edges.hypervisors.sources import lines

URI = "test:///default"
URN = "urn:iokeel:policy:1"
UUID = "5d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e15"
XML = """<domain type='test'><name>evil</name><uuid>{}</uuid><memory>1024</memory>
<os><type>hvm</type></os><metadata>{}</metadata>
<devices>{}</devices></domain>"""
DISK = (
    "<disk type='file' device='disk'><source file='/{0}'/><target dev='{0}' bus='virtio'/></disk>"
)
CONFIG = parse(b"[ceilings.all]\nlimit = 2000\ntenant = 'guests'\n", "agent.toml")
FORMER = DomainPolicy({"vda": DrivePolicy(limit=500)}, serial=6)
LATER = DomainPolicy({"vda": DrivePolicy(limit=300)}, serial=7)


def policy(serial: str, limit: int) -> str:
    return f"<p:policy xmlns:p='{URN}' {serial}><p:drive target='vda' limit='{limit}'/></p:policy>"


@pytest.fixture
def libvirtd() -> Iterator[Any]:
    """A connection to the test driver, whose domains end with the last one to it."""
    connection = libvirt.open(URI)
    yield connection
    domain = connection.lookupByName("evil")
    domain.destroy()
    domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA)
    connection.close()


def started(libvirtd: Any, metadata: str, *disks: str) -> Any:
    drives = "".join(map(DISK.format, disks or ("vda",)))
    domain = libvirtd.defineXML(XML.format(UUID, metadata, drives))
    domain.create()
    return domain


def set_policy(domain: Any, text: str | None) -> None:
    metadata = (libvirt.VIR_DOMAIN_METADATA_ELEMENT, text, text and "iokeel", URN)
    domain.setMetadata(*metadata, libvirt.VIR_DOMAIN_AFFECT_LIVE)


async def told(source: LibvirtSource) -> VmInfo:
    await source.resync()
    return source.vms()["evil"]


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        f"<p:policy xmlns:p='{URN}' limit='90000' tenant='victim'/>",
        f"<p:policy xmlns:p='{URN}' class='gold' tenant='victim'/>",
        f"<p:policy xmlns:p='{URN}'><p:drive target='vda' limit='1900'/></p:policy>",
        f"<p:policy xmlns:p='{URN}'><p:drive target='vdz' limit='9'/></p:policy>",
        f"<p:policy xmlns:p='{URN}' limt='9'/>",
        f"<p:policy xmlns:p='{URN}'/><p:policy xmlns:p='{URN}'/>",
    ],
    ids=["none", "high", "class", "one drive", "no such drive", "bad", "two"],
)
async def test_no_metadata_lifts_a_vm_above_the_ceiling(libvirtd: Any, metadata: str) -> None:
    started(libvirtd, metadata, "vda", "vdb")
    source = LibvirtSource(URI, CONFIG.classes, {}, CONFIG.ceilings)
    found = (await told(source)).policy
    assert isinstance(found, DomainPolicy | PolicyInPart)
    assert found.vm is not None
    assert (found.vm.limit, found.vm.burst, found.vm.reservation) == (2000, None, 0)
    assert (found.tenant, found.ceiling) == ("guests", "all")


async def test_a_ceiling_that_binds_is_told_once(
    libvirtd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    started(libvirtd, policy("", 3000))
    source = LibvirtSource(URI, CONFIG.classes, {}, CONFIG.ceilings)
    for _ in range(3):
        error = (await told(source)).policy_error
    what = "domain evil: the policy asks for more than [ceilings.all] gives: vda limit 3000 -> 2000"
    assert str(error) == f"{what}; lower that, or raise the ceiling"
    assert lines(caplog, logging.ERROR) == [f"{error}; the ceiling holds"]
    assert source.errors["policy"] == 1


async def test_a_ceiling_comes_and_goes_by_a_reload_and_leaves_the_policy(libvirtd: Any) -> None:
    started(libvirtd, policy("", 3000))
    saved: dict[str, LastGood] = {}
    source = LibvirtSource(URI, CONFIG.classes, saved)
    asked = DomainPolicy({"vda": DrivePolicy(limit=3000)})
    assert (await told(source)).policy == asked
    source.configure(CONFIG)
    held = (await told(source)).policy
    assert isinstance(held, DomainPolicy)
    assert held.drives["vda"].limit == 2000
    assert saved == {UUID: LastGood(asked, UUID)}
    source.configure(parse(b"", "agent.toml"))
    assert (await told(source)).policy == asked


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_snapshot_does_not_bring_an_old_policy_back(
    libvirtd: Any, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    domain = started(libvirtd, policy("serial='6'", 500))
    saved: dict[str, LastGood] = {}
    source = LibvirtSource(URI, {}, saved)
    assert (await told(source)).policy == FORMER
    snapshot = domain.snapshotCreateXML("<domainsnapshot><name>s</name></domainsnapshot>")
    set_policy(domain, policy("serial='7'", 300))
    assert (await told(source)).policy == LATER
    domain.revertToSnapshot(snapshot)
    assert 'serial="6"' in domain.XMLDesc().replace("'", '"')
    if restarted:
        source = LibvirtSource(URI, {}, saved)
    for _ in range(2):
        found = await told(source)
        assert found.policy == LATER
    assert str(found.policy_error) == (
        "domain evil: the policy has serial 6, but one with serial 7 has been in force, so an old"
        " one may have come back; set the latest policy again; a new one has a higher serial"
    )
    assert lines(caplog, logging.ERROR) == [f"{found.policy_error}; the last good policy stays"]
    set_policy(domain, policy("serial='8'", 900))
    found = await told(source)
    assert (found.policy_error, found.policy) == (
        None,
        DomainPolicy({"vda": DrivePolicy(limit=900)}, serial=8),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "it has no policy any more, but one with serial 7 has been in force"),
        (policy("", 900), "the policy has no serial, but one with serial 7"),
        (policy("serial='0'", 900), "the policy has serial 0, but one with serial 7"),
    ],
)
async def test_without_a_serial_a_policy_with_one_is_neither_replaced_nor_removed(
    libvirtd: Any, text: str | None, what: str
) -> None:
    domain = started(libvirtd, policy("serial='7'", 300))
    source = LibvirtSource(URI, {}, {})
    assert (await told(source)).policy == LATER
    set_policy(domain, text)
    found = await told(source)
    assert found.policy == LATER
    assert found.policy_error is not None
    assert found.policy_error.what.startswith(what)
    set_policy(domain, f"<p:policy xmlns:p='{URN}' serial='8'/>")
    assert (await told(source)).policy == DomainPolicy({}, serial=8)


async def test_policies_without_serials_follow_each_other_as_they_come(libvirtd: Any) -> None:
    domain = started(libvirtd, policy("", 300))
    source = LibvirtSource(URI, {}, {})
    for limit in (500, 200):
        set_policy(domain, policy("", limit))
        assert (await told(source)).policy == DomainPolicy({"vda": DrivePolicy(limit=limit)})
    set_policy(domain, None)
    assert (await told(source)).policy is None
