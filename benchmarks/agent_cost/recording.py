"""What does recording the history of weeks cost an agent with 1,000 drives?

    python -m benchmarks.agent_cost.recording [--drives N] [--hours N] [--folder FOLDER]

Records loads of simulated guests by the agent's own recorder, in virtual time: a sample each two
seconds, as the agent takes them, and all hours to their ends. Then it runs an agent with so many
drives and without the history, on the same machine, for as many ticks as agent_cost.run does.

    recorder              1e6 * CPU seconds of the recorder / (drives * seconds recorded)
    agent                 1e6 * CPU seconds of the agent's process / ticks / drives (measure.py)
    more                  recorder / agent
    written               write_bytes of /proc/self/io, an hour; of the hours after the first
    journal               the most that an hour's journal has; it is beside the socket, in memory
    file                  what the file grew, in bytes an hour and drive

FOLDER has to be on a disk, or nothing is counted as written. Writes results/recording.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost.measure import measure
from benchmarks.agent_cost.run import LEAST_TICKS, Machine
from benchmarks.agent_cost.scenario import Scenario
from iokeel.core.promises import LATENCY_TARGET, RESERVATION
from iokeel.core.values.counters import Counters, DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, DriveState, Measured, StorageState
from iokeel.core.values.storage import StoragePolicy
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.records import Account, Kept
from iokeel.running.minutes import Seen
from iokeel.running.recorder import Recorder
from iokeel.store.weeks import HOUR_S
from testing.agents import IOKEEL
from testing.sim.loads import loads

SAMPLE_S = 2.0
DRIVES_A_STORAGE = 100
# An hour has been written so long after its end.
_AFTER_S = 120
FIRST_HOUR = 480_000


@dataclass(frozen=True)
class Recorded:
    """The recorder's own figures; see above."""

    drives: int
    hours: int
    recorder_us: float
    written_bytes_an_hour: float
    journal_bytes: int
    file_bytes_a_drive_and_hour: float


@dataclass(frozen=True)
class Result:
    """A result file."""

    question: str
    machine: Machine
    recorded: Recorded
    agent_us: list[float]
    more_ratio: float


class Clock:
    """Adds up the CPU time of calls."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def time(self, call: Callable[[], object]) -> object:
        """Call it, and return what it returns."""
        before = time.process_time()
        found = call()
        self.cpu_s += time.process_time() - before
        return found


def record(folder: Path, journals: Path, drives: int, hours: int) -> Recorded:
    """Record simulated guests. Every third has a reservation and a latency target."""
    file, clock = folder / "history.db", Clock()
    recorder = Recorder(file, journals / "agent.sock", Metrics(), 14 * 24)
    names = [DriveId(f"instance-{number:08x}", "vda") for number in range(drives)]
    uuids = {name.domain: f"{number:08x}-0e0f-4a7e-9d58-2f6b0a3c7e11"
             for number, name in enumerate(names)}  # fmt: skip
    demands = [load.demands(SAMPLE_S) for load in loads(drives, drives)]
    policies = [DrivePolicy(limit=4000), DrivePolicy(), DrivePolicy(100, 1000, latency_target_ms=5)]
    storages = {
        f"ssd{number}": StorageState(StoragePolicy(capacity=200_000))
        for number in range(-(-drives // DRIVES_A_STORAGE))
    }
    written: list[int] = []
    sizes: list[int] = []
    journal = 0
    accounts: dict[DriveId, Account] = {}
    for number in range(round(hours * HOUR_S / SAMPLE_S) + 1):
        at_s = number * SAMPLE_S
        seen = {}
        values = array("f")
        for place, (name, its) in enumerate(zip(names, demands, strict=True)):
            rate = min(4000.0, next(its))
            rates = Rates(1.0, Flow(rate, rate * 4096), Flow(0.0, 0.0), 0.001, None)
            measured = Measured(Counters(0, 0, 0, 0, 0, 0, 0), rates, rate)
            held = Demand(throttled_s=at_s * (place % 3) / 4)
            policy = policies[place % 3]
            storage = f"ssd{place // DRIVES_A_STORAGE}"
            seen[name] = DriveState(policy, storage, measured=measured, demand=held)
            values.extend((rate, 4000.0, 0.001, rate / 1e6, 0.0))
            if place % 3 == 2:
                kept = Kept(0.75 * at_s, 0.25 * at_s)
                accounts[name] = Account(promises={RESERVATION: kept, LATENCY_TARGET: kept})
        sample = Seen(seen, storages, values, uuids, {}, accounts)
        at_ns, now_s = round(at_s * 1e9), FIRST_HOUR * HOUR_S + at_s
        if clock.time(lambda: recorder.sample(at_ns, now_s, sample)):  # noqa: B023
            found = [path.stat().st_size for path in journals.glob("*.journal")]
            journal = max([journal, *found])
            clock.time(recorder.record_now)
        if at_s % HOUR_S == _AFTER_S:
            written.append(_written())
            sizes.append(file.stat().st_size)
    recorder.finish()
    clock.time(lambda: recorder.record_now(ends=True))
    return Recorded(
        drives,
        hours,
        round(1e6 * clock.cpu_s / drives / (hours * HOUR_S), 3),
        (written[-1] - written[1]) / (hours - 2),
        journal,
        round((sizes[-1] - sizes[1]) / (hours - 2) / drives, 1),
    )


def _written() -> int:
    """Return how many bytes this process has had written to disks."""
    text = Path("/proc/self/io").read_text()
    return int(text.partition("\nwrite_bytes: ")[2].partition("\n")[0])


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--drives", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=3, help="recorded in virtual time, from 3 on")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the agent")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--output", type=Path, default=result_file.RESULTS / "recording.json")
    options = parser.parse_args()
    if options.hours < 3:
        parser.error("give --hours 3 at least: the first one also has the drives' names")
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as journals,
    ):
        found = record(Path(folder), Path(journals), options.drives, options.hours)
    print(f"recorder {found.recorder_us} us a drive and second")
    print(f"written {found.written_bytes_an_hour / 1e6:.3f} MB an hour")
    print(f"file {found.file_bytes_a_drive_and_hour} bytes a drive and hour")
    scenario = Scenario.of(f"{options.drives}x1")
    off = "[history]\nkeep_days = 0\n"
    agent_us = [
        measure(scenario, LEAST_TICKS, (str(IOKEEL),), tables=off).cpu_us_per_drive_and_tick
        for _ in range(options.repeats)
    ]
    more = round(found.recorder_us / sorted(agent_us)[len(agent_us) // 2], 4)
    print(f"agent {agent_us} us a drive and tick: {100 * more:.2f} % more")
    question = result_file.question(__doc__)
    result_file.write(options.output, Result(question, Machine.this(), found, agent_us, more))


if __name__ == "__main__":
    main()
