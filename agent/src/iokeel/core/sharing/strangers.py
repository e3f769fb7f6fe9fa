"""Tells what a storage did for others than its drives with a policy.

These *strangers* are drives without a policy, the host's own programs, and what an image adds below
QEMU. No drive's counters tell their work, but the storage's own do: it is what the storage did
beyond the drives that are known. If it did less than these, their requests came from a cache, or
from holes, and cost it nothing. The rate is negative then, because there is room for as much.

Bytes are compared, because they stay the same if a device splits or merges requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from iokeel.core.counters import Flow
from iokeel.core.curve import CostCurve, CostModel
from iokeel.core.mix import flow_cost
from iokeel.core.state import DriveState
from iokeel.core.storage import StorageActivity

# QEMU and the device count at different moments, so a difference below this part tells nothing.
_ALIKE_RATIO = 0.1


def strangers_rate(
    activity: StorageActivity | None, drives: Sequence[DriveState], model: CostModel
) -> float | None:
    """Return the rate of a storage's strangers, in normalized I/O operations a second.

    drives: those with a policy. Below 0: the storage did so much less than these. None if it isn't
    known: the storage doesn't count, or what one of the drives did can't be told.
    """
    if activity is None or activity.read is None or activity.write is None:
        return None
    did = [known.measured.rates for known in drives]
    reads = [each.read for each in did if each is not None]
    writes = [each.write for each in did if each is not None]
    if len(reads) < len(did):
        return None
    return _beyond(activity.read, reads, model.read) + _beyond(activity.write, writes, model.write)


def _beyond(device: Flow, known: Sequence[Flow], curve: CostCurve) -> float:
    """Return the rate of a device's requests of one direction beyond those that are known."""
    known_bps = fsum(flow.bps for flow in known)
    beyond_bps = device.bps - known_bps
    if abs(beyond_bps) <= _ALIKE_RATIO * max(device.bps, known_bps):
        return 0.0
    if beyond_bps < 0:
        return beyond_bps / known_bps * fsum(flow_cost(curve, flow) for flow in known)
    return beyond_bps / device.bps * flow_cost(curve, device)
