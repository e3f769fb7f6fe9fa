"""An agent that is broken on purpose, to show that the demo's verdict catches it.

`make demo BREAK=high` holds every drive to 10 % more than its policy's limit, `BREAK=low` to 10 %
less, and `BREAK=late` carries out every change of limits 6 s late. Nothing of this is in the
agent's own package: this file runs the agent's command with one function replaced.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Literal, get_args

from iokeel.cli.main import main
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.hypervisors.libvirt.source import LibvirtSource

Break = Literal["high", "low", "late"]
BREAKS: tuple[Break, ...] = get_args(Break)
_OFF_RATIO = 0.1
_LATE_S = 6.0


def break_agent(how: Break) -> None:
    """Break the agent of this process."""
    if how == "late":
        _set_limits_late()
    else:
        _hold_to(1 + _OFF_RATIO if how == "high" else 1 - _OFF_RATIO)


def _hold_to(ratio: float) -> None:
    """Have the agent take every limit for `ratio` times what it is."""
    for_drive = DomainPolicy.for_drive

    def off(self: DomainPolicy, target: str) -> DrivePolicy | None:
        policy = for_drive(self, target)
        if policy is None or policy.limit is None:
            return policy
        return replace(policy, limit=round(ratio * policy.limit))

    DomainPolicy.for_drive = off  # type: ignore[method-assign]


def _set_limits_late() -> None:
    """Have the agent wait before it sets any limits."""
    set_limits = LibvirtSource.set_limits

    async def set_limits_late(
        self: LibvirtSource, drive: DriveId, limits: ThrottleLimits, timeout_s: float
    ) -> None:
        await asyncio.sleep(_LATE_S)
        await set_limits(self, drive, limits, timeout_s)

    LibvirtSource.set_limits = set_limits_late  # type: ignore[method-assign]


if __name__ == "__main__":
    (how,) = (name for name in BREAKS if name == sys.argv[1])
    del sys.argv[1]
    break_agent(how)
    main()
