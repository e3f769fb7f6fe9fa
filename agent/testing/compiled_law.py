"""The compiled control law in the checkout's own package: `make setup`.

    python -m testing.compiled_law

It comes from the cache if it was compiled there before from the same sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from testing.lab.cache import cached

AGENT = Path(__file__).parents[1]
_SOURCES = AGENT / "src"
_COMPILE = AGENT / "compile_law.py"


def stale() -> list[Path]:
    """Return the sources of the core that have changed since the law was compiled.

    Also those that aren't compiled count: compiled code goes by the fields of their records.
    """
    times = [file.stat().st_mtime for file in _SOURCES.glob("*.so")]
    sources = (_SOURCES / "iokeel/core").rglob("*.py")
    return [file for file in sources if times and file.stat().st_mtime > min(times)]


def main() -> None:
    """Compile it, and put it beside the sources."""
    sources = sorted((_SOURCES / "iokeel/core").rglob("*.py"))
    parts: list[str | bytes] = [sys.version, version("mypy"), _COMPILE.read_bytes()]
    for file in sources:
        parts += [str(file.relative_to(_SOURCES)), file.read_bytes()]

    def build(folder: Path) -> None:
        command = [sys.executable, str(_COMPILE), str(_SOURCES), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = f"{done.stdout}{done.stderr}"
            raise SystemExit(f"setup: the control law can't be compiled:\n{said}")

    made = cached("law", parts, build)
    for old in _SOURCES.rglob("*.so"):
        old.unlink()
    for compiled in made.rglob("*.so"):
        shutil.copy(compiled, _SOURCES / compiled.relative_to(made))


if __name__ == "__main__":
    main()
