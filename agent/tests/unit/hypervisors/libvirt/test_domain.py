"""A running domain, on a libvirt that is made up."""

from __future__ import annotations

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.libvirt.domain import describe, group_of, volume_paths
from iokeel.libvirt_xml.domain import parse_domain

XML = (
    "<domain><name>db1</name><devices><disk><target dev='vda'/></disk>"
    "<disk><target dev='vdb'/></disk></devices></domain>"
)


class Handle:
    """A domain whose QEMU is asked nothing."""

    xml = XML

    def lookupByName(self, _name: str) -> Handle:
        return self

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return 7

    def XMLDesc(self, _flags: int) -> str:
        return self.xml


def test_the_limits_that_libvirt_was_told_are_in_the_xml_whatever_the_number_of_disks() -> None:
    handle = Handle()
    tuned = "<iotune><total_iops_sec>{}</total_iops_sec></iotune>"
    odd = "<disk><target dev='vdx'/><iotune><total_iops_sec>x</total_iops_sec></iotune></disk>"
    disks = (f"<disk><target dev='vd{i}'/>{tuned.format(i) * (i > 0)}</disk>" for i in range(500))
    handle.xml = f"<domain><name>db1</name><devices>{''.join(disks)}{odd}</devices></domain>"
    found = describe(handle, "db1")
    assert found.id == 7
    assert found.limits == {
        **{f"vd{i}": ThrottleLimits(iops_total=i or None) for i in range(500)},
        "vdx": None,
    }


def test_disks_that_qemu_never_throttles_have_no_limits() -> None:
    handle = Handle()
    for kind in ("type='vhostuser'", "device='lun'"):
        handle.xml = XML.replace("<disk><target dev='vdb'", f"<disk {kind}><target dev='vdb'")
        assert describe(handle, "db1").limits == {"vda": ThrottleLimits()}


GROUPS = """<domain><name>db1</name>
<throttlegroups><throttlegroup><group_name>a</group_name></throttlegroup></throttlegroups>
<devices>
  <disk><target dev='vda'/><throttlefilters><throttlefilter group='a'/></throttlefilters></disk>
  <disk><target dev='vdb'/><throttlefilters><throttlefilter group='b'/></throttlefilters></disk>
</devices></domain>"""


def test_limits_of_a_throttle_group_that_is_not_there_are_unknown() -> None:
    handle = Handle()
    handle.xml = GROUPS
    limits = describe(handle, "db1").limits
    assert limits["vda"] is not None
    assert limits["vda"].unlimited
    assert limits["vdb"] is None


def test_of_two_throttle_groups_the_limits_are_those_of_the_drives_own() -> None:
    limits = "<total_iops_sec>{}</total_iops_sec>"
    groups = "".join(
        f"<throttlegroup><group_name>{group}</group_name>{limits.format(rate)}</throttlegroup>"
        for group, rate in (("both", 90), ("own", 5))
    )
    filters = "<throttlefilter group='both'/>{}"
    disks = "".join(
        f"<disk><target dev='{target}'/><throttlefilters>{filters.format(more)}</throttlefilters>"
        "</disk>"
        for target, more in (("vda", "<throttlefilter group='own'/>"), ("vdb", ""))
    )
    handle = Handle()
    handle.xml = (
        f"<domain><name>db1</name><throttlegroups>{groups}</throttlegroups>"
        f"<devices>{disks}</devices></domain>"
    )
    found = describe(handle, "db1")
    assert found.limits == {
        "vda": ThrottleLimits(iops_total=5),
        "vdb": ThrottleLimits(iops_total=90),
    }
    vda, vdb = found.xml.disks
    assert group_of(found.xml, DriveId("db1", "vda"), vda) == "own"
    with pytest.raises(LimitsRejected, match="throttle other drives too"):
        group_of(found.xml, DriveId("db1", "vdb"), vdb)


class Pool:
    """A storage pool of this type, with a volume at this path."""

    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._path = kind, path

    def storagePoolLookupByName(self, _name: str) -> Pool:
        return self

    def storageVolLookupByName(self, _name: str) -> Pool:
        return self

    def path(self) -> str:
        return self._path

    def XMLDesc(self, _flags: int) -> str:
        return f"<pool type='{self._kind}'/>"


@pytest.mark.parametrize(
    ("kind", "path", "found"),
    [
        ("dir", "/images/a.raw", "/images/a.raw"),
        ("rbd", "vms/a", "rbd:vms/a"),
        ("iscsi-direct", "ip-10.0.0.1:3260-iscsi-iqn-lun-1", "volume://fast/a"),
    ],
)
def test_a_volume_is_where_its_pool_says(kind: str, path: str, found: str) -> None:
    xml = parse_domain(
        "<domain><name>db1</name><devices><disk type='volume'>"
        "<source pool='fast' volume='a'/><target dev='vda'/></disk>"
        "<disk type='file'><source file='/b'/><target dev='vdb'/></disk></devices></domain>"
    )
    assert volume_paths(Pool(kind, path), xml) == {"vda": found}
