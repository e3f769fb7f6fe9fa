"""How large the program and its law are: `make house`.

    python -m testing.house

Prints, of this checkout:

- constants: numbers with a name of their own in the core's modules;
- rules, words: the numbered rules and all words of docs/design/control-law.md;
- files, lines: of agent/src;
- calls, modules: how many functions of the core a look at one drive calls, and of how many modules,
  and how often it goes from one module to another;
- files a change: how many files each change under "To change something" in architecture.md names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from testing.hypervisors.abilities import PATCHED

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "agent/src/iokeel"
CORE = SOURCE / "core"
DESIGN = PROJECT / "docs/design"

_RULE = re.compile(r"^\d+\. \S", re.MULTILINE)
_CHANGE = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- \*\*|^## |\Z)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+\.(?:py|ts|tsx|md|yml|rng|toml))`")


def constants(file: Path) -> Iterator[str]:
    """Yield the names of a module's numbers: assigned at its top, in capitals."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id.isupper() and _is_number(node.value):
                yield target.id


def _is_number(value: ast.expr) -> bool:
    """Return whether an expression is made of numbers alone."""
    leaves = [node for node in ast.walk(value) if isinstance(node, (ast.Constant, ast.Name))]
    numbers = [n for n in leaves if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    return bool(numbers) and len(numbers) == len(leaves)


def changes(text: str) -> dict[str, int]:
    """Return how many files each change of architecture.md names."""
    section = text.partition("## To change something\n")[2].partition("\n## ")[0]
    return {name: len({*_FILE.findall(what)}) for name, what in _CHANGE.findall(section)}


def walk() -> tuple[int, int, int]:
    """Return the calls of a look at one drive, their modules, and the steps between modules.

    It is the third second of a drive of a tenant on a storage.
    """
    state, drive, limits = (
        State(tenants={"acme": TenantPolicy(limit=900)}),
        DriveId("a", "b"),
        UNLIMITED,
    )
    calls: list[str] = []

    def called(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(f"{CORE}/") and frame.f_code.co_name[0] != "<":
            calls.append(name)

    for second in range(1, 4):
        at_ns, done = second * NS_PER_S, 800 * second
        counters = Counters(at_ns, done, 4096 * done, 0, 0, done * 10**6, 0)
        disk = StorageCounters(at_ns, done, done * 10**6, 0, 0, 1, at_ns, 4096 * done, 0)
        seen = DriveSeen(DrivePolicy(), counters, limits, False, PATCHED, "disk", "acme")
        storages = {"disk": StorageSeen(StoragePolicy(1000, 1.0), disk)}
        calls.clear()
        sys.setprofile(called)
        state, orders = decide(state, Observation({drive: seen}, storages=storages), at_ns)
        sys.setprofile(None)
        limits = orders[0].limits if orders else limits
    steps = sum(a != b for a, b in pairwise(calls))
    return len(calls), len({*calls}), steps


def main() -> None:
    """Print the figures."""
    law = (DESIGN / "control-law.md").read_text()
    files = [*SOURCE.rglob("*.py")]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    numbers = [name for file in CORE.rglob("*.py") for name in constants(file)]
    calls, modules, steps = walk()
    rows = {
        "constants in the core": len(numbers),
        "rules in control-law.md": len(_RULE.findall(law)),
        "words in control-law.md": len(law.split()),
        "files in agent/src": len(files),
        "lines in agent/src": lines,
        "calls of a look at one drive": calls,
        "their modules": modules,
        "steps from one module to another": steps,
    }
    for name, count in rows.items():
        print(f"{name:34}{count:>7,}")
    print("\nfiles that a change touches")
    for name, count in changes((DESIGN / "architecture.md").read_text()).items():
        print(f"  {name:32}{count:>7}")


if __name__ == "__main__":
    main()
