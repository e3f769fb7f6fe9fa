"""The Debian packages, built in a clean root of each distribution: `make packages-agent`.

    python -m testing.packages.agent [CODENAME]...

The results go to build/packages with their SHA256SUMS, and into the cache by what they are made
from. debian/README.source says how they are made.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from testing.lab.cache import cached
from testing.lab.roots import debian
from testing.lab.roots.environment import NETWORK
from testing.lab.roots.namespace import Namespace

PROJECT = Path(__file__).parents[3]
#: The distributions, with the mark that their packages' versions have.
DISTRIBUTIONS = {"bookworm": "deb12", "trixie": "deb13"}

# What the packages are made from: paths in the checkout, and in the source package.
_SOURCES = {
    "LICENSE": "LICENSE",
    "agent/compile_law.py": "agent/compile_law.py",
    "agent/debian": "debian",
    "agent/pyproject.toml": "agent/pyproject.toml",
    "agent/requirements.lock": "agent/requirements.lock",
    "agent/src": "agent/src",
    "docs": "docs",
    "libvirt-hooks": "libvirt-hooks",
}
_PACKAGES = (".deb", ".gz", ".rpm", ".whl")
BUILD = "Iokeel-Build"
# The rest are the Build-Depends of debian/control.
_TOOLS = ("build-essential", "fakeroot", "fish", "lintian", "mount", "systemd", "zsh")
ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8")


def build_root(codename: str, project: Path = PROJECT) -> Path:
    """Return the root that packages of a distribution are built in; made at first use."""
    control = (project / "agent/debian/control").read_text()
    depends = re.search(r"^Build-Depends:\n((?: .*\n)+)", control, re.MULTILINE)
    assert depends is not None
    names = re.findall(r"^ ([a-z0-9-]+)", depends[1], re.MULTILINE)
    wanted = {"debhelper" if name == "debhelper-compat" else name for name in names}
    return debian.root(codename, sorted({*wanted, *_TOOLS}))


def packages(codename: str, project: Path = PROJECT) -> Path:
    """Return the folder of a distribution's packages: .deb, .whl, and dpkg's own records.

    project: the checkout that they are built from.
    """
    root = build_root(codename, project)
    with tempfile.TemporaryDirectory(prefix="iokeel-source-") as scratch:
        tree = Path(scratch) / "iokeel"
        _export(tree, codename, project)
        wheels = _wheels(codename, root, tree)

        def build(folder: Path) -> None:
            binds = {Path("/build"): (tree.parent, "rw"), Path("/wheels"): (wheels, "ro")}
            with Namespace(Path(tempfile.mkdtemp(prefix="lab-")), root, binds) as inside:
                done = inside.run(
                    ["env", "--ignore-environment", "--chdir=/build/iokeel", *ENVIRONMENT,
                     "WHEELS=/wheels",
                     "sh", "-c", "dpkg-buildpackage --no-sign --build=binary 2>&1"],
                    timeout=1800, check=False,
                )  # fmt: skip
            (folder / "build.log").write_text(done.stdout)
            if done.returncode:
                raise RuntimeError(f"dpkg-buildpackage failed\n{done.stdout[-4000:]}")
            for made in (*tree.parent.glob("iokeel_*"), *tree.glob("debian/build/*.whl")):
                shutil.copy(made, folder)

        return cached(f"packages-{codename}", [root.name, wheels.name, *contents(tree)], build)


def _export(tree: Path, codename: str, project: Path) -> None:
    """Write the source package's tree, with the distribution's mark in the version."""
    for source, place in _SOURCES.items():
        to = tree / place
        to.parent.mkdir(parents=True, exist_ok=True)
        if (project / source).is_dir():
            made = shutil.ignore_patterns("__pycache__")
            shutil.copytree(project / source, to, ignore=made)
        else:
            shutil.copy(project / source, to)
    changelog = tree / "debian/changelog"
    mark = f"~{DISTRIBUTIONS[codename]}"
    changelog.write_text(re.sub(r"\)", f"{mark})", changelog.read_text(), count=1))
    stamp(tree)


def stamp(tree: Path) -> None:
    """Write what a package is made from into its control file, as the field Iokeel-Build.

    The version of two builds may be the same. dpkg keeps the field, so a host can tell them apart.
    """
    digest = hashlib.sha256()
    for part in contents(tree):
        digest.update(part.encode() if isinstance(part, str) else part)
    control = tree / "debian/control"
    control.write_text(f"{control.read_text()}XB-{BUILD}: {digest.hexdigest()[:16]}\n")


def contents(tree: Path) -> list[str | bytes]:
    """Return the names, modes and contents of all files below a folder."""
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    named = (
        (f"{file.relative_to(tree)} {file.stat().st_mode}", file.read_bytes()) for file in files
    )
    return [part for pair in named for part in pair]


def _wheels(codename: str, root: Path, tree: Path) -> Path:
    """Return a folder with the wheels of the libraries and of mypyc, as the lock file pins them."""
    lock_of = [tree / "debian/runtime_lock.py", tree / "agent"]
    locks = [
        subprocess.run([*lock_of, *tools], capture_output=True, check=True).stdout
        for tools in ((), ("mypy",))
    ]

    def download(folder: Path) -> None:
        lent = [Path(p) for p in (*NETWORK, os.environ.get("PIP_FIND_LINKS", "")) if p]
        binds = {path: (path, "ro") for path in lent if path.exists()}
        binds |= {Path("/wheels"): (folder, "rw")}
        with Namespace(Path(tempfile.mkdtemp(prefix="lab-")), root, binds) as inside:
            for lock in locks:
                inside.run(
                    ["python3", "-m", "pip", "download", "--quiet", "--no-deps",
                     "--require-hashes", "--only-binary=:all:", "--dest=/wheels",
                     "--requirement=/dev/stdin"],
                    lock.decode(), timeout=600,
                )  # fmt: skip

    return cached(f"wheels-{codename}", [root.name, *locks], download)


def put(folder: Path, to: Path = PROJECT / "build/packages") -> None:
    """Copy packages to another folder, list them, and write the sums of all that are there.

    Each replaces other versions of itself for the same distribution.
    """
    to.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        if file.suffix in _PACKAGES:
            for old in to.glob(_any_version(file.name)):
                old.unlink()
            print(shutil.copy(file, to))
    files = sorted(file for file in to.iterdir() if file.suffix in _PACKAGES)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (to / "SHA256SUMS").write_text("".join(sums))


def _any_version(file: str) -> str:
    """Return a pattern of a package's files of any version, for the same distribution."""
    gap = "_" if file.endswith(".deb") else "-"
    return re.sub(rf"(?<={gap})[^{gap}]+?(?=~deb|{gap}|\.tar\.)", "*", file, count=1)


def main(codenames: list[str]) -> None:
    """Build the packages of some distributions, or of all, into build/packages."""
    if unknown := set(codenames) - DISTRIBUTIONS.keys():
        raise SystemExit(f"packages: {', '.join(unknown)}: give {' or '.join(DISTRIBUTIONS)}")
    for codename in codenames or DISTRIBUTIONS:
        put(packages(codename))


if __name__ == "__main__":
    main(sys.argv[1:])
