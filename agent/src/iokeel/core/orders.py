"""Holds the output of a decision: limits to set, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits


class Reason(Enum):
    """Why limits are set; a clause that reads on after "limits set:"."""

    POLICY = "the policy is new or has changed"
    SHIFT = "the mix of request sizes has shifted"
    DRIFT = "the mix is known better now"
    IDLE = "the drive went idle, so its next mix is unknown"
    BURST_OPENS = "the drive has saved credit and may burst"
    BURST_CLOSES = "the burst credit is used up"
    CREDIT_GREW = "the drive has saved more credit than its limits carry"
    SHARE = "the share of the storage or the tenant has changed"
    CURVE = "the storage's cost curve has changed"
    SPLIT = "the part size of large reads has changed"
    OVERWRITTEN = "somebody else had changed the limits"
    RETRY = "the last change of limits had failed"
    RELEASED = "the drive has no policy or no limit any more"
    STOPPING = "the agent stops"


@dataclass(frozen=True, slots=True)
class SetLimits:
    """An order to the edges: put these limits in force on this drive."""

    drive: DriveId
    limits: ThrottleLimits
    reason: Reason
