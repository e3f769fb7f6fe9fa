"""A running domain, on a libvirt that is made up."""

from __future__ import annotations

import libvirt
import pytest

from iokeel.core.limits import ThrottleLimits
from iokeel.hypervisors.libvirt.domain import describe

XML = (
    "<domain><name>db1</name><devices><disk><target dev='vda'/></disk>"
    "<disk><target dev='vdb'/></disk></devices></domain>"
)


class Handle:
    """A domain that loses vdb after its XML was read."""

    code = libvirt.VIR_ERR_INVALID_ARG
    xml = XML

    def lookupByName(self, _name: str) -> Handle:
        return self

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return 7

    def XMLDesc(self, _flags: int) -> str:
        return self.xml

    def blockIoTune(self, target: str, _flags: int) -> dict[str, int]:
        if target == "vdb":
            error = libvirt.libvirtError("disk 'vdb' was not found")
            error.err = (self.code, 0, "disk 'vdb' was not found", 2, None, None, None, 0, 0)
            raise error
        return {"total_iops_sec": 5}


def test_a_disk_that_is_unplugged_meanwhile_takes_no_domain_with_it() -> None:
    found = describe(Handle(), "db1")
    assert found.id == 7
    assert found.limits == {"vda": ThrottleLimits(iops_total=5)}


@pytest.mark.parametrize(
    "code", [libvirt.VIR_ERR_CONFIG_UNSUPPORTED, libvirt.VIR_ERR_OPERATION_UNSUPPORTED]
)
def test_a_disk_that_libvirt_says_is_not_throttled_takes_no_domain_with_it(code: int) -> None:
    handle = Handle()
    handle.code = code
    found = describe(handle, "db1")
    assert found.limits == {"vda": ThrottleLimits(iops_total=5)}
    assert [disk.unthrottled for disk in found.xml.disks] == [None, "disk 'vdb' was not found"]
    assert [disk.target for disk in found.xml.drives] == ["vda"]


def test_libvirt_is_not_asked_about_disks_that_qemu_never_throttles() -> None:
    handle = Handle()
    handle.code = libvirt.VIR_ERR_OPERATION_TIMEOUT
    for kind in ("type='vhostuser'", "device='lun'"):
        handle.xml = XML.replace("<disk><target dev='vdb'", f"<disk {kind}><target dev='vdb'")
        assert describe(handle, "db1").limits == {"vda": ThrottleLimits(iops_total=5)}


def test_any_other_error_is_raised() -> None:
    handle = Handle()
    handle.code = libvirt.VIR_ERR_OPERATION_TIMEOUT
    with pytest.raises(libvirt.libvirtError):
        describe(handle, "db1")


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
