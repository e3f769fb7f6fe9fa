"""Benchmarks of the agent's cost: what they count, and what they leave when they are ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost import owner_waits, rules
from benchmarks.agent_cost.agent_process import cpu_s
from benchmarks.agent_cost.measure import FIGURES, Measured, Repeated
from benchmarks.spread import Spread
from testing.bench_program import ENVIRON
from testing.waiting import eventually


def test_a_benchmark_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    words = ("-m", "benchmarks.agent_cost.run", "1x1", "--output", str(tmp_path / "out.json"))
    environment = {**ENVIRON, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: [*tmp_path.glob("iokeel-*/agent.sock")], 60, process=process)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert not [*tmp_path.iterdir()]
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in running


# Its main thread only waits for another one, which ends after half a second of CPU time.
_WORKS_IN_A_THREAD = """
import threading, time
def work():
    while time.thread_time() < 0.5:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(time.process_time(), flush=True)
input()
"""


def test_cpu_time_of_threads_that_have_ended_counts() -> None:
    words = [sys.executable, "-c", _WORKS_IN_A_THREAD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        own_s = float(process.stdout.readline())
        assert 0.5 <= own_s <= cpu_s(process.pid)
        process.kill()


def test_figures_of_several_runs_have_their_spread() -> None:
    one = Measured("2x1", 2, 2, 0, 40, 9.0, 0.1, 0.2, 60.0, 50.0, 1.0, 2.0, 0.5, 3.0, 1.0, 0.1, {})
    dear = replace(one, cpu_us_per_drive_and_tick=30.0, errors={"timeout": 1.0})
    less = replace(one, cpu_us_per_drive_and_tick=8.0, errors={"timeout": 2.0})
    found = Repeated.of([one, dear, less])
    assert found.figures["cpu_us_per_drive_and_tick"] == Spread(9.0, 8.0, 30.0)
    assert found.errors == {"timeout": 3.0}
    named = {field.name for field in fields(Measured)}
    assert named - {*FIGURES} == {"scenario", "vms", "drives", "hung_vms", "errors"}


def run(module: str, *words: str | Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.agent_cost.{module}", *words]
    subprocess.run(command, env=ENVIRON, check=True, timeout=300)


def test_each_kind_of_rules_is_measured_and_a_guest_without(tmp_path: Path) -> None:
    run("rules", "--rules", "20", "--repeats", "1", "--output", tmp_path / "out.json")
    found = result_file.read(tmp_path / "out.json", rules.Result)
    assert [(each.rules, each.asks_for) for each in found.results] == [
        (0, ""), *((20, kind) for kind in rules.KINDS),
    ]  # fmt: skip
    assert all(each.guest_us.least > 0 for each in found.results)


def test_an_owner_waits_at_two_monitors_as_often_as_is_asked_for(tmp_path: Path) -> None:
    words = ("--connections", "5", "--pause", "0.05", "--rounds", "1")
    run("owner_waits", *words, "--output", tmp_path / "out.json")
    found = result_file.read(tmp_path / "out.json", owner_waits.Result)
    (only,) = found.rounds
    for each in (only.with_agent, only.without_agent):
        assert (each.connections, each.refused) == (5, 0)
        assert 0 < each.p50_ms <= each.p99_ms <= each.most_ms
