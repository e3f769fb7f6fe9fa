"""A running domain, on a libvirt that is made up."""

from __future__ import annotations

import libvirt
import pytest

from iokeel.hypervisors.libvirt.domain import describe

XML = (
    "<domain><name>db1</name><devices><disk><target dev='vda'/></disk>"
    "<disk><target dev='vdb'/></disk></devices></domain>"
)


class Handle:
    """A domain that loses vdb after its XML was read."""

    code = libvirt.VIR_ERR_INVALID_ARG

    def lookupByName(self, _name: str) -> Handle:
        return self

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return 7

    def XMLDesc(self, _flags: int) -> str:
        return XML

    def blockIoTune(self, target: str, _flags: int) -> dict[str, int]:
        if target == "vdb":
            error = libvirt.libvirtError("disk 'vdb' was not found")
            error.err = (self.code, 0, "", 2, None, None, None, 0, 0)
            raise error
        return {"total_iops_sec": 5}


def test_a_disk_that_is_unplugged_meanwhile_takes_no_domain_with_it() -> None:
    found = describe(Handle(), "db1")
    assert found.id == 7
    assert found.paths.keys() == {"vda", "vdb"}
    assert {target: limits.iops_total for target, limits in found.limits.items()} == {"vda": 5}


def test_any_other_error_is_raised() -> None:
    handle = Handle()
    handle.code = libvirt.VIR_ERR_OPERATION_TIMEOUT
    with pytest.raises(libvirt.libvirtError):
        describe(handle, "db1")
