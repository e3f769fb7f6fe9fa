"""Burst credit, and a drive's part of its VM's limit: what the agent saves as JSON of state.py.

state.py is compiled, and this isn't (agent/compile_law.py). Both names are in state.py, too.
"""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.policy import DrivePolicy, VmPolicy


class Credit(NamedTuple):
    """Burst credit: seconds of burst saved, and whether the burst is open (drive/burst.py)."""

    seconds: float = 0.0
    open: bool = False

    def ceiling(self, policy: DrivePolicy | VmPolicy | None) -> int | None:
        """Return the rate that a policy allows now: its burst while that is open, else its limit.

        None if it has no limit.
        """
        if policy is None:
            return None
        return policy.burst if self.open and policy.burst is not None else policy.limit


class VmPart(NamedTuple):
    """A drive's part of its VM's limit (sharing/vm_limit.py).

    policy, credit: the VM's, the same for all its drives. most: the rate that the drive may have of
    the VM's limit, or of its burst while that is open; sustained: of the limit in any case. Both
    are None until the limit has been divided.
    """

    policy: VmPolicy
    credit: Credit = Credit()
    most: int | None = None
    sustained: int | None = None

    @property
    def ceiling(self) -> int | None:
        """The rate that the VM's policy allows now."""
        return self.credit.ceiling(self.policy)
