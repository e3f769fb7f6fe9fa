"""Burst credit, which the agent saves as JSON.

state.py is compiled, and this isn't (agent/compile_law.py). The name is in state.py, too.
"""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.values.policy import DrivePolicy, VmPolicy


class Credit(NamedTuple):
    """Burst credit: seconds of burst saved, and whether the burst is open (measure/burst.py)."""

    seconds: float = 0.0
    open: bool = False

    def ceiling(self, policy: DrivePolicy | VmPolicy | None) -> int | None:
        """Return the rate that a policy allows now: its burst while that is open, else its limit.

        None if it has no limit.
        """
        if policy is None:
            return None
        return policy.burst if self.open and policy.burst is not None else policy.limit
