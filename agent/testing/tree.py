"""The modules of the agent, each with the first line of its docstring: `make tree`.

    python -m testing.tree [FOLDER...]

FOLDER: a folder below agent/src/iokeel, such as core/divide; without one, all of them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/iokeel"


def tree(folder: Path) -> Iterator[str]:
    """Yield a line for a folder, for its modules, and for the folders in it."""
    depth = len(folder.relative_to(SOURCE.parent).parts)
    yield _line(f"{'  ' * (depth - 1)}{folder.name}/", folder / "__init__.py")
    for module in sorted(folder.glob("*.py")):
        if module.name != "__init__.py":
            yield _line(f"{'  ' * depth}{module.name}", module)
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from tree(inner)


def _line(name: str, file: Path) -> str:
    says = ast.get_docstring(ast.parse(file.read_text())) or ""
    return f"{name:34}{says.partition(chr(10))[0]}".rstrip()


if __name__ == "__main__":
    for name in sys.argv[1:] or [""]:
        print("\n".join(tree(SOURCE / name)))
