"""The pages say what is so: the table of folders, links, make targets, commands and constants."""

from __future__ import annotations

import importlib
import pkgutil
import re
from itertools import chain
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import iokeel.core
from iokeel.cli.main import app
from testing.tree import SOURCE, tree

PROJECT = Path(__file__).parents[3]
DESIGN = PROJECT / "docs/design"
FOLDERS = ("docs", "agent", "benchmarks", "libvirt-hooks", "playbooks", "qemu-patches")

_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_TARGET = re.compile(r"\bmake\s+(?:[A-Z]+=\S+\s+)*([a-z][a-z-]*)")
_INSTALLED = re.compile(r"/usr/share/doc/iokeel/([\w-]+)\.md\.gz")
_COMMAND = re.compile(r"`iokeel\s+([a-z]+)")
_FOLDER = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)
_CONSTANT = re.compile(r"`([A-Z_]+)`\s+=\s+([0-9]+(?:\.[0-9]+)?)")


def pages() -> list[Path]:
    """Return README.md and all other pages in Markdown, but none that a tool has left."""
    found = chain.from_iterable((PROJECT / folder).rglob("*.md") for folder in FOLDERS)
    own = (page for page in found if not any(map(_is_of_a_tool, page.relative_to(PROJECT).parts)))
    return [PROJECT / "README.md", *sorted(own)]


def _is_of_a_tool(folder: str) -> bool:
    return folder.startswith(".") or folder == "node_modules"


def test_pages_are_found() -> None:
    assert {"docs/policy.md", "qemu-patches/README.md"} <= {name(page) for page in pages()}


def name(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def code(text: str) -> str:
    """Return what a page has as code, in blocks and within lines."""
    blocks = _BLOCK.findall(text)
    return "\n".join([*blocks, *_CODE.findall(_BLOCK.sub("", text))])


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_BLOCK.sub("", text))
    words = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in words}


def test_folders_in_architecture_are_those_of_the_agent() -> None:
    named = _FOLDER.findall((DESIGN / "architecture.md").read_text())
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")}
    assert sorted(named) == sorted(str(folder) for folder in packages - {Path()})


def test_tree_has_each_module_with_a_description() -> None:
    lines = [*tree(SOURCE)]
    assert len(lines) == len([*SOURCE.rglob("*.py")])
    assert [line for line in lines if len(line.split(maxsplit=1)) < 2] == []


def test_paths_in_architecture_exist() -> None:
    text = _BLOCK.sub("", (DESIGN / "architecture.md").read_text())
    paths = [path for path in _CODE.findall(text) if re.fullmatch(r"[\w./-]+(/|\.py|\.rng)", path)]
    assert paths
    assert [p for p in paths if not (SOURCE / p).exists() and not (PROJECT / p).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", _BLOCK.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            broken.append(link)
        elif anchor and anchor not in anchors(target.read_text()):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text()
    known = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    assert set(_TARGET.findall(code(page.read_text()))) - known == set()


@pytest.mark.parametrize("page", pages(), ids=name)
def test_subcommands_exist(page: Path) -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    assert (
        set(_COMMAND.findall(_BLOCK.sub("", page.read_text()))) - command.commands.keys() == set()
    )


def test_installed_pages_that_texts_name_are_in_the_package() -> None:
    files = [*SOURCE.rglob("*.py"), *(PROJECT / "playbooks/monitoring").glob("*.yml")]
    named = {page for file in files for page in _INSTALLED.findall(file.read_text())}
    installed = (PROJECT / "agent/debian/iokeel.docs").read_text().split()
    assert "stats" in named
    assert {f"docs/{page}.md" for page in named} - {*installed} == set()


def test_pages_for_operators_are_in_the_package_and_so_is_the_law() -> None:
    pages = {name(page) for page in (PROJECT / "docs").glob("*.md")}
    packaging = PROJECT / "agent/debian"
    installed = (packaging / "iokeel.docs").read_text().split()
    assert pages - {*installed} == {"docs/CONTRIBUTING.md", "docs/changelog.md"}
    law = {"docs/design/control-law.md", "docs/design/control-law-notes.md"}
    assert law <= {*(packaging / "iokeel.install").read_text().split()}


def test_constants_in_the_control_law_are_those_in_force() -> None:
    pages = [DESIGN / "control-law.md", DESIGN / "control-law-notes.md"]
    given = [found for page in pages for found in _CONSTANT.findall(page.read_text())]
    assert len(given) > 50
    modules = pkgutil.walk_packages(iokeel.core.__path__, "iokeel.core.")
    values: dict[str, set[float]] = {}
    for module in modules:
        for constant, value in vars(importlib.import_module(module.name)).items():
            if constant.isupper() and isinstance(value, int | float):
                values.setdefault(constant, set()).add(float(value))
    wrong = {n: values.get(n) for n, value in given if values.get(n) != {float(value)}}
    assert wrong == {}


def test_results_name_no_folder_of_the_machine_that_made_them() -> None:
    results = [*(PROJECT / "benchmarks/results").rglob("*.json")]
    assert len(results) > 30
    for result in results:
        text = result.read_text()
        assert "/root/" not in text
        assert str(PROJECT) not in text
