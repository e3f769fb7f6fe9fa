"""iokeel: an agent for a stage's drives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benchmarks.agent_cost.agent_process import cpu_s
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.controllers.kernel import bfq_weight, no_bfq
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Policy, Scenario
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import ENDING_WITH_OWNER, Agent, HostAgent
from testing.waiting import eventually

_HELD_S = 30
_NEVER_MS = 60_000.0  # the highest target there is
TENANT = "tenant"


class Iokeel(Controller):
    """The agent. exact: with QEMU's throttle charging by the curve; else with stock limits."""

    def __init__(self, name: str, title: str, *, exact: bool) -> None:
        super().__init__(name, title)
        self.exact = exact

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: on stock QEMU, drives of guests."""
        if self.exact or all(drive.guest for drive in scenario.drives):
            return None
        return (
            "a stock storage daemon counts nothing, so it takes guests, and drives of this scenario"
            " are exports of storage daemons"
        )

    def tables(self, stage: Stage) -> str:
        """Return the agent's configuration beside [agent] and [libvirt]."""
        return agent_tables(stage)

    @contextmanager
    def hold(self, stage: Stage) -> Iterator[Running]:
        """Run an agent that holds all drives. Raises RuntimeError if it failed meanwhile."""
        tables = self.tables(stage)
        if stage.host is not None:
            agent: Agent = HostAgent(stage.host, tables)
        else:
            agent = Agent(stage.folder, tables)
            agent.command = (*ENDING_WITH_OWNER, *agent.command)
        drives = len(stage.places)

        def all_held() -> bool:
            """Whether each has been looked at twice: what the first look orders is in force."""
            seen = [drive for vm in agent.ask("/v1/vms") for drive in vm["drives"]]
            return sum(drive["normalized_iops"] is not None for drive in seen) >= drives

        try:
            agent.start()
            said = f"the agent holds {drives} drives; it says: {agent.log()[-2000:]}"
            eventually(all_held, _HELD_S, what=said, process=agent.process)
            yield Running(agent)
            agent.stop()
        finally:
            agent.end()
        if faults := agent.own_faults():
            raise RuntimeError("; ".join(faults))


class OverBfq(Iokeel):
    """The agent, and BFQ on the disk: the agent sets the weights."""

    def __init__(self) -> None:
        super().__init__("iokeel-bfq", "iokeel over BFQ, patched QEMU", exact=True)

    def lacks(self, scenario: Scenario) -> str | None:
        """Return what is missing: BFQ."""
        return no_bfq() or super().lacks(scenario)

    def tables(self, stage: Stage) -> str:
        """Return the configuration, with cgroups."""
        return agent_tables(stage, cgroup=True)

    @contextmanager
    def hold(self, stage: Stage) -> Iterator[Running]:
        """Give the disk the scheduler, and run an agent that has set the weights."""
        stage.disk.set_scheduler("bfq")
        weights = Counter[Path]()
        for place in stage.places:
            weights[place.group] += place.drive.weight
        with super().hold(stage) as held:
            if stage.scenario.tenant_limit is None:  # else they are parts of the tenant's

                def all_set() -> bool:
                    return all(bfq_weight(g).read_text() == f"{w}\n" for g, w in weights.items())

                eventually(all_set, _HELD_S, what="the agent sets BFQ's weights")
            yield held


class Paced(Iokeel):
    """The best that limits can do: drives without a target have fixed ones.

    These add up to a part of all drives' rate with no control. Drives with a target keep one that
    is always met, so that the others' requests still wait in parts, and nothing is cut. syncs:
    whether writers sync.
    """

    def __init__(self, name: str, title: str, part: float, *, syncs: bool = True) -> None:
        super().__init__(name, title, exact=True)
        self._part, self._syncs = part, syncs

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: a drive with a target."""
        if not any(drive.has_target for drive in scenario.drives):
            return "no drive has a latency target"
        return super().unfit(scenario)

    def scenario(self, scenario: Scenario, free_rate: float | None) -> Scenario:
        """Return a scenario whose drives without a latency target share a fixed rate."""
        rate = self._part * (free_rate or scenario.capacity)
        others = sum(not drive.has_target for drive in scenario.drives)
        left_out = () if self._syncs else ("fsync",)
        drives = []
        for drive in scenario.drives:
            policy: Policy = {"limit": max(1, round(rate / others))}
            if drive.has_target:
                policy = {"latency_target_ms": _NEVER_MS}
            streams = [
                replace(each, job={k: v for k, v in each.job.items() if k not in left_out})
                for each in drive.streams
            ]
            drives.append(replace(drive, policy=policy, streams=tuple(streams)))
        return replace(
            scenario, capacity=100 * rate, latency_target_ms=_NEVER_MS, drives=tuple(drives)
        )


class Running:
    """An agent that runs."""

    def __init__(self, agent: Agent) -> None:
        assert agent.process is not None
        self.agent = agent
        self._pid = agent.process.pid

    def cpu_s(self) -> float | None:
        """Return the processor time of the agent."""
        return cpu_s(self._pid)


def agent_tables(stage: Stage, *, cgroup: bool = False) -> str:
    """Return the configuration beside [agent] and [libvirt].

    cgroup: whether the agent sets VMs' cgroups too.
    """
    scenario = stage.scenario
    exports = stage.exports
    lines = [
        f"[cgroup]\nenabled = {str(cgroup).lower()}",
        "[storage.shared]",
        f"drives = {[f'{drive.vm}/*' for drive, _ in exports]}",
        f'device = "{stage.disk.device}"',
        f"capacity = {round(scenario.capacity)}",
        f"latency_target_ms = {scenario.latency_target_ms}",
    ]
    if scenario.model != DEFAULT_MODEL:
        lines.append(f"curve_read = {[list(p) for p in scenario.model.read.points]}")
        lines.append(f"curve_write = {[list(p) for p in scenario.model.write.points]}")
    if scenario.tenant_limit is not None:
        lines += [f"[tenants.{TENANT}]", f"limit = {scenario.tenant_limit}"]
    for vm, places in groupby(exports, key=lambda each: each[0].vm):
        drives = list(places)
        lines += ["[[vm]]", f'name = "{vm}"', f'socket = "{stage.disk.qmp_socket(drives[0][1])}"']
        if scenario.tenant_limit is not None:
            lines.append(f'tenant = "{TENANT}"')
        for drive, number in drives:
            lines.append(f"[vm.drives.group{number}]")
            lines += [f"{key} = {value}" for key, value in drive.policy.items()]
    return "\n".join(lines)
