"""How long does the owner of a QMP socket wait for it, with the agent and without?

    python -m benchmarks.agent_cost.owner_waits [--connections N] [--pause SECONDS] [--rounds N]

Two VMs run as Proxmox VE starts them. The agent takes turns at the monitor of one, and doesn't know
the other. A client connects to both, one after the other, asks query-status and hangs up, as `qm`
does; then it pauses for up to twice --pause, at random. So whatever else the machine does meets
both VMs alike. The waits are of real time, so other work on the machine makes them longer.

    wait      from connect(2) to QEMU's greeting, in milliseconds
    refused   connections that QEMU or the kernel refused, or that had no answer in 5 s
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from benchmarks import result_file
from benchmarks.command import end_with
from benchmarks.result_file import Machine
from testing.agents import Agent
from testing.hypervisors.proxmox import QEMU, Owner, ProxmoxHost
from testing.waiting import eventually

VMID, LIMIT = 100, 700
RULES = '[[rules]]\nname = "sold"\n[[rules.drives]]\nlimit = "platform"\n'
A_TENTH_MS = 100.0


@dataclass(frozen=True)
class Waits:
    """The waits at one monitor, in milliseconds. longer: how many took a tenth of a second."""

    connections: int
    refused: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    longer: int

    @classmethod
    def of(cls, owner: Owner) -> Waits:
        """Return the figures of an owner's waits."""
        waits = [1e3 * each for each in owner.waits_s]
        p99 = quantiles(waits, n=100, method="inclusive")[-1]
        return cls(
            len(waits),
            len(owner.refused),
            round(median(waits), 2),
            round(p99, 2),
            round(max(waits), 2),
            sum(each > A_TENTH_MS for each in waits),
        )

    def __str__(self) -> str:
        return (
            f"half within {self.p50_ms} ms, 99 % within {self.p99_ms} ms, at most {self.most_ms}"
            f" ms, {self.longer} of {self.connections} above 100 ms, {self.refused} refused"
        )


@dataclass(frozen=True)
class Round:
    """The waits of one round. load: the machine's load average over a minute, at its end."""

    load: float
    with_agent: Waits
    without_agent: Waits


@dataclass
class Result:
    """A result file."""

    question: str
    date: str
    revision: str | None
    machine: Machine
    cpu: str
    qemu: str
    pause_s: float
    rounds: list[Round] = field(default_factory=list)


def measure(agent: Agent, hosts: Sequence[ProxmoxHost], connections: int, pause_s: float) -> Round:
    """Connect to each monitor that many times. The agent has the VM of the first."""
    owners = [Owner(host.monitor(VMID)) for host in hosts]
    for _ in range(connections):
        for owner in random.sample(owners, len(owners)):
            try:
                owner.ask("query-status")
            except (OSError, ValueError) as error:
                owner.refused.append(repr(error))
        time.sleep(random.uniform(0.0, 2 * pause_s))
    load = round(os.getloadavg()[0], 1)
    assert agent.drive(str(VMID), "scsi0")["error"] is None
    ours, other = (Owner(host.monitor(VMID)).iops() for host in hosts)
    assert 0 < ours < LIMIT  # as normalized, before it did any I/O
    assert other == LIMIT
    return Round(load, *map(Waits.of, owners))


def main(argv: Sequence[str]) -> int:
    """Measure, write the result file and print the figures."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--connections", type=int, default=1000, help="to each VM in a round")
    parser.add_argument("--pause", type=float, default=0.2, help="on average, in seconds")
    parser.add_argument("--rounds", type=int, default=3)
    output = result_file.RESULTS / "owner-waits.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args(argv)
    result = Result(
        question=result_file.question(__doc__),
        date=result_file.now(),
        revision=result_file.revision(),
        machine=Machine.this(),
        cpu=result_file.cpu_model(),
        qemu=result_file.version(*QEMU),
        pause_s=options.pause,
    )
    with (
        tempfile.TemporaryDirectory(prefix="iokeel-") as folder,
        ProxmoxHost(Path(folder, "with")) as ours,
        ProxmoxHost(Path(folder, "without")) as others,
    ):
        for host in (ours, others):
            host.configure(VMID, scsi0=f"local-lvm:vm-{VMID}-disk-0,iops={LIMIT}")
            host.start(VMID, limits={"iops-total": LIMIT})
        with Agent(Path(folder), ours.table + RULES) as agent:
            eventually(lambda: agent.drive(str(VMID), "scsi0")["limit_iops"] == LIMIT)
            for _ in range(options.rounds):
                one = measure(agent, (ours, others), options.connections, options.pause)
                result.rounds.append(one)
                print(f"with the agent: {one.with_agent}\nwithout: {one.without_agent}", flush=True)
    result_file.write(options.output, result)
    return 0


if __name__ == "__main__":
    end_with(main)
