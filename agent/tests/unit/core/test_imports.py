"""The core is pure: it imports itself and harmless parts of the standard library, nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import iokeel.core
import iokeel.errors

CORE = Path(iokeel.core.__file__).parent
ERRORS = Path(iokeel.errors.__file__)
FILES = [*sorted(CORE.rglob("*.py")), ERRORS]
# Modules that compute, without any I/O.
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
    "types",
    "typing",
}
# Builtins that do I/O; clocks and random numbers need an import.
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported(file: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports, wherever in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            yield str(node.module)


def is_pure(module: str) -> bool:
    if module.startswith("iokeel.core.") or module == "iokeel.errors":
        return True
    return module.partition(".")[0] in ALLOWED


def name(file: Path) -> str:
    return str(file.relative_to(CORE.parent))


@pytest.mark.parametrize("file", FILES, ids=name)
def test_core_imports_core_and_pure_standard_library_only(file: Path) -> None:
    impure = {module for module in imported(file) if not is_pure(module)}
    assert not impure, f"{file} imports {', '.join(sorted(impure))}"


@pytest.mark.parametrize("file", FILES, ids=name)
def test_core_calls_nothing_that_needs_no_import_to_do_harm(file: Path) -> None:
    calls = {
        node.func.id
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & FORBIDDEN_CALLS


@pytest.mark.parametrize(
    "module",
    ["asyncio", "os.path", "time", "logging", "random", "socket", "iokeel.daemon", "iokeel"],
)
def test_what_is_not_pure_is_told_apart(module: str) -> None:
    assert not is_pure(module)
