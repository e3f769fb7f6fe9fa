"""Debian 13's QEMU packages with the patches: `make packages-qemu`.

Debian's own source package, with the series behind its patches, builds what a hypervisor with x86
guests has of QEMU. The version is Debian's with +iokeel2: above the one that it is made from, and
below Debian's next. A build takes about half an hour on two cores, and is cached by what it is made
from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from testing.lab.cache import cache_dir, cached
from testing.lab.roots import debian
from testing.lab.roots.namespace import Namespace
from testing.packages.agent import ENVIRONMENT, PROJECT, put

PATCHES = PROJECT / "qemu-patches"
CODENAME = "trixie"
MARK = "+iokeel2"
#: The modules of one build fit no other, so all packages with modules are built.
PACKAGES = (
    "qemu-block-extra", "qemu-system-common", "qemu-system-gui", "qemu-system-modules-opengl",
    "qemu-system-modules-spice", "qemu-system-x86", "qemu-utils",
)  # fmt: skip
TARGETS = "x86_64-softmmu,i386-softmmu"
_TOOLS = ("build-essential", "fakeroot", "mount")
_BUILD_S = 3 * 3600
_ENTRY = """\
qemu ({version}) {codename}; urgency=medium

  * Cost curves for throttle groups, by the patches of iokeel.

 -- iokeel maintainers <maintainers@users.noreply.a-seed-75287be1.example>  \
Sun, 22 Nov 2026 12:00:00 +0000

"""


def qemu_packages() -> Path:
    """Return the folder of the packages."""
    fetched = subprocess.run(
        [PATCHES / "build", "--fetch"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    source = Path(fetched.splitlines()[-1])
    series = [PATCHES / name for name in patches(PATCHES / "series")]
    control = (source / "debian/control").read_text()
    root = debian.root(CODENAME, sorted({*build_depends(control), *_TOOLS}))

    def build(folder: Path) -> None:
        # On the disk, because the root's own changes are kept in memory.
        with tempfile.TemporaryDirectory(prefix="qemu-packages-", dir=cache_dir()) as scratch:
            tree = Path(scratch) / "qemu"
            shutil.copytree(source, tree, symlinks=True)
            prepare(tree, series)
            with Namespace(
                Path(tempfile.mkdtemp(prefix="lab-")), root, {Path("/build"): (tree.parent, "rw")}
            ) as inside:
                options = f"nocheck noautodbgsym terse parallel={os.cpu_count()}"
                done = inside.run(
                    ["env", "--ignore-environment", "--chdir=/build/qemu", *ENVIRONMENT,
                     f"DEB_BUILD_OPTIONS={options}",
                     f"QEMU_CONFIGURE_OPTIONS=--target-list={TARGETS}",
                     "sh", "-c", "dpkg-buildpackage --no-sign --build=any -nc >/build/log 2>&1"],
                    timeout=_BUILD_S, check=False,
                )  # fmt: skip
            log = (tree.parent / "log").read_text(errors="replace")
            if done.returncode:
                raise RuntimeError(f"dpkg-buildpackage failed\n{log[-6000:]}")
            (folder / "build.log").write_text(log)
            for name in PACKAGES:
                (deb,) = tree.parent.glob(f"{name}_*.deb")
                shutil.copy(deb, folder)

    parts: list[str | bytes] = [root.name, source.name, Path(__file__).read_bytes()]
    return cached("packages-qemu", [*parts, *(file.read_bytes() for file in series)], build)


def patches(series: Path) -> list[str]:
    """Return the names of the patches in a series, in their order."""
    return [line for line in series.read_text().splitlines() if not line.startswith("#")]


def build_depends(control: str) -> set[str]:
    """Return the packages that Debian's control file names to build those of this architecture."""
    text = re.sub(r"^#.*\n", "", control.split("\n\n")[0], flags=re.MULTILINE)
    fields = re.findall(r"^Build-Depends(?:-Arch)?:(.*\n(?: .*\n)*)", text, re.MULTILINE)
    found = set()
    for one in ",".join(fields).split(","):
        named = re.match(r"\s*([a-z0-9][a-z0-9.+-]+)[^[]*(?:\[(.*?)\])?", one)
        if named and {*(named[2] or "amd64").split()} & {"amd64", "linux-any", "linux-amd64"}:
            found.add(named[1])
    return {"debhelper" if name == "debhelper-compat" else name for name in found}


def prepare(tree: Path, series: list[Path]) -> None:
    """Add the series and a version to Debian's source, and leave only x86's packages."""
    folder = tree / "debian"
    with (folder / "patches/series").open("a") as listed:
        for patch in series:
            shutil.copy(patch, folder / "patches")
            listed.write(f"{patch.name}\n")
    changelog = folder / "changelog"
    said = changelog.read_text()
    version = said[said.index("(") + 1 : said.index(")")] + MARK
    changelog.write_text(_ENTRY.format(version=version, codename=CODENAME) + said)
    control = folder / "control"
    first, *stanzas = re.split(r"^(?=Package: )", control.read_text(), flags=re.MULTILINE)
    control.write_text("".join([first, *map(_profiled, stanzas)]))
    make = folder / "control.mk"
    make.write_text(
        re.sub(r"^system-packages := .*", "system-packages := x86", make.read_text(), count=1,
               flags=re.MULTILINE)
    )  # fmt: skip
    os.utime(control)  # newer than what rules make it from


def _profiled(stanza: str) -> str:
    """Return the stanza of a package, switched off if it isn't one of ours.

    Debian's rules name the others, so they have to be known.
    """
    package, _, rest = stanza.partition("\n")
    if package.removeprefix("Package: ") in {
        *PACKAGES,
        "qemu-system",
    }:  # without that one, the rules build no emulator
        return stanza
    rest = re.sub(r"^Build-Profiles:.*\n", "", rest, flags=re.MULTILINE)
    return f"{package}\nBuild-Profiles: <pkg.qemu.all>\n{rest}"


if __name__ == "__main__":
    put(qemu_packages())
