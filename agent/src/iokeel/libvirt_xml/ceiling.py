"""A host's ceiling: the most that the policy in a domain's metadata can give.

Whoever may write the metadata could lift their own limit by it, or count for another's tenant. So a
ceiling also holds a domain whose policy is gone, or can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TypeVar

from iokeel.core.values.claimant import budgets
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, VmPolicy
from iokeel.errors import PolicyError
from iokeel.words.quoting import few

P = TypeVar("P", DrivePolicy, VmPolicy)
_NONE = DomainPolicy({})
_DEFAULTS = DrivePolicy()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most for each domain whose name matches.

    name: its own. most: for all drives together; has a limit. drive: has the highest weight of a
    drive, and its lowest latency target (None: it can have none). job_bps: of each block job; None
    for any. tenant: of all drives; None for the policy's. domains: patterns of names (fnmatch).
    """

    name: str
    most: VmPolicy
    drive: DrivePolicy = _DEFAULTS
    job_bps: int | None = None
    tenant: str | None = None
    domains: tuple[str, ...] = ("*",)

    def hold(
        self, policy: DomainPolicy | None, targets: Collection[str] | None, where: str
    ) -> tuple[DomainPolicy, PolicyError | None]:
        """Return what is in force of a policy, and the error if it asks for more.

        policy: None if the domain has none. targets: its drives'; None if it may have others.
        where: its name in errors.
        """
        asked, most = policy or _NONE, self.most
        vm = asked.vm or VmPolicy(burst_seconds=most.burst_seconds)
        if vm.limit is None:
            vm = replace(vm, limit=most.limit, burst=most.burst)
        drives = [asked.for_drive(target) for target in targets or asked.drives]
        alone = asked.vm is None and targets is not None and self._fits(asked, targets)
        reserved = sum(drive.reservation for drive in drives if drive is not None)
        part = min(1.0, most.reservation / reserved) if reserved else 1.0
        default = asked.default if alone else asked.default or _DEFAULTS
        held = replace(
            asked,
            drives={target: self._drive(drive, part) for target, drive in asked.drives.items()},
            default=None if default is None else self._drive(default, part),
            tenant=self.tenant or asked.tenant,
            vm=None if alone else self._below(vm, min(vm.reservation, most.reservation)),
            job_bps=min(filter(None, (asked.job_bps, self.job_bps)), default=None),
        )
        error = None
        if more := [*_more(asked, held)]:
            what = f"the policy asks for more than [ceilings.{self.name}] gives: {few(more)}"
            error = PolicyError(where, what, "lower that, or raise the ceiling")
        return held if held == asked else replace(held, ceiling=self.name), error

    def _fits(self, policy: DomainPolicy, targets: Collection[str]) -> bool:
        """Return whether all drives have limits that add up to no more than the VM's.

        Then they need no other: a limit of a VM slows drives that begin to work.
        """
        drives = [policy.for_drive(target) for target in {*targets, *policy.drives}]
        limits = [
            (budgets(drive) * drive.limit, budgets(drive) * (drive.burst or drive.limit))
            for drive in drives
            if drive is not None and drive.limit is not None
        ]
        return (
            len(limits) == len(drives)
            and sum(limit for limit, _ in limits) <= (self.most.limit or 0)
            and sum(burst for _, burst in limits) <= (self.most.burst or self.most.limit or 0)
        )

    def _drive(self, drive: DrivePolicy, part: float) -> DrivePolicy:
        """Return what a drive has of a promise. part: of its reservation."""
        target_ms, least_ms = drive.latency_target_ms, self.drive.latency_target_ms
        below = self._below(drive, min(int(drive.reservation * part), self.most.reservation))
        read, write = below.limit_read, below.limit_write
        return replace(
            below,
            limit_read=read and min(read, below.limit or read),
            limit_write=write and min(write, below.limit or write),
            start_credit_seconds=min(drive.start_credit_seconds, below.burst_seconds),
            weight=min(drive.weight, self.drive.weight),
            latency_target_ms=max(target_ms, least_ms) if target_ms and least_ms else None,
        )

    def _below(self, promise: P, reservation: int) -> P:
        """Return a promise with no more than the VM's rates, and a reservation."""
        most, limit, burst = self.most, promise.limit, promise.burst
        return replace(
            promise,
            reservation=reservation,
            limit=limit and min(limit, most.limit or limit),
            burst=burst and min(burst, most.burst or most.limit or burst),
            burst_seconds=min(promise.burst_seconds, most.burst_seconds),
        )


def ceiling_of(ceilings: Iterable[Ceiling], domain: str) -> Ceiling | None:
    """Return the first ceiling for a domain's name; None if there is none."""
    for ceiling in ceilings:
        if any(fnmatchcase(domain, pattern) for pattern in ceiling.domains):
            return ceiling
    return None


def _more(asked: DomainPolicy, held: DomainPolicy) -> Iterator[str]:
    """Yield what a policy asks for in vain, and what it gets: vda limit 50000 -> 20000."""
    promises: list[tuple[str, DrivePolicy | VmPolicy | None, DrivePolicy | VmPolicy | None]]
    promises = [(f"{name} ", drive, held.drives[name]) for name, drive in asked.drives.items()]
    promises += [("class ", asked.default, held.default), ("", asked.vm, held.vm)]
    for whose, wanted, has in promises:
        for field in fields(wanted) if wanted is not None else ():
            before, now = getattr(wanted, field.name), getattr(has, field.name)
            if before not in (now, field.default):
                what = f"{whose}{field.name.replace('_', '-')} {before}"
                yield f"{what} -> {'none' if now is None else now}"
    if asked.tenant not in (None, held.tenant):
        yield f"tenant {asked.tenant} -> {held.tenant}"
    if asked.job_bps not in (None, held.job_bps):
        yield f"job-bps {asked.job_bps} -> {held.job_bps}"
