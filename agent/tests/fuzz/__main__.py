"""Fuzzes one target, or each for its part of the time: python -m tests.fuzz [TARGET]."""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import subprocess
import sys
from pathlib import Path

import atheris

from testing.lab.cache import cache_dir
from tests.fuzz.mutator import grown, mutated
from tests.fuzz.targets import TARGETS, load

CORPUS = Path(__file__).parent / "corpus"
# Inputs are kept short, since the short ones find most faults in a given time. One of so many is
# tried once more as long as its target takes.
_MOST_BYTES = 4096
_GROWN_EVERY = 1000


def main() -> None:
    """Read the command line; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("target", nargs="?", choices=TARGETS, help="the parser; none for each")
    parser.add_argument("--runs", type=int, default=0, help="inputs for each target")
    parser.add_argument("--seconds", type=int, default=0, help="time for each target")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs")
    parser.add_argument("--found", type=Path, help="the folder for new inputs and faults")
    asked = parser.parse_args()
    if asked.target is None:
        sys.exit(_each(sys.argv[1:]))
    fuzz(asked.target, asked.runs, asked.seconds, asked.seed, asked.found)


def _each(options: list[str]) -> int:
    words = [sys.executable, "-m", "tests.fuzz"]
    failed = [
        name
        for name in TARGETS
        if subprocess.run([*words, name, *options], check=False).returncode != 0
    ]
    print(f"faults in {', '.join(failed)}" if failed else "no faults")
    return bool(failed)


def fuzz(name: str, runs: int, seconds: int, seed: int, found: Path | None) -> None:
    """Run libFuzzer on a target. It writes an input that breaks a promise to the folder found."""
    # Both read the agent, which is instrumented as it is imported.
    with atheris.instrument_imports(include=["iokeel"]):
        from tests.fuzz.budget import Log, within_budget

        target = load(name)
    folder = found or cache_dir() / "fuzz" / name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    (folder / "faults").mkdir(parents=True, exist_ok=True)
    log = Log()
    logging.getLogger().addHandler(log)
    logging.getLogger("iokeel").setLevel(logging.DEBUG)

    numbers = itertools.count(_GROWN_EVERY // 2)  # so that a short run has a long input too

    def run(data: bytes) -> None:
        within_budget(target.run, data)
        log.check()
        number = next(numbers)
        if number % _GROWN_EVERY == 0:
            large = grown(data, target.most_bytes, random.Random(number))
            try:
                within_budget(target.run, large)
                log.check()
            except BaseException:
                (folder / "faults" / "grown").write_bytes(large)
                raise

    def mutate(data: bytes, most_bytes: int, number: int) -> bytes:
        if number % 4 == 0:
            return bytes(atheris.Mutate(data, most_bytes))
        return mutated(data, target.words, random.Random(number))[:most_bytes]

    options = [
        f"-seed={seed or random.randrange(1, 1 << 31)}",
        f"-artifact_prefix={folder}/faults/",
        f"-max_len={min(target.most_bytes, _MOST_BYTES)}",
        "-len_control=0",
        "-mutate_depth=1",
        "-reload=0",  # nobody else writes inputs, and its own would be run again after each second
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    options += [f"-runs={runs}"] if runs else []
    options += [f"-max_total_time={seconds}"] if seconds else []
    corpora = [str(each) for each in (inputs, CORPUS / name) if each.is_dir()]
    atheris.Setup([sys.argv[0], *options, *corpora], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
