"""The last release, from git: its sources, and so its packages, beside today's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from testing.lab.cache import cached
from testing.packages.agent import PROJECT

VERSION = "0.1.0"
#: No tag names the commit that its packages were built from. This is the newest before policy rules
#: (iokeel/rules) and the history of weeks came, which are what 0.2.0 brings.
_COMMIT = "c33d06cb1aaedd3c666008a8b02fcb97a161ee67"


def last_release() -> Path:
    """Return a folder with its checkout; made at first use.

    Raises RuntimeError with git's words if the commit isn't there, as in a shallow clone.
    """

    def build(folder: Path) -> None:
        git = ["git", "-C", str(PROJECT), "archive", _COMMIT]
        done = subprocess.run(git, capture_output=True, check=False)
        if done.returncode:
            why = done.stderr.decode().strip()
            mend = "fetch the whole history (git fetch --unshallow)"
            raise RuntimeError(f"{VERSION} can't be had from git: {why}; {mend}")
        subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)

    return cached(f"release-{VERSION}", [_COMMIT], build)


def environment(source: Path | None = None) -> dict[str, str]:
    """Return an environment in which `iokeel` is another version.

    source: the folder of its package; None for the last release's. The libraries are this one's.
    """
    return {**os.environ, "PYTHONPATH": str(source or last_release() / "agent/src")}
