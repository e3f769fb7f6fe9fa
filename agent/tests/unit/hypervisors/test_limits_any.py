"""Is a domain of a policy that limits none of its drives asked for what QEMU counts?"""

from __future__ import annotations

import pytest

from iokeel.core.policy import UNKNOWN, DomainPolicy, DrivePolicy, UnknownPolicy, VmPolicy
from iokeel.hypervisors.libvirt.domain import limits_any
from iokeel.hypervisors.source import DriveInfo, VmInfo


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        (None, False),
        (UNKNOWN, True),
        (DomainPolicy({}), False),
        (DomainPolicy({"vda": DrivePolicy(limit=100)}), True),
        (DomainPolicy({"vdb": DrivePolicy(limit=100)}), False),
        (DomainPolicy({}, vm=VmPolicy(limit=100)), True),
        (DomainPolicy({}, vm=VmPolicy(reservation=100)), False),
    ],
)
def test_a_vms_limit_limits_its_drives(
    policy: DomainPolicy | UnknownPolicy | None, limits: bool
) -> None:
    assert limits_any(VmInfo("db1", {"vda": DriveInfo("vda")}, policy)) is limits
