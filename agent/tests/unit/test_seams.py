"""No `Any` at a seam, in a signature or a field that another folder imports; no circles.

All modules of the agent, of what tests and benchmarks share, and of the benchmarks are read as
text. A test counts as another folder only for what tests share, because tests/unit mirrors src.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
ROOTS = {
    "iokeel": PROJECT / "agent/src/iokeel",
    "testing": PROJECT / "agent/testing",
    "benchmarks": PROJECT / "benchmarks",
    "tests": PROJECT / "agent/tests",
}
# What tests take apart: JSON that another program has written.
JSON = {
    "testing.agents.Agent.ask",
    "testing.agents.Agent.drive",
    "testing.agents.Agent.stats",
    "testing.hypervisors.dialects.plain",
    "testing.hypervisors.dialects.throttle_groups",
    "testing.hypervisors.monitored.Monitored.ask",
    "testing.hypervisors.monitored.Monitored.group",
    "testing.hypervisors.proxmox.Owner.ask",
    "testing.hypervisors.qmp_client.QmpClient.ask",
    "testing.hypervisors.qmp_server.QmpServer.asked",
    "testing.hypervisors.qmp_server.QmpServer.drives",
    "testing.hypervisors.qmp_server.QmpServer.reply",
    "testing.lab.fio.finish_fio",
    "testing.openstack.cloud.Cloud.ask",
    "testing.lab.fio.fio",
    "testing.lab.guests.qga.GuestAgent.call",
    "testing.machines.hypervisor.stats",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """A module. wanted: the names that modules in other folders import from it."""

    name: str
    file: Path
    tree: ast.Module
    wanted: set[str] = field(default_factory=set)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """The module and name behind each local name that comes from a module."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }

    def has_any(self, annotation: ast.expr | None, modules: dict[str, Module]) -> bool:
        """Return whether an annotation has Any, perhaps by the name of an alias."""
        if annotation is None:
            return False
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}
        return "Any" in names or any(self._is_alias_of_any(name, modules) for name in names)

    def _is_alias_of_any(self, name: str, modules: dict[str, Module]) -> bool:
        module, name = self.imports.get(name, (self.name, name))
        home = modules.get(module)
        return home is not None and name in home.aliases_of_any

    @cached_property
    def aliases_of_any(self) -> set[str]:
        """The names of module-wide type aliases that have Any, but for numpy's arrays.

        Those are generic in their shape, and in a kind of number that a caller may choose.
        """
        found = set()
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                if "Any" in names and "np" not in names:
                    found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        return found

    def types(self) -> Iterator[tuple[str, list[ast.expr | None]]]:
        """Yield the types of functions at the seam, and of methods and fields of classes there."""
        for node in self.tree.body:
            if isinstance(node, Function) and node.name in self.wanted:
                yield f"{self.name}.{node.name}", _types_of(node)
            elif isinstance(node, ast.ClassDef) and node.name in self.wanted:
                for name, types in _members(node):
                    if _is_public(name):
                        yield f"{self.name}.{node.name}.{name}", types


def _members(owner: ast.ClassDef) -> Iterator[tuple[str, list[ast.expr | None]]]:
    """Yield the types of a class's methods, and of the fields annotated in it and in them."""
    for node in owner.body:
        if isinstance(node, Function):
            yield node.name, _types_of(node)
            for inner in ast.walk(node):
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute):
                    yield inner.target.attr, [inner.annotation]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, [node.annotation]


def _types_of(function: Function) -> list[ast.expr | None]:
    """Return the types of a signature's result and arguments."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [function.returns, *(argument.annotation for argument in arguments if argument)]


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__", "__enter__")


def read_modules() -> dict[str, Module]:
    """Return all modules by name, with the names that others want of them."""
    modules = {}
    for top, root in ROOTS.items():
        for file in root.rglob("*.py"):
            parts = [top, *file.relative_to(root).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, file, ast.parse(file.read_text()))
    for module in modules.values():
        for home, name in wants(module, modules):
            if _is_seam(module, modules[home]):
                modules[home].wanted.add(name)
    return modules


def wants(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    """Yield the names that a module has from others, with those others."""
    whole = {}
    for local, (home, name) in module.imports.items():
        if f"{home}.{name}" in modules:
            whole[local] = f"{home}.{name}"
        elif home in modules:
            yield home, name
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in whole:
                yield whole[node.value.id], node.attr


def _is_seam(user: Module, home: Module) -> bool:
    is_test = user.name.startswith("tests.")
    return user.file.parent != home.file.parent and not (
        is_test and not home.name.startswith("testing.")
    )


def folder_of(name: str, top: str) -> str:
    """Return the folder of a package that a module is in, or the module if it is beside them."""
    return name.removeprefix(f"{top}.").partition(".")[0]


def check_order(modules: Iterable[Module], top: str = "iokeel") -> None:
    """Raise CycleError if a package's folders, and the modules beside them, make a circle."""
    wanted: TopologicalSorter[str] = TopologicalSorter()
    for module in modules:
        folder = folder_of(module.name, top)
        for home, name in module.imports.values():
            other = folder_of(f"{home}.{name}" if home == top else home, top)
            if f"{home}.".startswith(f"{top}.") and other != folder:
                wanted.add(folder, other)
    wanted.prepare()


def seams_with_any(modules: dict[str, Module]) -> set[str]:
    """Return the functions, methods and fields at a seam that have Any, by name."""
    return {
        name
        for module in modules.values()
        for name, types in module.types()
        if any(module.has_any(annotation, modules) for annotation in types)
    }


def test_nothing_at_a_seam_has_any() -> None:
    found = seams_with_any(read_modules())
    assert found - JSON == set(), "give these a type"
    assert JSON - found == set(), "these are typed by now; take them out of the list"


def test_a_seam_with_any_is_found() -> None:
    """The search sees functions, methods, fields, aliases, and modules imported as a whole."""
    texts = {
        "iokeel.a.one": "Json = dict[str, Any]\ndef f(x: Any) -> int: ...\ndef g() -> Json: ...",
        "iokeel.a.two": "class C:\n    async def m(self, *, x: list[Any]) -> None: ...\n"
        "    y: Any\n    def __init__(self) -> None:\n        self.z: Any = 1\n        v: Any = 2",
        "iokeel.b.user": "from iokeel.a import one\nfrom iokeel.a.two import C\none.f\none.g",
    }
    modules = {
        name: Module(name, Path(name.replace(".", "/")), ast.parse(text))
        for name, text in texts.items()
    }
    for home, name in wants(modules["iokeel.b.user"], modules):
        modules[home].wanted.add(name)
    names = ("one.f", "one.g", "two.C.m", "two.C.y", "two.C.z")
    assert seams_with_any(modules) == {f"iokeel.a.{name}" for name in names}


@pytest.mark.parametrize("top", ["iokeel", "iokeel.core"])
def test_no_folders_of_the_agent_import_each_other_in_a_circle(top: str) -> None:
    check_order([m for m in read_modules().values() if m.name.startswith(f"{top}.")], top)


def test_a_circle_of_folders_is_found() -> None:
    """Imports in functions and for types only count too; those within a folder don't."""
    texts = {
        "iokeel.a.one": "def f():\n    from iokeel.b.one import x",
        "iokeel.b.one": "from iokeel.b.two import y",
        "iokeel.b.two": "if TYPE_CHECKING:\n    from iokeel import c",
        "iokeel.c": "from iokeel.a.two import z",
    }
    modules = [Module(name, Path(name), ast.parse(text)) for name, text in texts.items()]
    check_order(modules[:-1])
    with pytest.raises(CycleError):
        check_order(modules)
