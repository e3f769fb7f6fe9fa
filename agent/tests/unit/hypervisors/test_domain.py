"""A running domain, as libvirt describes it."""

from __future__ import annotations

from iokeel.hypervisors.libvirt.domain import describe

XML = """<domain><name>db1</name>
<throttlegroups><throttlegroup><group_name>a</group_name></throttlegroup></throttlegroups>
<devices>
  <disk><target dev='vda'/><throttlefilters><throttlefilter group='a'/></throttlefilters></disk>
  <disk><target dev='vdb'/><throttlefilters><throttlefilter group='b'/></throttlefilters></disk>
</devices></domain>"""


class Libvirt:
    """A connection with one running domain, which is its own handle."""

    def lookupByName(self, name: str) -> Libvirt:
        return self

    def isActive(self) -> bool:
        return True

    def XMLDesc(self, flags: int) -> str:
        return XML


def test_limits_of_a_throttle_group_that_is_not_there_are_unknown() -> None:
    _, limits, _ = describe(Libvirt(), "db1")
    assert limits["vda"] is not None
    assert limits["vda"].unlimited
    assert limits["vdb"] is None
