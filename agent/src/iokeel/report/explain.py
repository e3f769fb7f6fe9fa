"""Why a drive's limits are what they are: the last decision, step by step, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from iokeel.core.enforce.envelope import OVERSHOOT_RATIO
from iokeel.core.measure.zeroes import PAID_S
from iokeel.core.values.counters import DriveId, Flow, Rates
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DrivePolicy, VmPolicy
from iokeel.core.values.state import DriveState, Share, VmPart
from iokeel.report.records import BudgetInFleet, DriveReport, FleetSnapshot, ThrottleReport
from iokeel.report.snapshot import Decision, Snapshot, StorageSnapshot, VmSnapshot
from iokeel.rules.compose import because_of, has_own, rules_of_drive
from iokeel.words.quoting import escaped, few
from iokeel.words.units import bytes_rate, duration, iops, percent, percent_kept, rate, size

# Less is the noise of two counts that aren't read at one moment.
_LEAST_ADDED_BYTES = 1024


def explain(snapshot: Snapshot, drive_id: DriveId) -> list[str]:
    """Return the steps of the last decision on a drive, a sentence each, inputs first.

    The snapshot must have the decision on the drive.
    """
    vm = snapshot.vms[drive_id.domain]
    drive, decision = snapshot.drives[drive_id], snapshot.decisions[drive_id]
    storage = snapshot.storages.get(drive.storage or "")
    lines = []
    if vm.report.observed:
        lines.append(
            "The guest is only observed, so no limit of it is set: this is what would be done."
        )
    if vm.policy_error is not None:
        lines.append(f"The domain's policy has an error: {vm.policy_error}.")
    lines += [
        *_policy(decision.known.policy, vm, drive.target),
        *_vm_policy(vm),
        *_rates(drive, decision.known.measured.rates),
        *_free(drive),
    ]
    lines += _zeroes(decision)
    lines += [*_shares(drive, decision, storage, vm.policy), *_vm_part(vm, decision.known.vm)]
    lines += _fleet(snapshot.fleet, drive, decision.known)
    if (policy := decision.known.policy) is not None:
        if drive.mode is not None:
            lines += [*_allowance(drive, policy), *_limits(drive, decision, storage)]
        lines += _beside(drive, policy)
    if vm.report.cgroup:
        bounds = "; ".join(f"{file}: {value}" for file, value in vm.report.cgroup.items())
        lines.append(f"Below QEMU, the VM's cgroup has {bounds}.")
    lines += [*_beneath(vm, drive.target), *_jobs(vm)]
    if drive.above_s:
        lines.append(
            f"For {duration(drive.above_s)} since it is observed, it did more than it would be"
            f" allowed, by {drive.above_operations:,.0f} normalized operations."
        )
    if not vm.report.observed:
        lines.append(f"Last look: {drive.verdict}.")
    if drive.error is not None:
        lines.append(f"Error: {drive.error.error()}.")
    return [escaped(line) for line in lines]


def _policy(policy: DrivePolicy | None, vm: VmSnapshot, target: str) -> Iterator[str]:
    known = vm.by_rules
    if policy is None:
        yield "The drive has no policy."
        if known is not None and known.fit.leaves_alone is not None:
            yield f"Rule {known.fit.leaves_alone} leaves the guest alone."
        return
    promise = f"{_promise(policy)}{_bounds(policy)}"
    rules = [] if known is None else rules_of_drive(known, target)
    if known is None or not rules:
        yield f"The policy gives {promise}."
        return
    its_own = has_own(known, target)
    whose = f"rule{'s' if len(rules) > 1 else ''} {few(rules)}"
    gives = "gives" if len(rules) == 1 and not its_own else "give"
    both = f"Its own policy and {whose}" if its_own else f"R{whose[1:]}"
    yield f"{both} {gives} {promise}{because_of(known, rules)}."
    if gone := [rule for rule in rules if rule in known.made.kept.values()]:
        fits = "doesn't" if len(gone) == 1 else "don't"
        rule = "Rule" if len(gone) == 1 else "Rules"
        yield f"{rule} {few(gone)} {fits} fit any more, and none gives what stays as it was."


def _promise(policy: DrivePolicy | VmPolicy) -> str:
    promise = "no limit" if policy.limit is None else f"a limit of {iops(policy.limit)}"
    if policy.burst is not None:
        promise += f", a burst of {iops(policy.burst)} for up to {policy.burst_seconds} s"
    if policy.reservation:
        promise += f", and a reservation of {iops(policy.reservation)}"
    return promise


def _bounds(policy: DrivePolicy) -> str:
    said = ""
    if policy.max_bytes is not None:
        each = " for reads and writes each" if policy.separate_budgets else ""
        said += f", and max-bytes of {bytes_rate(policy.max_bytes)}{each}"
    if policy.separate_budgets:
        said += "; reads and writes each have a budget of their own"
    for name, own in (("reads", policy.limit_read), ("writes", policy.limit_write)):
        if own is not None and own != policy.limit:
            said += f", {name} of {iops(own)}"
    return said


def _vm_policy(vm: VmSnapshot) -> Iterator[str]:
    if vm.policy is not None:
        rule = vm.by_rules and vm.by_rules.made.sources.get("limit")
        by = f" by rule {rule}" if rule else ""
        yield f"All drives of {vm.report.domain} together have {_promise(vm.policy)}{by}."
    if vm.ceiling is not None:
        yield f"[ceilings.{vm.ceiling}] of this host's configuration holds it to that."


def _vm_part(vm: VmSnapshot, of_vm: VmPart | None) -> Iterator[str]:
    """Yield a drive's part of its VM's limit, and the VM's burst credit."""
    most = of_vm and (of_vm.policy.limit if of_vm.part is None else of_vm.part.most)
    if vm.policy is None or most is None:
        return
    name, burst_open = vm.report.domain, vm.report.burst_open
    if vm.policy.burst is not None and vm.policy.burst > (vm.policy.limit or 0):
        state = "open" if burst_open else "closed"
        yield f"{name} has {vm.report.credit_s:.0f} s of burst credit; its burst is {state}."
    whole = "burst" if burst_open else "limit"
    yield f"The drive's part of the {whole} of {name} is {iops(most)}."


def _fleet(fleet: FleetSnapshot | None, drive: DriveReport, state: DriveState) -> Iterator[str]:
    """Yield what the fleet lets the drive's tenant and storage do here, and who else has what."""
    grants: list[tuple[str, BudgetInFleet | None, float]] = []
    if drive.tenant is not None and state.part is not None:
        known = fleet.tenants.get(drive.tenant) if fleet is not None else None
        if known is None:
            its = iops(state.part.most)
            yield f"The drive's part of the limit of tenant {drive.tenant} is {its}."
        else:
            grants.append((drive.tenant, known, state.part.most))
    if drive.storage is not None and state.storage_part is not None:
        known = fleet.storages.get(drive.storage) if fleet is not None else None
        grants.append((f"all drives on {drive.storage}", known, state.storage_part.most))
    for whose, known, part in grants:
        yield from _granted(whose, known)
        yield f"The drive's part of that is {iops(part)}."
    if state.waits_for_room:
        most = iops(min(part.part for part in state.parts))
        yield f"It is to have {most}, once other drives' limits have made room for that."
    if grants and fleet is not None and fleet.error is not None:
        yield f"etcd can't be used: {fleet.error}."


def _granted(whose: str, budget: BudgetInFleet | None) -> Iterator[str]:
    if budget is None or budget.report.allowed_iops is None:
        yield f"It isn't known yet what the fleet lets {whose} do here, so nothing is raised."
        return
    known, allowed_iops = budget.report, budget.report.allowed_iops
    text = (
        f"The fleet lets {whose} do {iops(allowed_iops)} on this host, of"
        f" {iops(known.limit_iops)} over all hosts; its floor is {iops(known.floor_iops)}."
    )
    others = [
        f"{host} {iops(amount)}{', which is silent' if host in known.silent else ''}"
        for host, amount in budget.others.items()
    ]
    if others:
        text += f" Others may do: {'; '.join(others)}."
    yield text
    if known.error is not None:
        yield f"Error: {known.error.error()}."


def _rates(drive: DriveReport, measured: Rates | None) -> Iterator[str]:
    if measured is None or drive.normalized_iops is None:
        yield "What the drive did in the last interval is not known yet."
        return
    flows = (
        ("reads", drive.raw_read_iops, drive.mean_read_bytes),
        ("writes", drive.raw_write_iops, drive.mean_write_bytes),
    )
    did = [
        f"{rate(raw_iops)} {name}/s of {size(mean_bytes)} on average"
        for name, raw_iops, mean_bytes in flows
        if raw_iops and mean_bytes is not None
    ]
    if not did:
        done = "nothing"
        if drive.normalized_iops:
            done = f"parts of requests, which cost {iops(drive.normalized_iops)}"
        yield f"In the last {measured.elapsed_s:.1f} s it did {done}."
        return
    yield (
        f"In the last {measured.elapsed_s:.1f} s it did {' and '.join(did)},"
        f" which costs {iops(drive.normalized_iops)}."
    )
    waits_s = (measured.wait_s(write=False), measured.wait_s(write=True))
    yield from _throttle("reads", drive.read, waits_s[0], drive.read_device_latency_s)
    yield from _throttle("writes", drive.write, waits_s[1], drive.write_device_latency_s)


def _free(drive: DriveReport) -> Iterator[str]:
    """Yield the requests that no limit of the agent's is made for, if there were any."""
    done = []
    if drive.raw_flush_iops:
        done.append(f"{rate(drive.raw_flush_iops)} flushes/s")
    if drive.raw_discard_iops and drive.discard_bps is not None:
        mean_bytes = drive.discard_bps / drive.raw_discard_iops
        done.append(f"{rate(drive.raw_discard_iops)} discards/s of {size(mean_bytes)} on average")
    if done:
        yield f"Beside that it did {' and '.join(done)}, which are not counted in its rate."


def _zeroes(decision: Decision) -> Iterator[str]:
    """Yield what a drive pays for zeroes on stock QEMU."""
    if (zeroes := decision.zeroes) is not None:
        age = duration(decision.age_s(zeroes.at_ns))
        yield (
            f"It wrote at least {size(zeroes.bytes)} of zeroes {age} ago, which its limits take for"
            f" data. Nothing that they hold passes until they are set anew, {PAID_S:.0f} s after"
            " that, or paid for."
        )
    elif decision.known.pricing.apart:
        yield (
            "It has written zeroes. In case that more come, reads and writes have half of its rate"
            f" each, until none have come for {PAID_S:.0f} s."
        )


def _throttle(
    name: str, throttle: ThrottleReport | None, wait_s: float | None, device_s: float | None
) -> Iterator[str]:
    """Yield what a throttle group did in one direction, if QEMU counts that."""
    if throttle is None:
        return
    if throttle.recent_sizes:
        total = sum(throttle.recent_sizes.values())
        parts = [
            f"{percent(count / total)} {_size_range(least)}"
            for least, count in throttle.recent_sizes.items()
        ]
        yield f"The {name} were {', '.join(parts)}."
    if wait_s is not None:
        rest = "" if device_s is None else f", and the device took {duration(device_s)}"
        yield f"They waited {duration(wait_s)} each for the throttle{rest}."
    if throttle.recent_half_s is not None and throttle.recent_most_s is not None:
        yield (
            f"Below the throttle, half of them took up to {duration(throttle.recent_half_s)}, and"
            f" 99 % up to {duration(throttle.recent_most_s)}."
        )
    if throttle.waiting:
        yield f"{throttle.waiting} {name} wait now."


def _size_range(least: int) -> str:
    return f"of {size(least)} to {size(2 * least)}" if least else "of no bytes"


def _shares(
    drive: DriveReport, decision: Decision, storage: StorageSnapshot | None, vm: VmPolicy | None
) -> Iterator[str]:
    policy, share = decision.known.policy, decision.known.share
    if policy is None:
        return
    if storage is not None and storage.report.usable_iops is not None:
        if storage.divided:
            yield _storage(storage, storage.report.usable_iops)
        else:
            yield f"{drive.storage} isn't full, so no drive there is held back for another."
    elif storage is not None and storage.report.by_weight:
        yield f"BFQ shares {drive.storage} out by the VMs' weights, so its capacity isn't divided."
    elif policy.reservation or (vm is not None and vm.reservation):
        whose = "Its" if policy.reservation else f"{drive.domain}'s"
        place = f"the capacity of {drive.storage}" if drive.storage else "its storage"
        yield f"{whose} reservation is not guaranteed, because {place} is not known."
    if isinstance(share, Share):
        yield _share(share, storage)


def _storage(storage: StorageSnapshot, usable_iops: float) -> str:
    known = storage.report
    text = f"{known.storage} can serve {iops(usable_iops)} now"
    if known.by_weight:
        text = (
            f"BFQ shares {known.storage} out by the VMs' weights, but drives write there, and to"
            f" protect {_protected(known.suffering)} all may do {iops(usable_iops)} now"
        )
    if known.capacity_iops is not None and storage.capacity_ratio != 1:
        text += f" ({percent(storage.capacity_ratio)} of its capacity, judged by its latency)"
    if known.wanted_iops is not None:
        text += f", and its drives want {iops(known.wanted_iops)}"
    if known.reservations_kept < 1:
        kept = percent_kept(known.reservations_kept)
        text += f"; it can keep {kept} of the reservations asked for"
    return f"{text}."


def _share(share: Share, storage: StorageSnapshot | None) -> str:
    shared = share.storage
    if isinf(share.by_weight):
        return (
            f"There is more of {shared} than is wanted, so the drive may have"
            f" {iops(share.most)} of it."
        )
    parts = f"{rate(share.owed)} by reservation and {rate(share.by_weight)} by weight"
    if share.cut and storage is not None:
        parts += f", less {rate(share.cut)} to protect {_protected(storage.report.suffering)}"
    return f"Its share of {shared} is {iops(share.most)}: {parts}."


def _protected(drives: Sequence[DriveId | str]) -> str:
    return few([str(drive) for drive in drives]) or "drives with latency targets"


def _allowance(drive: DriveReport, policy: DrivePolicy) -> Iterator[str]:
    if policy.limit is not None and policy.burst is not None and policy.burst > policy.limit:
        state = "open" if drive.burst_open else "closed"
        yield f"It has {drive.credit_s:.0f} s of burst credit; the burst is {state}."
    assert drive.allowed_iops is not None
    used = ""
    if drive.normalized_iops:
        used = f", and used {percent(drive.normalized_iops / drive.allowed_iops)} of that"
    both = ", reads and writes together" if policy.separate_budgets else ""
    yield f"So it may do {iops(drive.allowed_iops)} now{both}{used}."


def _limits(
    drive: DriveReport, decision: Decision, storage: StorageSnapshot | None
) -> Iterator[str]:
    pricing, sent = decision.known.pricing, decision.known.sent
    limits, error_ratio = sent.limits, decision.known.finding.error_ratio
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
    elif pricing.mix is None:
        yield (
            "Its mix of request sizes is not known, so iops-size approximates the cost curve:"
            f" {_words(limits)}. No size of request gets more than {percent(OVERSHOOT_RATIO)} above"
            " the limit."
        )
    else:
        read, write = pricing.mix
        flows = [*_part("reads", read, write), *_part("writes", write, read)]
        yield f"For a mix of {' and '.join(flows)}, that makes {_words(limits)}."
    if limits.max_in_flight is not None:
        yield (
            f"At most {limits.max_in_flight:.3g} of its requests are at the storage at a time, on"
            " average: as many as its rate needs at twice the latency target."
        )
    if sent.reason is not None:
        age = f" {duration(decision.age_s(sent.at_ns))} ago" if sent.at_ns else ""
        were = "would have been" if drive.mode == "observe" else "were"
        yield f"These {were} set{age} because {sent.reason.value}."
    if drive.mode == "observe":
        if drive.binding:
            yield "It does more than that now."
        return
    if decision.in_force is None:
        yield "Whether QEMU has them in force is not known."
    elif decision.in_force != limits:
        yield f"QEMU doesn't have them yet. In force: {_words(decision.in_force) or 'no limits'}."
    if error_ratio is not None:
        side = "above" if error_ratio > 0 else "below"
        error = f"{100 * abs(error_ratio):.1f} %"
        yield f"At its present mix, they hold it {error} {side} its limit."
    yield f"Binding now: {', '.join(drive.binding) or 'nothing'}."


def _beside(drive: DriveReport, policy: DrivePolicy) -> Iterator[str]:
    """Yield the policy's bounds beside the limit that hold the drive now."""
    for name, most, words in (
        ("max-bytes", policy.max_bytes, bytes_rate),
        ("limit-read", policy.limit_read, iops),
        ("limit-write", policy.limit_write, iops),
    ):
        if name in drive.binding and most is not None:
            yield f"Its {name} of {words(most)} holds it."


def _beneath(vm: VmSnapshot, target: str) -> Iterator[str]:
    """Yield what the VM's cgroup does and allows below QEMU, as far as it isn't the drives' own."""
    cgroup = vm.cgroup
    if cgroup.uncounted:
        yield (
            "The kernel's counters of that cgroup can't be read, so it isn't known what images add"
            " below QEMU, and it has no bounds."
        )
    for device, known in cgroup.devices.items():
        added = [
            f"{what} of {size(value)}"
            for what, value in (("reads", known.added.rbps), ("writes", known.added.wbps))
            if value >= _LEAST_ADDED_BYTES
        ]
        if added:
            yield (
                f"On {device}, the VM's images add to each normalized operation"
                f" {' and '.join(added)} by measurement, and the bounds allow for that."
            )
    if held := cgroup.holding.get(target):
        yield (
            f"The cgroup's {' and '.join(held)} hold{'s' if len(held) == 1 else ''} it, because the"
            " VM does much below QEMU that neither its drives nor a known block job explain."
        )


def _jobs(vm: VmSnapshot) -> Iterator[str]:
    for job, given, _ in vm.jobs:
        if job.bps is None:
            held = "has no rate, and while it moves, the cgroup has no bounds"
        else:
            whose = "as [jobs] or the policy says" if given == job.bps else "set by somebody else"
            held = f"is held to {rate(job.bps, 'B/s')}, {whose}"
        yield f"The {job.kind} job {job.name} {held}."


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
