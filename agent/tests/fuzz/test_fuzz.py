"""Fuzzing: a little of each target, and that a fault in one would be found."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iokeel.errors import ConfigError, PolicyError
from tests.fuzz.budget import MOST_BYTES, MOST_CPU_S, Broken, Log, one_line, only, within_budget
from tests.fuzz.mutator import grown, mutated

_FUZZ = Path(__file__).parent
_AGENT = _FUZZ.parents[1]
_TARGETS = sorted(folder.name for folder in (_FUZZ / "corpus").iterdir())
_RUNS = 600  # the 500th is tried as long as its target takes, too
_FAULTY = """
import sys
import types
from pathlib import Path
import atheris
from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.target import Target
def run(data):
    if data[:1] == b"a" and data[1:2] == b"b" and data[2:3] == b"c":
        raise ValueError("a fault")
module = types.ModuleType("faulty")
module.TARGETS = [Target("faulty", atheris.instrument_func(run), 100)]
sys.modules["tests.fuzz.targets.faulty"] = module
TARGETS["faulty"] = "faulty"
fuzz("faulty", 500000, 0, 1, Path(sys.argv[1]))
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(_AGENT), str(_AGENT / "src")])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=_AGENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("target", _TARGETS)
def test_no_input_breaks_a_promise(target: str, tmp_path: Path) -> None:
    words = ("-m", "tests.fuzz", target, "--runs", str(_RUNS), "--seed", "1")
    done = python(*words, "--found", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"stat::number_of_executed_units: {_RUNS}" in done.stderr


def test_each_target_has_inputs_to_begin_with() -> None:
    listed = python("-c", "from tests.fuzz.targets import TARGETS; print(*TARGETS)").stdout.split()
    assert sorted(listed) == _TARGETS
    assert all(any((_FUZZ / "corpus" / name).iterdir()) for name in listed)


def test_a_fault_is_found_by_coverage_and_kept(tmp_path: Path) -> None:
    done = python("-c", _FAULTY, str(tmp_path))
    assert done.returncode != 0
    assert "ValueError: a fault" in done.stdout + done.stderr
    (fault,) = (tmp_path / "faults").iterdir()
    assert fault.read_bytes()[:3] == b"abc"


def test_an_input_may_take_so_much_time() -> None:
    def slow(data: bytes) -> None:
        end_s = time.process_time() + 1.1 * MOST_CPU_S
        while time.process_time() < end_s:
            pass

    with pytest.raises(Broken, match=r"3 bytes take .* ms of CPU"):
        within_budget(slow, b"abc")


def test_one_slow_run_of_several_is_the_machines() -> None:
    runs = []

    def slow_at_first(data: bytes) -> None:
        runs.append(data)
        end_s = time.process_time() + 1.1 * MOST_CPU_S
        while len(runs) == 1 and time.process_time() < end_s:
            pass

    within_budget(slow_at_first, b"abc")
    assert len(runs) > 1


def test_an_input_may_take_so_much_memory() -> None:
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    with pytest.raises(Broken, match=r"3 bytes take .* MiB of memory"):
        within_budget(lambda data: [b"x" * (most_bytes + MOST_BYTES)].clear(), b"abc")


def test_only_documented_errors_of_one_line_pass() -> None:
    with only(PolicyError):
        raise PolicyError("x", "wrong")
    with pytest.raises(ConfigError), only(PolicyError):
        raise ConfigError("x", "wrong")
    with pytest.raises(Broken), only(PolicyError):
        raise PolicyError("x", "wrong\nforged")
    with pytest.raises(Broken):
        one_line("x" * 20_000)


def test_a_log_record_of_several_lines_is_a_fault() -> None:
    import logging

    log, logger = Log(), logging.Logger("x")
    logger.addHandler(log)
    logger.warning("one %s", "line")
    log.check()
    logger.warning("one %s", "line\nmore")
    with pytest.raises(Broken):
        log.check()
    log.check()


def test_the_same_seed_changes_an_input_the_same_way() -> None:
    data = b'{"a": [1, 2], "b": "c"}\n<d e="f"/>'
    for seed in range(300):
        first, again = (mutated(data, [b"w"], random.Random(seed)) for _ in range(2))
        assert first == again
    assert len({mutated(data, [b"w"], random.Random(seed)) for seed in range(300)}) > 150


def test_an_input_grows_up_to_the_most() -> None:
    data = b'[{"name": "a1"}, {"name": "a2"}]'
    sizes = [len(grown(data, 10_000, random.Random(seed))) for seed in range(300)]
    assert max(sizes) <= 10_000
    assert min(sizes) > 4_000
    assert mutated(b"", [], random.Random(1)) is not None
