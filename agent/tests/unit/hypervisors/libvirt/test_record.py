"""What a platform sets beside the agent, by what libvirt, QEMU and the law's memory say."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from iokeel.core.enforce.pricing import fallback_of
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.state import NEW, Sent
from iokeel.hypervisors.libvirt.record import set_by_platform
from iokeel.libvirt_xml.domain import parse_domain

SOLD = ThrottleLimits(iops_total=700)
FIRST = ThrottleLimits(iops_total=536, iops_size=6889)
NEXT = ThrottleLimits(iops_total=600, iops_size=8192)
EXACT = ThrottleLimits(
    iops_total=700, cost_read=DEFAULT_MODEL.read, cost_write=DEFAULT_MODEL.write, idle_credit_ms=10
)
OTHERS = ThrottleLimits(iops_total=400, iops_size=6889)  # of no order of the law's


def platform_set(
    told: ThrottleLimits,
    sent: Sent,
    last: ThrottleLimits | None,
    in_qemu: ThrottleLimits | None = None,
    events: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> ThrottleLimits | None:
    """Return what a platform has set, if anything. in_qemu: None for what libvirt tells."""
    iotune = f"""<iotune><total_iops_sec>{told.iops_total or 0}</total_iops_sec>
        <total_bytes_sec>{told.bps_total or 0}</total_bytes_sec>
        <size_iops_sec>{told.iops_size or 0}</size_iops_sec></iotune>"""
    xml = parse_domain(f"""<domain><name>db1</name><devices><disk type='file'><source file='/img'/>
        <target dev='vda'/><alias name='virtio-disk0'/>{iotune}</disk></devices></domain>""")
    known = {"vda": NEW._replace(sent=sent)}
    limits, in_qemu = {"vda": last} if last else {}, in_qemu or told
    found = set_by_platform(xml, known, limits, {"vda": in_qemu}, {"vda": SOLD}, events)
    return found.get("vda")


@pytest.mark.parametrize(
    ("sent", "last"),
    [
        pytest.param(Sent(FIRST), FIRST, id="before the law sees its first order in force"),
        pytest.param(Sent(FIRST, carried_out=FIRST), FIRST, id="after it did"),
        pytest.param(Sent(FIRST, carried_out=FIRST), None, id="after a restart of the agent"),
        pytest.param(Sent(FIRST, NEXT, carried_out=NEXT), FIRST, id="before it sees a later one"),
    ],
)
def test_a_platform_that_sets_one_value_has_set_that_one(
    sent: Sent, last: ThrottleLimits | None
) -> None:
    told = FIRST._replace(iops_total=300)
    assert platform_set(told, sent, last) == ThrottleLimits(iops_total=300)
    told = FIRST._replace(bps_total=10**6)
    assert platform_set(told, sent, last) == SOLD._replace(bps_total=10**6)


@pytest.mark.parametrize("disk", ["vda", "/img"])
def test_what_the_agents_own_overwrote_before_it_was_read_is_the_platforms(disk: str) -> None:
    events = {disk: {"iops_total": 300}}
    for told in (NEXT, NEXT._replace(iops_total=300)):
        found = platform_set(told, Sent(NEXT, FIRST, carried_out=FIRST), NEXT, events=events)
        assert found == ThrottleLimits(iops_total=300)
    later = NEXT._replace(iops_total=900)  # its event is to come
    found = platform_set(later, Sent(NEXT), NEXT, events=events)
    assert found == ThrottleLimits(iops_total=900)
    assert platform_set(NEXT, Sent(NEXT), NEXT, events={"vdb": {"iops_total": 300}}) is None


def test_values_of_a_fallback_are_the_agents_too() -> None:
    told = fallback_of(EXACT)._replace(iops_total=200)  # not one for less of the same
    assert platform_set(told, Sent(EXACT), EXACT) == ThrottleLimits(iops_total=200)


@pytest.mark.parametrize(
    ("told", "sent", "last", "in_qemu"),
    [
        pytest.param(OTHERS, Sent(FIRST), None, None, id="another agent's, before our first"),
        pytest.param(FIRST, Sent(FIRST), FIRST, None, id="ours"),
        pytest.param(FIRST, Sent(NEXT, FIRST), FIRST, None, id="ours, before the next"),
        pytest.param(OTHERS, Sent(FIRST), FIRST, FIRST, id="libvirt's alone"),
        pytest.param(OTHERS, Sent(NEXT, FIRST), OTHERS, None, id="ours, at a stop"),
    ],
)
def test_what_may_not_be_a_platforms_is_not(
    told: ThrottleLimits, sent: Sent, last: ThrottleLimits | None, in_qemu: ThrottleLimits | None
) -> None:
    assert platform_set(told, sent, last, in_qemu) is None
