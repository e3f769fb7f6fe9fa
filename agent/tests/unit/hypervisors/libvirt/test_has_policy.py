"""Which domains are asked for QEMU's abilities and for what it counts?"""

from __future__ import annotations

import pytest

from iokeel.core.values.policy import UNKNOWN, DomainPolicy, DrivePolicy, UnknownPolicy, VmPolicy
from iokeel.hypervisors.libvirt.domain import has_policy


@pytest.mark.parametrize(
    ("policy", "has"),
    [
        (None, False),
        (UNKNOWN, True),
        (DomainPolicy({}), False),
        (DomainPolicy({"vda": DrivePolicy(limit=100)}), True),
        (DomainPolicy({"vdb": DrivePolicy(limit=100)}), False),
        (DomainPolicy({}, vm=VmPolicy(limit=100)), True),
        (DomainPolicy({}, vm=VmPolicy(reservation=100)), True),
    ],
)
def test_a_vms_promise_is_a_policy_of_its_drives(
    policy: DomainPolicy | UnknownPolicy | None, has: bool
) -> None:
    assert has_policy(policy, ["vda"]) is has
