"""The package with its control law compiled, as the Debian packages have it, in build/law.

    python -m testing.compiled_law

Tests run the sources. What is to run the compiled law has build/law in PYTHONPATH. The law comes
from the cache if it was compiled there before from the same sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from testing.lab.cache import cached

AGENT = Path(__file__).parents[1]
FOLDER = AGENT.parent / "build/law"
_SOURCES = AGENT / "src"
_COMPILE = AGENT / "compile_law.py"


def compiled() -> Path:
    """Return the cached folder of the package as it is now, compiled."""
    sources = [file for file in sorted(_SOURCES.rglob("*")) if file.suffix in (".py", ".css")]
    core = [file for file in sources if file.is_relative_to(_SOURCES / "iokeel/core")]

    def key(files: list[Path]) -> list[str | bytes]:
        parts: list[str | bytes] = [sys.version, version("mypy"), _COMPILE.read_bytes()]
        for file in files:
            parts += [str(file.relative_to(_SOURCES)), file.read_bytes()]
        return parts

    def build_law(folder: Path) -> None:
        command = [sys.executable, str(_COMPILE), str(_SOURCES), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = f"{done.stdout}{done.stderr}"
            raise SystemExit(f"the control law can't be compiled:\n{said}")

    def build(folder: Path) -> None:
        law = cached("law", key(core), build_law)
        made = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_SOURCES, folder, ignore=made, dirs_exist_ok=True)
        shutil.copytree(law, folder, dirs_exist_ok=True)

    return cached("package", key(sources), build)


def main() -> None:
    """Compile it, if it has changed, and let build/law be a link to it."""
    folder = compiled()
    FOLDER.parent.mkdir(exist_ok=True)
    if FOLDER.is_symlink() and FOLDER.readlink() == folder:
        return
    new = FOLDER.with_name(".law")
    new.unlink(missing_ok=True)
    new.symlink_to(folder)
    new.replace(FOLDER)


if __name__ == "__main__":
    main()
