"""The agent's Python environment inside a root whose Python isn't this machine's."""

import os
import re
import tempfile
from pathlib import Path

from testing.lab.cache import cached
from testing.lab.roots.namespace import Namespace

HOME = Path("/opt/iokeel")
"""Where the environment is, seen from inside."""
SCRIPT = """\
#!{home}/bin/python
import sys
from {module} import {function}
sys.exit({function}())
"""
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs", "/etc/pip.conf")


def environment(root: Path, requirements: Path, source: Path, command: str) -> Path:
    """Return a folder to bind to HOME: a venv of `root`'s python3 with pinned libraries.

    requirements: pip's lock file, with hashes. Packages without wheels (libvirt-python) are
        compiled inside, against the root's own headers.
    source: a folder of Python packages, put on the environment's path as it is.
    command: a console script to make, as pyproject.toml has them: "iokeel = iokeel.cli.main:main".
    Made at first use (a minute, with the network). Raises RuntimeError with pip's words.
    """

    def build(folder: Path) -> None:
        folder.chmod(0o755)
        lent = [Path(p) for p in (*NETWORK, os.environ.get("PIP_FIND_LINKS", "")) if p]
        binds = {path: (path, "ro") for path in lent if path.exists()}
        binds |= {HOME: (folder, "rw"), Path("/lock"): (requirements.resolve(), "ro")}
        with Namespace(Path(tempfile.mkdtemp(prefix="lab-")), root, binds) as inside:
            inside.run(["python3", "-m", "venv", HOME])
            inside.run([HOME / "bin/pip", "install", "--quiet", "--no-cache-dir",
                        "--require-hashes", "--requirement", "/lock"], timeout=1200)  # fmt: skip
        (packages,) = folder.glob("lib/python3*/site-packages")
        (packages / "source.pth").write_text(f"{source}\n")
        name, module, function = re.split(r"\s*[=:]\s*", command)
        script = folder / "bin" / name
        script.write_text(SCRIPT.format(home=HOME, module=module, function=function))
        script.chmod(0o755)

    parts: list[str | bytes] = [root.name, requirements.read_bytes(), str(source), command, SCRIPT]
    return cached(f"environment-{root.name.partition('-')[0]}", parts, build)
