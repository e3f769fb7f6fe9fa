"""Last good policies of libvirt's domains, on libvirt's own test driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from iokeel.core.policy import UNKNOWN, DomainPolicy, DrivePolicy, LastGood
from iokeel.hypervisors.libvirt.source import LibvirtSource
from tests.edges.hypervisors.sources import lines

URI = "test:///default"
UUID = "1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11"
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
    assert saved == {"web": LastGood(GOOD, UUID)}
    domain.destroy()
    domain = libvirtd.defineXML(XML.format("web", UUID, "5OO"))
    domain.rename("shop", 0)
    if listed:
        await source.resync()
        assert saved == {"shop": LastGood(GOOD, UUID)}
    else:
        source = LibvirtSource(URI, {}, saved)
    libvirtd.lookupByName("shop").create()
    assert await policy_of(source, "shop") == GOOD
    assert saved == {"shop": LastGood(GOOD, UUID)}
    domain.destroy()
    domain.undefine()
    await source.resync()
    assert saved == {}


async def test_the_log_tells_of_a_last_good_policy_only_if_there_is_one(
    libvirtd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    libvirtd.createXML(XML.format("web", UUID, "5OO"), 0)
    source = LibvirtSource(URI, {}, {})
    assert await policy_of(source, "web") is UNKNOWN
    (line,) = lines(caplog)
    assert line.endswith("; there is no last good one, so its limits stay")
