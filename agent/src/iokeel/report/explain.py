"""Why a drive's limits are what they are: the last decision, step by step, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from iokeel.core.counters import DriveId, Flow
from iokeel.core.drive.envelope import OVERSHOOT_RATIO
from iokeel.core.limits import ThrottleLimits
from iokeel.core.policy import DrivePolicy, VmPolicy
from iokeel.core.state import Share
from iokeel.report.fleet_snapshot import BudgetInFleet, FleetSnapshot
from iokeel.report.snapshot import (
    DirectionSnapshot,
    DriveSnapshot,
    Snapshot,
    StorageSnapshot,
    VmSnapshot,
)
from iokeel.words.units import duration, iops, percent, rate, size


def explain(snapshot: Snapshot, drive_id: DriveId) -> list[str]:
    """Return the steps of the last decision on a drive, a sentence each, inputs first.

    The snapshot must have the drive.
    """
    vm = snapshot.vms[drive_id.domain]
    drive = vm.drives[drive_id.target]
    storage = snapshot.storages.get(drive.storage or "")
    lines = []
    if vm.policy_error is not None:
        lines.append(f"The domain's policy has an error: {vm.policy_error}.")
    lines += [*_policy(drive), *_vm_policy(vm), *_rates(drive), *_shares(drive, storage)]
    lines += _vm_part(vm, drive)
    lines += _fleet(snapshot.fleet, vm.tenant, drive)
    if drive.policy is not None and drive.mode is not None:
        lines += [*_allowance(drive), *_limits(drive, storage)]
    if vm.cgroup:
        bounds = "; ".join(f"{file}: {value}" for file, value in vm.cgroup.items())
        lines.append(f"Below QEMU, the VM's cgroup has {bounds}.")
    lines.append(f"Last look: {drive.verdict.value}.")
    if drive.error is not None:
        lines.append(f"Error: {drive.error}.")
    return lines


def _policy(drive: DriveSnapshot) -> Iterator[str]:
    policy = drive.policy
    if policy is None:
        yield "The drive has no policy."
        return
    promise = _promise(policy)
    if policy.separate_budgets:
        promise += "; reads and writes each have a budget of their own"
    yield f"The policy gives {promise}."


def _promise(policy: DrivePolicy | VmPolicy) -> str:
    promise = "no limit" if policy.limit is None else f"a limit of {iops(policy.limit)}"
    if policy.burst is not None:
        promise += f", a burst of {iops(policy.burst)} for up to {policy.burst_seconds} s"
    if policy.reservation:
        promise += f", and a reservation of {iops(policy.reservation)}"
    return promise


def _vm_policy(vm: VmSnapshot) -> Iterator[str]:
    if vm.policy is not None:
        yield f"All drives of {vm.name} together have {_promise(vm.policy)}."


def _vm_part(vm: VmSnapshot, drive: DriveSnapshot) -> Iterator[str]:
    """Yield a drive's part of its VM's limit, and the VM's burst credit."""
    if vm.policy is None or drive.vm_iops is None:
        return
    if vm.policy.burst is not None and vm.policy.burst > (vm.policy.limit or 0):
        state = "open" if vm.burst_open else "closed"
        yield f"{vm.name} has {vm.credit_s:.0f} s of burst credit; its burst is {state}."
    whole = "burst" if vm.burst_open else "limit"
    yield f"The drive's part of the {whole} of {vm.name} is {iops(drive.vm_iops)}."


def _fleet(fleet: FleetSnapshot | None, tenant: str | None, drive: DriveSnapshot) -> Iterator[str]:
    """Yield what the fleet lets the drive's tenant and storage do here, and who else has what."""
    grants = []
    if tenant is not None and drive.tenant_iops is not None:
        known = fleet.tenants.get(tenant) if fleet is not None else None
        grants.append((tenant, known, drive.tenant_iops))
    if drive.storage is not None and drive.fleet_storage_iops is not None:
        known = fleet.storages.get(drive.storage) if fleet is not None else None
        grants.append((f"all drives on {drive.storage}", known, drive.fleet_storage_iops))
    for whose, known, part in grants:
        yield from _granted(whose, known)
        yield f"The drive's part of that is {iops(part)}."
    if grants and fleet is not None and fleet.error is not None:
        yield f"etcd can't be used: {fleet.error}."


def _granted(whose: str, known: BudgetInFleet | None) -> Iterator[str]:
    if known is None or known.allowed_iops is None:
        yield f"It isn't known yet what the fleet lets {whose} do here, so nothing is raised."
        return
    text = (
        f"The fleet lets {whose} do {iops(known.allowed_iops)} on this host, of"
        f" {iops(known.limit_iops)} over all hosts; its floor is {iops(known.floor_iops)}."
    )
    others = [
        f"{host} {iops(amount)}{', which is silent' if host in known.silent else ''}"
        for host, amount in known.others.items()
    ]
    if others:
        text += f" Others may do: {'; '.join(others)}."
    yield text
    if known.error is not None:
        yield f"Error: {known.error}."


def _rates(drive: DriveSnapshot) -> Iterator[str]:
    if drive.elapsed_s is None or drive.normalized_iops is None:
        yield "What the drive did in the last interval is not known yet."
        return
    directions = (("reads", drive.read), ("writes", drive.write))
    did = [
        f"{rate(direction.raw_iops)} {name}/s of {size(direction.mean_bytes)} on average"
        for name, direction in directions
        if direction.raw_iops and direction.mean_bytes is not None
    ]
    if not did:
        yield f"In the last {drive.elapsed_s:.1f} s it did nothing."
        return
    yield (
        f"In the last {drive.elapsed_s:.1f} s it did {' and '.join(did)},"
        f" which costs {iops(drive.normalized_iops)}."
    )
    for name, direction in directions:
        yield from _throttle(name, direction)


def _throttle(name: str, direction: DirectionSnapshot) -> Iterator[str]:
    """Yield what a throttle group did in one direction, if QEMU counts that."""
    throttle = direction.throttle
    if throttle is None:
        return
    if throttle.recent_sizes:
        total = sum(throttle.recent_sizes.values())
        parts = [
            f"{percent(count / total)} {_size_range(least)}"
            for least, count in throttle.recent_sizes.items()
        ]
        yield f"The {name} were {', '.join(parts)}."
    if throttle.mean_wait_s is not None:
        device_s = direction.device_latency_s
        rest = "" if device_s is None else f", and the device took {duration(device_s)}"
        yield f"They waited {duration(throttle.mean_wait_s)} each for the throttle{rest}."
    if throttle.waiting:
        yield f"{throttle.waiting} {name} wait now."


def _size_range(least: int) -> str:
    return f"of {size(least)} to {size(2 * least)}" if least else "of no bytes"


def _shares(drive: DriveSnapshot, storage: StorageSnapshot | None) -> Iterator[str]:
    if drive.policy is None:
        return
    if storage is not None and storage.usable_iops is not None:
        yield _storage(storage, storage.usable_iops)
    elif storage is not None and storage.by_weight:
        yield (f"BFQ shares {storage.name} out by the VMs' weights, so its capacity isn't divided.")
    elif drive.policy.reservation:
        place = f"the capacity of {drive.storage}" if drive.storage else "its storage"
        yield f"Its reservation is not guaranteed, because {place} is not known."
    if drive.share is not None:
        yield _share(drive.share, storage)


def _storage(storage: StorageSnapshot, usable_iops: float) -> str:
    text = f"{storage.name} can serve {iops(usable_iops)} now"
    if storage.by_weight:
        text = (
            f"BFQ shares {storage.name} out by the VMs' weights, but drives write there, and to"
            f" protect {_protected(storage.suffering)} all may do {iops(usable_iops)} now"
        )
    if storage.capacity_iops is not None and storage.capacity_ratio != 1:
        text += f" ({percent(storage.capacity_ratio)} of its capacity, judged by its latency)"
    if storage.wanted_iops is not None:
        text += f", and its drives want {iops(storage.wanted_iops)}"
    if storage.reservations_kept < 1:
        text += f"; it can keep {percent(storage.reservations_kept)} of the reservations asked for"
    return f"{text}."


def _share(share: Share, storage: StorageSnapshot | None) -> str:
    shared = share.storage or f"the limit of tenant {share.tenant}"
    if isinf(share.by_weight):
        return (
            f"There is more of {shared} than is wanted, so the drive may have"
            f" {iops(share.most)} of it."
        )
    parts = f"{rate(share.owed)} by reservation and {rate(share.by_weight)} by weight"
    if share.cut and storage is not None:
        parts += f", less {rate(share.cut)} to protect {_protected(storage.suffering)}"
    return f"Its share of {shared} is {iops(share.most)}: {parts}."


def _protected(drives: Sequence[DriveId]) -> str:
    return ", ".join(str(drive) for drive in drives) or "drives with latency targets"


def _allowance(drive: DriveSnapshot) -> Iterator[str]:
    policy = drive.policy
    assert policy is not None
    if policy.limit is not None and policy.burst is not None and policy.burst > policy.limit:
        state = "open" if drive.burst_open else "closed"
        yield f"It has {drive.credit_s:.0f} s of burst credit; the burst is {state}."
    assert drive.allowed_iops is not None
    used = ""
    if drive.normalized_iops:
        used = f", and used {percent(drive.normalized_iops / drive.allowed_iops)} of that"
    yield f"So it may do {iops(drive.allowed_iops)} now{used}."


def _limits(drive: DriveSnapshot, storage: StorageSnapshot | None) -> Iterator[str]:
    limits = drive.limits
    if limits is None:
        yield "No limits have been set yet."
        return
    if drive.mode == "exact":
        yield f"QEMU charges by the cost curve itself, so its limits are {_words(limits)}."
        if limits.split_size is not None:
            yield (
                f"Reads of more than {size(limits.split_size)} wait in pieces, to protect"
                f" {_protected(storage.protected if storage else ())}."
            )
    elif drive.priced_for is None:
        yield (
            "Its mix of request sizes is not known, so iops-size approximates the cost curve:"
            f" {_words(limits)}. No size of request gets more than {percent(OVERSHOOT_RATIO)} above"
            " the limit."
        )
    else:
        mix = drive.priced_for
        flows = [*_part("reads", mix.read, mix.write), *_part("writes", mix.write, mix.read)]
        yield f"For a mix of {' and '.join(flows)}, that makes {_words(limits)}."
    if drive.limits_reason is not None:
        age = "" if drive.limits_age_s is None else f" {duration(drive.limits_age_s)} ago"
        yield f"These were set{age} because {drive.limits_reason.value}."
    if drive.in_force is None:
        yield "Whether QEMU has them in force is not known."
    elif drive.in_force != limits:
        yield f"QEMU doesn't have them yet. In force: {_words(drive.in_force) or 'no limits'}."
    if drive.pricing_error_ratio is not None:
        side = "above" if drive.pricing_error_ratio > 0 else "below"
        error = f"{100 * abs(drive.pricing_error_ratio):.1f} %"
        yield f"At its present mix, they hold it {error} {side} its limit."
    yield f"Binding now: {', '.join(drive.binding) or 'nothing'}."


def _part(name: str, flow: Flow, other: Flow) -> Iterator[str]:
    """Yield one direction's part of a mix, if it has any."""
    if flow.mean_size_bytes is not None:
        part = flow.raw_iops / (flow.raw_iops + other.raw_iops)
        yield f"{percent(part)} {size(flow.mean_size_bytes)} {name}"


def _words(limits: ThrottleLimits) -> str:
    return ", ".join(
        f"{name} {rate(value, 'B/s') if name.startswith('bps') and 'length' not in name else value}"
        for name, value in limits.items()
        if value
    )
