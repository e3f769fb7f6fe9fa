"""What does the agent cost a hypervisor with 10, 100, 1,000 and 5,000 drives?

Runs `iokeel agent` itself, at its one tick a second, against VMs that are QMP sockets only
(synthetic_hypervisor.py), with policies that bind so that limits are retuned as workloads shift.
Of each scenario, over at least 30 ticks after a warm-up:

    us a drive and tick   1e6 * CPU seconds of the agent's threads (/proc/PID/task/*/schedstat)
                          / ticks / drives
    kernel                the part of that which is system time (/proc/PID/stat, which samples)
    % of a core           1e2 * CPU seconds / seconds passed
    RSS, PSS              /proc/PID/smaps_rollup at the end
    tick p50, p99         of iokeel_agent_tick_seconds in /metrics: the time of a whole tick, from
                          its first query to its last order, by the histogram's buckets,
                          interpolated within a bucket
    retunes               changes of limits a drive and minute, after the first
    scrape                CPU seconds that one GET /metrics costs

Where the time goes is sampled in a run of its own: each few milliseconds of CPU time (SIGPROF)
the innermost function of iokeel or asyncio on the stack counts one.

    make bench-agent

writes benchmarks/results/agent-cost.json and prints a table. The hypervisor runs on the same
machine; its CPU is not counted, but it makes ticks longer where there are few cores.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
ITSELF = (sys.executable, "-m", "benchmarks.agent_cost.run")
SCENARIOS = (
    *("10x1", "100x1", "1000x1", "5000x1", "3x4", "25x4", "250x4", "1250x4", "100x1+5"),
    *("100x1/exact", "25x4/exact", "1000x1/exact"),
)
PROFILED = ("100x1", "1000x1")
WARM_UP_S = 20.0
_TICK_METRIC = "iokeel_agent_tick_seconds"
_RETUNES_METRIC = "iokeel_drive_retunes_total"


@dataclass(frozen=True)
class Scenario:
    """VMs, drives a VM, how many further VMs hang, and whether QEMUs have cost curves."""

    vms: int
    drives: int
    hung: int
    exact: bool

    @classmethod
    def of(cls, text: str) -> Scenario:
        """Return a scenario written as 100x1, 100x1+5 with 5 VMs that hang, or 100x1/exact."""
        size, _, kind = text.partition("/")
        size, _, hung = size.partition("+")
        vms, _, drives = size.partition("x")
        return cls(int(vms), int(drives), int(hung or 0), kind == "exact")

    def __str__(self) -> str:
        hung = f"+{self.hung}" if self.hung else ""
        return f"{self.vms}x{self.drives}{hung}{'/exact' if self.exact else ''}"


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


class Agent:
    """A running agent."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.socket = folder / "agent.sock"
        self.log = folder / "agent.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics by name and labels."""
        connection = UnixConnection(self.socket)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        lines = (line for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads so far, to the ns."""
        total_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
        return total_ns / 1e9

    def user_and_system(self) -> tuple[int, int]:
        """Return user and system time so far, in clock ticks."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])

    def memory_mib(self) -> tuple[float, float]:
        """Return RSS and PSS."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = dict(re.findall(r"^(Rss|Pss): +(\d+) kB$", text, re.MULTILINE))
        return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024

    def wait_for(self, drives: int, timeout_s: float = 180.0) -> float:
        """Wait until so many drives are known; returns how long that took, in seconds."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if self.metrics()["iokeel_agent_drives"] >= drives:
                    return time.monotonic() - started
            time.sleep(0.25)
        sys.exit(f"the agent does not know {drives} drives:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it as systemd does."""
        self.process.terminate()
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def hypervisor(folder: Path, scenario: Scenario) -> Iterator[None]:
    """Serve a scenario's VMs while the context lasts."""
    vms = scenario.vms + scenario.hung
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.agent_cost.synthetic_hypervisor"),
            *(str(folder / "vms"),),
            *(f"--vms={vms}", f"--drives={scenario.drives}", f"--hung={scenario.hung}"),
            f"--processes={1 if vms < 500 else 2}",
            *["--exact"] * scenario.exact,
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            sys.exit("the synthetic hypervisor did not start")
        yield
    finally:
        process.terminate()
        process.wait()


def configuration(folder: Path) -> Path:
    """Write an agent's configuration for all VMs in a folder, and return its path."""
    classes = ("bronze", "silver", "gold")
    tables = [
        f'[agent]\nsocket = "{folder}/agent.sock"\nstate_dir = "{folder}/state"\n'
        "[libvirt]\nenabled = false\n"
    ]
    tables += [
        f'[[vm]]\nname = "{path.stem}"\nsocket = "{path}"\nclass = "{classes[number % 3]}"\n'
        for number, path in enumerate(sorted((folder / "vms").glob("*.qmp")))
    ]
    (folder / "agent.toml").write_text("".join(tables))
    return folder / "agent.toml"


def percentile(before: dict[str, float], after: dict[str, float], part: float) -> float:
    """Return a percentile of the tick histogram between two scrapes, in seconds."""
    buckets = []
    for name in after:
        if found := re.fullmatch(_TICK_METRIC + r'_bucket\{le="([^"]+)"\}', name):
            buckets.append((float(found[1]), after[name] - before.get(name, 0.0)))
    wanted = part * buckets[-1][1]
    low, below = 0.0, 0.0
    for high, count in buckets:
        if count >= wanted and count > below:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (count - below)
        low, below = high, count
    return low


def total(metrics: dict[str, float], name: str) -> float:
    """Return the sum of a metric's samples."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def measure(
    scenario: Scenario,
    ticks: int,
    command: Sequence[str] = (*ITSELF, "--agent"),
    warm_up_s: float = WARM_UP_S,
) -> dict[str, Any]:
    """Return one scenario's figures. command: starts an agent, given a configuration's path."""
    drives = scenario.vms * scenario.drives
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name, hypervisor(Path(name), scenario):
        agent = Agent(Path(name), [*command, str(configuration(Path(name)))])
        try:
            connected_s = agent.wait_for(drives)
            time.sleep(warm_up_s)
            before, scraped = agent.metrics(), time.monotonic()
            time.sleep(1.0)  # what the scrape costs stays out
            cpu_s, split, started = agent.cpu_s(), agent.user_and_system(), time.monotonic()
            time.sleep(ticks)
            cpu_s, elapsed_s = agent.cpu_s() - cpu_s, time.monotonic() - started
            user, system = (
                now - then for now, then in zip(agent.user_and_system(), split, strict=True)
            )
            rss, pss = agent.memory_mib()
            scrape_s, scraped_s = agent.cpu_s(), time.monotonic() - scraped
            after = agent.metrics()
            scrape_s = agent.cpu_s() - scrape_s
        finally:
            agent.stop()
    count = after[f"{_TICK_METRIC}_count"] - before[f"{_TICK_METRIC}_count"]
    retunes = total(after, _RETUNES_METRIC) - total(before, _RETUNES_METRIC)
    cost_s = cpu_s / elapsed_s / (count / scraped_s) / drives
    errors = {
        key.partition('kind="')[2].rstrip('"}'): value - before.get(key, 0.0)
        for key, value in after.items()
        if key.startswith("iokeel_agent_errors_total") and value > before.get(key, 0.0)
    }
    return {
        "scenario": str(scenario),
        "vms": scenario.vms,
        "drives": drives,
        "hung_vms": scenario.hung,
        "ticks": round(count),
        "cpu_us_per_drive_and_tick": round(cost_s * 1e6, 1),
        "kernel_ratio": round(system / max(1, user + system), 2),
        "core_percent": round(100 * cpu_s / elapsed_s, 2),
        "rss_mib": round(rss, 1),
        "pss_mib": round(pss, 1),
        "tick_p50_ms": round(percentile(before, after, 0.5) * 1e3, 1),
        "tick_p99_ms": round(percentile(before, after, 0.99) * 1e3, 1),
        "retunes_per_drive_and_minute": round(retunes / drives / scraped_s * 60, 2),
        "scrape_cpu_ms": round(scrape_s * 1e3, 1),
        "all_known_after_s": round(connected_s, 1),
        "errors": errors,
    }


# Where the time goes

# By file and function of the innermost frame that is iokeel's or asyncio's.
_PARTS = (
    ("write to sockets", r"asyncio/selector_events\.py:write"),
    ("read from sockets", r"asyncio/selector_events\.py:_read_ready"),
    ("wait for sockets", r"selectors\.py:|asyncio/base_events\.py:_run_once"),
    ("JSON of counters", r"iokeel/qmp\.py:_take$"),
    ("QMP, the rest", r"iokeel/qmp(_source|_drives)?\.py:"),
    ("decide: envelope", r"iokeel/(envelope|curve)\.py:"),
    (
        "decide: the rest",
        r"iokeel/(controller|estimate|retune|state|share|storage|capacity|workload|credit|limits)\.py:",
    ),
    ("daemon", r"iokeel/daemon\.py:"),
    ("saving state", r"iokeel/store\.py:"),
    ("logging", r"logging/"),
    ("asyncio, the rest", r"asyncio/"),
)


def profile(scenario: Scenario, ticks: int) -> dict[str, Any]:
    """Return where an agent's time goes, as parts of 1."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name, hypervisor(Path(name), scenario):
        samples = Path(name) / "samples.json"
        command = [*ITSELF, f"--agent={configuration(Path(name))}"]
        agent = Agent(Path(name), [*command, f"--samples={samples}"])
        try:
            agent.wait_for(scenario.vms * scenario.drives)
            time.sleep(WARM_UP_S)
            agent.process.send_signal(signal.SIGUSR1)
            time.sleep(ticks)
            agent.process.send_signal(signal.SIGUSR2)
            time.sleep(1.0)
            counts = Counter(json.loads(samples.read_text()))
        finally:
            agent.stop()
    parts: Counter[str] = Counter()
    for place, count in counts.items():
        parts[next((part for part, like in _PARTS if re.search(like, place)), "other")] += count
    samples_taken = max(1, parts.total())
    return {
        "scenario": str(scenario),
        "samples": samples_taken,
        "parts": {part: round(n / samples_taken, 3) for part, n in parts.most_common()},
        "functions": {f: round(n / samples_taken, 3) for f, n in counts.most_common(25)},
    }


def run_agent(config: Path, samples: Path | None) -> None:
    """Run the agent in this process, sampled between SIGUSR1 and SIGUSR2 where asked to."""
    from iokeel.cli.main import main as iokeel

    if samples is not None:
        sample_into(samples)
    sys.argv = ["iokeel", "agent", "--config", str(config)]
    iokeel()


def sample_into(path: Path) -> None:
    """Set signal handlers that count where CPU time is spent."""
    counts: Counter[str] = Counter()

    def count(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            file = frame.f_code.co_filename
            if "/iokeel/" in file or "/asyncio/" in file or "/logging/" in file or (
                file.endswith("/selectors.py")
            ):  # fmt: skip
                name = "/".join(file.split("/")[-2:])
                counts[f"{name}:{frame.f_code.co_name}"] += 1
                return
            frame = frame.f_back
        counts["other"] += 1

    def start(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_text(json.dumps(counts))

    signal.signal(signal.SIGPROF, count)
    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)


def machine() -> dict[str, Any]:
    """Return what the figures were measured on, and what of."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    describe = ["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    git = ["git", "-C", str(BENCHMARKS), *describe]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": model[1] if model else platform.processor(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "git_revision": revision or None,
        "load_average": os.getloadavg()[0],
    }


_COLUMNS = (
    ("scenario", "VMs x drives"), ("cpu_us_per_drive_and_tick", "us/drive/tick"),
    ("kernel_ratio", "kernel"), ("core_percent", "% core"), ("rss_mib", "RSS MiB"),
    ("pss_mib", "PSS MiB"), ("tick_p50_ms", "p50 ms"), ("tick_p99_ms", "p99 ms"),
    ("retunes_per_drive_and_minute", "retunes"), ("scrape_cpu_ms", "scrape ms"),
)  # fmt: skip


def main() -> None:
    """Measure all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help="such as 100x1 or 25x4")
    parser.add_argument("--ticks", type=int, default=40, help="seconds measured in each")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results" / "agent-cost.json")
    parser.add_argument("--agent", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent is not None:
        run_agent(options.agent, options.samples)
        return
    if options.ticks < 30:
        parser.error("give --ticks 30 at least")
    found: dict[str, Any] = {"question": __doc__.partition("\n")[0], "machine": machine()}
    found |= {"tick_s": 1.0, "results": [], "where_the_time_goes": []}
    print("  ".join(title for _, title in _COLUMNS))
    for text in options.scenarios:
        found["results"].append(row := measure(Scenario.of(text), options.ticks))
        cells = (f"{row[key]!s:>{len(title)}}" for key, title in _COLUMNS)
        print("  ".join(cells), flush=True)
    for text in options.scenarios:
        if text in PROFILED:
            found["where_the_time_goes"].append(split := profile(Scenario.of(text), options.ticks))
            print(f"\n{text}, {split['samples']} samples")
            for part, ratio in split["parts"].items():
                print(f"  {100 * ratio:5.1f} %  {part}")
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
