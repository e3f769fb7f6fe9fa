"""The Debian package of the page, one for all distributions: `make packages-page`.

The page has to be in build/page, built by `make page`. The package goes to build/packages.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from testing.lab.roots.namespace import Namespace
from testing.packages.agent import ENVIRONMENT, PROJECT, build_root, put, stamp

PAGE = PROJECT / "build/page"
_DEBIAN = PROJECT / "agent/cockpit/debian"
_ROOT = "bookworm"


def build(folder: Path) -> Path:
    """Build the package into a folder, and return its path there.

    Raises RuntimeError with the build's words, and for any finding of lintian.
    """
    tree = folder / "build/cockpit-iokeel"
    shutil.copytree(PAGE, tree / "page")
    shutil.copytree(_DEBIAN, tree / "debian")
    stamp(tree)
    binds = {Path("/build"): (tree.parent, "rw")}
    with Namespace(Path(tempfile.mkdtemp(prefix="lab-")), build_root(_ROOT), binds) as inside:
        for command in (
            "dpkg-buildpackage --no-sign --build=binary 2>&1",
            "lintian --fail-on error,warning ../*.deb 2>&1",
        ):
            done = inside.run(
                ["env", "--ignore-environment", "--chdir=/build/cockpit-iokeel", *ENVIRONMENT,
                 "sh", "-c", command],
                timeout=600, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"{command} failed\n{done.stdout[-4000:]}")
    (made,) = tree.parent.glob("*.deb")
    return Path(shutil.move(made, folder))


def main() -> None:
    """Build the package into build/packages."""
    with tempfile.TemporaryDirectory(prefix="cockpit-iokeel-") as name:
        made = build(Path(name))
        only = Path(name) / "only"
        only.mkdir()
        shutil.move(made, only)
        put(only)


if __name__ == "__main__":
    main()
