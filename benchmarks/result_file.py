"""Result files: the machine's facts in them, and how they are written and read."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Machine:
    """The machine's processors: how many, and their architecture."""

    cpus: int | None
    machine: str

    @classmethod
    def this(cls) -> Machine:
        """Return this machine."""
        return cls(os.cpu_count(), platform.machine())


def now() -> str:
    """Return the date and time (UTC), to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def revision() -> str | None:
    """Return this checkout's commit, "-dirty" and a digest if files differ; None outside git.

    Files of results don't count: a run of many parts writes them as it goes.
    """
    found = _git("describe", "--always", "--abbrev=12", "--exclude=*").decode().strip()
    if differ := _git("diff", "HEAD", "--", ":/", f":(exclude){RESULTS.name}"):
        found += f"-dirty-{hashlib.sha256(differ).hexdigest()[:8]}"
    return found or None


def _git(*words: str) -> bytes:
    git = ["git", "-C", str(BENCHMARKS), *words]
    return subprocess.run(git, capture_output=True, check=False).stdout


def cpu_model() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    return model[1] if model else platform.processor()


def version(program: str | Path) -> str:
    """Return the first line of a program's --version."""
    run = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[0]


def question(docstring: str | None) -> str:
    """Return a script's question: the first line of its docstring."""
    return (docstring or "").partition("\n")[0]


def write(path: Path, result: object, indent: int = 1) -> None:
    """Write a result, of dataclasses or plain values."""
    path.write_text(json.dumps(msgspec.to_builtins(result), indent=indent) + "\n")


def read(path: Path, kind: type[Result]) -> Result:
    """Read a result. Raises msgspec.ValidationError if its fields are not those of `kind`."""
    return msgspec.json.decode(path.read_bytes(), type=kind)
