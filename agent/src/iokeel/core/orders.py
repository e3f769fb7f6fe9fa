"""Holds the output of a decision: limits to set, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits


class Reason(Enum):
    """Why limits are set; a clause that reads on after "limits set:"."""

    POLICY = "the policy has changed"
    SHIFT = "the mix of request sizes has shifted"
    DRIFT = "the mix is now known more precisely"
    IDLE = "the drive is idle and its next mix is unknown"
    STARVED = "its limits let hardly any of the drive's last requests pass"
    ZEROES = "the drive has paid enough for zeroes; reads are held apart until no more come"
    NO_ZEROES = "the drive writes no more zeroes"
    SILENT = "nothing of the drive passed for a while, as if it waited for zeroes"
    BURST_OPENS = "the drive has saved credit and may burst"
    BURST_CLOSES = "the burst credit is spent"
    CREDIT_GREW = "the drive has more credit than its limits carry"
    SHARE = "the drive's share has changed"
    CURVE = "the storage's cost curve has changed"
    SPLIT = "the split size of large reads has changed"
    LATENCY = "what the latency target needs of QEMU has changed"
    OVERWRITTEN = "somebody else changed the limits"
    RETRY = "the last change failed"
    RELEASED = "the drive no longer has a policy or a limit"
    STOPPING = "the agent no longer serves the drive"


@dataclass(frozen=True, slots=True)
class SetLimits:
    """An order to the edges: put these limits in force on this drive."""

    drive: DriveId
    limits: ThrottleLimits
    reason: Reason
