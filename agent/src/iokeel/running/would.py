"""Runs the law for the VMs that are only observed, and sends nothing.

To the law that sends orders such a VM has no policy. Here each has its policy, and limits that are
in force as soon as they are decided, so credit, shares and what a drive would have been held to
follow as they would. What guests do isn't disturbed, so their demand is seen as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from iokeel.config.settings import Config
from iokeel.core.decide import decide
from iokeel.core.divide.held import with_outcomes
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import PolicyInPart
from iokeel.core.values.state import NEW, DriveState, State
from iokeel.hypervisors.source import VmInfo
from iokeel.report.records import Above
from iokeel.rules.tenants import with_every_tenant


@dataclass
class Would:
    """The law's memory of observed VMs. above: what their drives did that it would have held."""

    state: State = field(default_factory=State)
    above: dict[DriveId, Above] = field(default_factory=dict)

    def look(
        self, real: State, seen: Observation, vms: Mapping[str, VmInfo], config: Config, now_ns: int
    ) -> State:
        """Decide for the observed VMs, beside the others as they are held.

        real: the law's state before its look at all drives, which saw `seen`. Returns the state
        that this look was at.
        """
        would = {name: vm for name, vm in vms.items() if vm.would is not None}
        if not would:
            self.state, self.above = State(), {}
            return self.state
        drives = {
            drive: self._observed(drive, now, would[drive.domain]) if drive.domain in would else now
            for drive, now in seen.drives.items()
        }
        known = {drive: s for drive, s in real.drives.items() if drive.domain not in would}
        known |= {drive: s for drive, s in self.state.drives.items() if drive.domain in would}
        before = State(config.model, known, config.tenants, self.state.storages)
        owners = (drive.tenant for drive in drives.values())
        before = with_every_tenant(before, config.tenants, owners)
        after, orders = decide(before, replace(seen, drives=drives), now_ns)
        self.state = with_outcomes(after, orders)
        self._count(known, would)
        return before

    def _observed(self, drive: DriveId, now: DriveSeen, vm: VmInfo) -> DriveSeen:
        """Return a drive as it would be seen if its policy were enforced."""
        policy = vm.would
        assert policy is not None
        known = self.state.drives.get(drive, NEW)
        return now._replace(
            policy=policy.for_drive(drive.target),
            in_force=known.sent.limits or UNLIMITED,
            failed=False,
            tenant=policy.tenant,
            vm=policy.vm,
            default=policy.for_new(drive.target) if isinstance(policy, PolicyInPart) else None,
        )

    def drives(self) -> dict[DriveId, DriveState]:
        """Return the observed drives' states as they would be."""
        return {drive: self.state.drives[drive] for drive in self.above}

    def _count(self, before: Mapping[DriveId, DriveState], would: Collection[str]) -> None:
        """Count what drives did above the rates that were to hold them in their last interval."""
        there = {d: self.above.get(d, Above()) for d in self.state.drives if d.domain in would}
        for drive, count in there.items():
            known, was = self.state.drives[drive], before.get(drive, NEW)
            did, rate, held = known.measured.rates, known.measured.budget_rate, was.pricing.rate
            if known.measured is was.measured or did is None or rate is None or held is None:
                continue
            if rate > held:
                there[drive] = Above(
                    count.seconds + did.elapsed_s,
                    count.operations + (rate - held) * did.elapsed_s,
                )
        self.above = there
