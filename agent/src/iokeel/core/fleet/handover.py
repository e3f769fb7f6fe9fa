"""The burst credit that a guest takes along to another host.

The old host counts to the end, and hands over the rest once the guest is gone from there. So a
migration that fails costs nothing, and nothing has to be given back. Until the credit arrives, the
guest's drives have only what they have saved on the new host, and don't burst.

Whatever is in doubt counts as spent, so that no second of credit is used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.state import DriveState

# Both hosts have the guest for a moment. The old one takes it for idle by then.
_BOTH_S = 2.0
# Less isn't worth a burst.
_LEAST_S = 1.0


class GuestCredit(NamedTuple):
    """A guest's burst credit in seconds: of its drives by target, and of the VM as a whole."""

    drives: Mapping[str, float]
    vm_s: float = 0.0


def credit_left(drives: Mapping[str, DriveState], now_ns: int) -> GuestCredit | None:
    """Return the credit of a guest that has just gone; None if it isn't worth a handover.

    drives: as they were last, by target. The time since a drive's last reading counts as a burst. A
    drive that was never read has no credit.
    """
    left, vm_s = {}, 0.0
    for target, known in drives.items():
        if (last := known.measured.counters) is None:
            continue
        unsure_s = (now_ns - last.at_ns) / NS_PER_S + _BOTH_S
        left[target] = max(0.0, known.credit.seconds - unsure_s)
        if known.vm is not None:
            vm_s = max(0.0, known.vm.credit.seconds - unsure_s)
    return GuestCredit(left, vm_s) if max([vm_s, *left.values()]) >= _LEAST_S else None


def with_credit(
    drives: Mapping[DriveId, DriveState], domain: str, credit: GuestCredit
) -> dict[DriveId, DriveState]:
    """Return all drives, those of a guest with the credit that came after it.

    What they have saved here meanwhile isn't added, because the old host may have counted it too.
    The next look brings it down to what their policies allow.
    """
    after = dict(drives)
    for drive, known in drives.items():
        if drive.domain != domain:
            continue
        seconds = max(known.credit.seconds, credit.drives.get(drive.target, 0.0))
        known = known._replace(credit=known.credit._replace(seconds=seconds))
        if (vm := known.vm) is not None:
            vm_s = max(vm.credit.seconds, credit.vm_s)
            known = known._replace(vm=vm._replace(credit=vm.credit._replace(seconds=vm_s)))
        after[drive] = known
    return after
