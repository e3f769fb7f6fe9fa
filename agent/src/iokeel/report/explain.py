"""Why a drive's limits are what they are: the last decision, step by step, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isinf
from typing import Any

from iokeel.core.counters import NS_PER_S, DriveId, Flow, Rates
from iokeel.core.drive.binding import full_bounds
from iokeel.core.drive.envelope import OVERSHOOT_RATIO
from iokeel.core.limits import ThrottleLimits
from iokeel.core.state import DriveState, StorageState
from iokeel.hypervisors.source import VmInfo
from iokeel.words.units import duration, iops, percent, rate, size


def explain(drive: DriveId, vm: VmInfo, agent: Any) -> list[str]:
    """Return the steps of the last decision on a drive, a sentence each, inputs first.

    agent: the running iokeel.daemon.Agent.
    """
    known: DriveState = agent.state.drives.get(drive, DriveState())
    storage: StorageState | None = agent.state.storages.get(known.storage or "")
    lines = [*_policy(known, vm), *_rates(known), *_shares(known, known.storage, storage)]
    if known.policy is not None and known.pricing.rate is not None:
        lines += [*_credit(known), *_limits(known, storage)]
    if agent.cgroups is not None and (held := agent.cgroups.held.get(drive.domain)):
        bounds = "; ".join(f"{what}: {value}" for what, value in held.items())
        lines.append(f"Beneath QEMU, its VM's cgroup has {bounds}.")
    lines.append(f"Last look: {known.finding.verdict.value}.")
    if drive in agent.last_error:
        lines.append(f"Error: {agent.last_error[drive]}.")
    return lines


def _policy(known: DriveState, vm: VmInfo) -> list[str]:
    lines = []
    if vm.policy_error is not None:
        lines.append(f"The domain's policy has an error: {vm.policy_error}.")
    policy = known.policy
    if policy is None:
        return [*lines, "The drive has no policy."]
    promise = "no limit" if policy.limit is None else f"a limit of {iops(policy.limit)}"
    if policy.burst is not None:
        promise += f", a burst of {iops(policy.burst)} for up to {policy.burst_seconds} s"
    if policy.reservation:
        promise += f", and a reservation of {iops(policy.reservation)}"
    if policy.separate_budgets:
        promise += "; reads and writes have a budget of their own each"
    return [*lines, f"The policy gives {promise}."]


def _rates(known: DriveState) -> list[str]:
    did = known.measured.rates
    if did is None or known.measured.rate is None:
        return ["What it did in the last interval is not known (yet)."]
    if did.idle:
        return [f"In the last {did.elapsed_s:.1f} s it did nothing."]
    parts = [
        f"{rate(flow.raw_iops)} {what} of {size(flow.bps / flow.raw_iops)} on average"
        for what, flow in (("reads/s", did.read), ("writes/s", did.write))
        if flow.raw_iops
    ]
    return [
        f"In the last {did.elapsed_s:.1f} s it did {' and '.join(parts)},"
        f" which costs {iops(known.measured.rate)}.",
        *(line for write in (False, True) for line in _throttled(did, write)),
    ]


def _shares(known: DriveState, name: str | None, storage: StorageState | None) -> list[str]:
    policy, share = known.policy, known.share
    if policy is None:
        return []
    lines = []
    if policy.reservation and (storage is None or storage.division.usable is None):
        where = f"the capacity of {name}" if name else "what it is on"
        lines.append(f"Its reservation is not guaranteed, for {where} is not known.")
    if storage is not None and storage.division.usable is not None:
        lines.append(_storage(name or "", storage))
    if share is None:
        return lines
    of = f"Of {share.storage}" if share.storage else f"Of the limit of tenant {share.tenant}"
    if isinf(share.by_weight):
        steps = f"as much as there is, {iops(share.most)}, for there is more than is wanted"
    else:
        steps = f"{rate(share.owed)} by reservation and {rate(share.by_weight)} by weight"
    if share.cut and storage is not None:
        steps += f", less {rate(share.cut)} to protect {_names(storage.suffering)}"
    return [*lines, f"{of} it is owed {steps}: {iops(share.most)}."]


def _names(protected: Sequence[DriveId]) -> str:
    return ", ".join(str(drive) for drive in protected) or "drives with latency targets"


def _storage(name: str, storage: StorageState) -> str:
    assert storage.division.usable is not None
    text = f"{name} can serve {iops(storage.division.usable)} now"
    if storage.policy.capacity is not None and storage.feedback.ratio != 1:
        text += f" ({percent(storage.feedback.ratio)} of its capacity, by its latency)"
    if not isinf(storage.wanted):
        text += f", and its drives want {iops(storage.wanted)}"
    if storage.division.kept < 1:
        text += f"; of what is reserved and asked for {percent(storage.division.kept)} fits"
    return f"{text}."


def _throttled(did: Rates, write: bool) -> list[str]:
    """Return what QEMU tells of its throttle, where it does, of reads or of writes."""
    if did.throttled is None:
        return []
    what = "writes" if write else "reads"
    lines = []
    if sizes := did.throttled.sizes(write):
        total = sum(sizes.values())
        parts = [f"{percent(count / total)} {_bin(least)}" for least, count in sizes.items()]
        lines.append(f"The {what} were {', '.join(parts)}.")
    flow = did.write if write else did.read
    group = did.throttled.later.write if write else did.throttled.later.read
    if flow.raw_iops:
        wait_s = did.throttled.wait_s(write) / (flow.raw_iops * did.elapsed_s)
        device_s = did.device_latency_s(write)
        rest = "" if device_s is None else f", and took the device {duration(device_s)}"
        lines.append(f"They waited {duration(wait_s)} each for the throttle{rest}.")
    if group.waiting:
        lines.append(f"{group.waiting} {what} wait now.")
    return lines


def _bin(least: int) -> str:
    return f"of {size(least)} to {size(2 * least)}" if least else "of no bytes"


def _credit(known: DriveState) -> list[str]:
    policy = known.policy
    assert policy is not None
    lines = []
    if policy.limit is not None and policy.burst is not None and policy.burst > policy.limit:
        state = "open" if known.credit.open else "closed"
        lines.append(f"It has {known.credit.seconds:.0f} s of burst credit; the burst is {state}.")
    assert known.allowed is not None
    used = (
        f", of which it used {percent(known.measured.rate / known.allowed)}"
        if known.measured.rate
        else ""
    )
    lines.append(f"So it may do {iops(known.allowed)} now{used}.")
    return lines


def _limits(known: DriveState, storage: StorageState | None) -> list[str]:
    if known.sent.limits is None or known.pricing.base is None:
        return ["No limits have been set yet."]
    if known.abilities.cost_curve:
        lines = [
            f"QEMU charges by the cost curve itself, so its limits are {_words(known.sent.limits)}."
        ]
        if known.sent.limits.split_size is not None:
            who = _names(storage.protected if storage else ())
            least = size(known.sent.limits.split_size)
            lines.append(
                f"Reads of more than {least} wait in parts, and syncs wait, to protect {who}."
            )
    elif known.pricing.mix is None:
        lines = [
            "Its mix of sizes is not known, so iops-size approximates the cost curve:"
            f" {_words(known.sent.limits)}."
            f" No size gets more than {percent(OVERSHOOT_RATIO)} too much."
        ]
    else:
        mix = known.pricing.mix
        flows = [
            f"{share} {size(flow.bps / flow.raw_iops)} {what}"
            for what, flow, share in (
                ("reads", mix.read, _share(mix.read, mix.write)),
                ("writes", mix.write, _share(mix.write, mix.read)),
            )
            if flow.raw_iops
        ]
        lines = [f"For a mix of {' and '.join(flows)} that makes {_words(known.sent.limits)}."]
    since = (
        duration((time.monotonic_ns() - known.sent.at_ns) / NS_PER_S) if known.sent.at_ns else None
    )
    if known.sent.reason is not None:
        when = f" {since} ago" if since else ""
        lines.append(f"These were set{when} because {known.sent.reason.value}.")
    if known.finding.error_ratio is not None:
        lines.append(
            f"Under them, what it does now would be held {abs(known.finding.error_ratio):.1%}"
            f" {'above' if known.finding.error_ratio > 0 else 'below'} its limit."
        )
    full = full_bounds(known)
    lines.append(f"What binds now: {', '.join(full) if full else 'nothing'}.")
    return lines


def _share(flow: Flow, other: Flow) -> str:
    return percent(flow.raw_iops / (flow.raw_iops + other.raw_iops))


def _words(limits: ThrottleLimits) -> str:
    return ", ".join(
        f"{name} {rate(value, 'B/s') if name.startswith('bps') and 'length' not in name else value}"
        for name, value in limits.items()
        if value
    )
