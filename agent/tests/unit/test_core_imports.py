"""The core is pure: it imports itself and harmless parts of the standard library, nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import iokeel

FOLDER = Path(iokeel.__file__).parent
CORE = (
    *("errors", "limits", "curve", "policy", "workload", "envelope", "credit", "estimate"),
    *("retune", "state", "storage", "share", "demand", "load", "capacity", "party", "room"),
    *("allot", "controller", "backstop"),
    *("fit", "saturation", "steadiness"),
)
# What computes, and neither asks the machine for anything nor tells it anything.
ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "statistics",
    "typing",
}
# What would do I/O, ask a clock or throw a die without an import.
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}


def tree(module: str) -> ast.Module:
    return ast.parse((FOLDER / f"{module}.py").read_text())


def imported(module: str) -> Iterator[str]:
    """Yield the names of the modules that a module imports, wherever in it."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            name = str(node.module)
            if name == "iokeel":
                yield from (f"iokeel.{alias.name}" for alias in node.names)
            else:
                yield name


def is_pure(name: str) -> bool:
    top, _, rest = name.partition(".")
    return rest in CORE if top == "iokeel" else top in ALLOWED


@pytest.mark.parametrize("module", CORE)
def test_core_imports_core_and_pure_standard_library_only(module: str) -> None:
    impure = {name for name in imported(module) if not is_pure(name)}
    assert not impure, f"{module} imports {', '.join(sorted(impure))}"


@pytest.mark.parametrize("module", CORE)
def test_core_calls_nothing_that_needs_no_import_to_do_harm(module: str) -> None:
    calls = {
        node.func.id
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & FORBIDDEN_CALLS


@pytest.mark.parametrize(
    "name", ["asyncio", "os.path", "time", "logging", "random", "socket", "iokeel.daemon", "iokeel"]
)
def test_what_is_not_pure_is_told_apart(name: str) -> None:
    assert not is_pure(name)
