"""The archive as rpm packages, for EL 9 and 10 and their like: `make packages-rpm`.

agent/rpm/iokeel.spec says what is in them. The result goes to build/packages.
"""

from __future__ import annotations

import email.utils
import re
import subprocess
import tempfile
from pathlib import Path

import iokeel
from testing.packages.agent import PROJECT, put
from testing.packages.archive import archive

SPEC = PROJECT / "agent/rpm/iokeel.spec"
MACHINES = ("x86_64", "aarch64")
_ENTRY = re.compile(r"^iokeel \((.*?)\).*\n\n((?:  .*\n)+)\n -- (.*?)  (.*)$", re.MULTILINE)


def rpm(source: Path, folder: Path, machine: str, spec: str = "") -> Path:
    """Build the package of an archive for one of MACHINES into a folder, and return its file.

    spec: the text to build it by, if not that of SPEC.
    """
    with tempfile.TemporaryDirectory(prefix="iokeel-rpm-") as top:
        whole = Path(top) / SPEC.name
        whole.write_text(f"{spec or SPEC.read_text()}\n%changelog\n{_changelog()}")
        macros = {
            "_topdir": top,
            "_sourcedir": source.parent,
            "_rpmdir": f"{top}/made",
            "upstream": iokeel.__version__,
        }
        defined = [f"--define={name} {value}" for name, value in macros.items()]
        done = subprocess.run(
            ["rpmbuild", "-bb", f"--target={machine}", *defined, whole],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"rpmbuild failed\n{done.stdout[-4000:]}")
        (made,) = Path(top).glob("made/*/*.rpm")
        return made.rename(folder / made.name)


def _changelog() -> str:
    """Return the Debian packages' changelog in the words of a spec."""
    entries = _ENTRY.findall((PROJECT / "agent/debian/changelog").read_text())
    return "\n".join(
        f"* {email.utils.parsedate_to_datetime(when):%a %b %d %Y} {who} - {version}-1\n"
        + text.replace("  * ", "- ")
        for version, text, who, when in entries
    )


def main() -> None:
    """Build the packages of all machines into build/packages."""
    with tempfile.TemporaryDirectory(prefix="iokeel-archive-") as scratch:
        source = archive(Path(scratch))
        (made := Path(scratch) / "made").mkdir()
        for machine in MACHINES:
            rpm(source, made, machine)
        put(made)


if __name__ == "__main__":
    main()
