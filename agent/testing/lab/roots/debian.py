"""Another Debian than this machine's, as a folder to put under a namespace."""

import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testing.lab.cache import cached
from testing.lab.roots.namespace import Namespace

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def root(codename: str, packages: Sequence[str]) -> Path:
    """Return the root of a Debian with `packages`, made at first use; write nothing into it.

    codename: "trixie" and the like. It comes from the mirrors that this machine's apt has.
    Nothing refreshes it when Debian publishes a new version: delete the cached folder for that.
    Raises RuntimeError when apt has no mirror, or with mmdebstrap's words when it fails.
    """
    sources = _sources(codename)

    def build(folder: Path) -> None:
        folder.chmod(0o755)
        options = ["--quiet", "--variant=apt", "--mode=root", f"--include={','.join(packages)}"]
        binds = {folder: (folder, "rw"), Path("/run"): (Path("/run"), "ro")}
        # In a namespace, so that it ends with this process and leaves no mounts in the folder.
        with Namespace(Path(tempfile.mkdtemp(prefix="lab-")), Path("/"), binds) as inside:
            inside.run(["mmdebstrap", *options, codename, folder, "-"], sources, timeout=1800)

    return cached(codename, [sources, *sorted(packages)], build)


def _sources(codename: str) -> str:
    # The archives that this machine installs Debian itself from, with the suites renamed.
    own = platform.freedesktop_os_release()["VERSION_CODENAME"]
    fields = "$(ORIGIN) $(CODENAME) $(REPO_URI)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"],
        env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = []
    for line in dict.fromkeys(listed.splitlines()):
        origin, suite, uri = line.split(" ")
        if origin == "Debian" and suite.startswith(own):
            suite = codename + suite.removeprefix(own)
            lines.append(f"deb [signed-by={KEYRING}] {uri} {suite} main")
    if not lines:
        raise RuntimeError(f"apt has no Debian {own} archive to find {codename} beside")
    return "\n".join(lines) + "\n"
