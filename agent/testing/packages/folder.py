"""Folders of packages as an operator has them, and a later version of a package."""

from __future__ import annotations

import email.utils
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from testing.lab.cache import cached
from testing.lab.roots.environment import NETWORK
from testing.lab.roots.namespace import Namespace
from testing.machines.root import hypervisor
from testing.packages import page
from testing.packages.agent import BUILD, DISTRIBUTIONS, PROJECT, packages
from testing.packages.qemu import MARK

_OWN_VERSION = re.compile(r"(^Version: |\(= )([^)\n]+)", re.MULTILINE)
LATER = "later"
"""What `iokeel --version` says of a later version."""


def package_folder(
    folder: Path, codenames: Iterable[str] = DISTRIBUTIONS, project: Path = PROJECT
) -> Path:
    """Fill a folder with the agent's package for each distribution, and their checksums.

    project: the checkout that they are built from.
    """
    folder.mkdir(exist_ok=True)
    for codename in codenames:
        (deb,) = packages(codename, project).glob("iokeel_*.deb")
        shutil.copy(deb, folder)
    return summed(folder)


def later_folder(folder: Path, present: Path, mark: str = "+1") -> Path:
    """Fill a folder with later versions of our packages in another.

    mark: what their versions have beyond the present one's; if empty, they are other builds of it.
    """
    folder.mkdir()
    for deb in present.glob("*iokeel_*.deb"):
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["dpkg-deb", "-R", deb, scratch], check=True)
            control = Path(scratch) / "DEBIAN/control"
            text = re.sub(r"(?<=\nVersion: )[^~\n]+", rf"\g<0>{mark}", control.read_text())
            control.write_text(re.sub(f"(?<=\n{BUILD}: ).*", LATER, text))
            init = Path(scratch) / "usr/lib/iokeel/iokeel/__init__.py"
            if init.exists():
                sums, before = Path(scratch) / "DEBIAN/md5sums", _md5(init)
                init.write_text(f'__version__ = "{LATER}"\n')
                sums.write_text(sums.read_text().replace(before, _md5(init)))
            to = folder / re.sub("(?<=_)[^~_]+", rf"\g<0>{mark}", deb.name, count=1)
            _build(Path(scratch), to)
    return summed(folder)


def _build(tree: Path, to: Path) -> None:
    command = ["dpkg-deb", "-b", "--root-owner-group", "-Zgzip", "-z1"]
    subprocess.run([*command, tree, to], stdout=subprocess.PIPE, check=True)


def summed(folder: Path) -> Path:
    """Write the checksums of a folder's packages, and return the folder."""
    sums = [f"{_sha256(deb)}  {deb.name}\n" for deb in folder.glob("*.deb")]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def _md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def signed_repository(*folders: Path) -> Path:
    """Make folders of packages flat repositories too, and return the file of their key."""
    key = folders[0] / "repository.asc"
    with tempfile.TemporaryDirectory(prefix="gpg-") as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
        subprocess.run([*gpg, "--quick-generate-key", "test@example.com", "rsa3072"], check=True)
        for folder in folders:
            signed = [*gpg, "--output", str(folder / "InRelease"), "--clearsign"]
            subprocess.run(signed, input=_release(folder).encode(), check=True)
        subprocess.run([*gpg, "--armor", "--output", key, "--export"], check=True)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
    return key


def _release(folder: Path) -> str:
    """Write the index of a folder's packages, and return what is to be signed."""
    entries = []
    for deb in sorted(folder.glob("*.deb")):
        control = subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, check=True).stdout
        place = f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {_sha256(deb)}\n"
        entries.append(control.decode() + place)
    index = folder / "Packages"
    index.write_text("\n".join(entries))
    date = email.utils.format_datetime(datetime.now(UTC)).replace("+0000", "UTC")
    row = f" {_sha256(index)} {index.stat().st_size} {index.name}"
    return f"Origin: test\nDate: {date}\nSHA256:\n{row}\n"


def add_page(folder: Path, codename: str) -> None:
    """Add the page's package to a folder, and what it takes of Cockpit."""
    root = hypervisor(codename)

    def download(to: Path) -> None:
        (to / "partial").mkdir()
        with networked(root, {Path("/debs"): to}) as inside:
            inside.run(["apt-get", "-qq", "update"], timeout=600)
            inside.run(
                ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "--download-only",
                 "--option=Dir::Cache::Archives=/debs", "cockpit-bridge"],
                timeout=600,
            )  # fmt: skip

    with tempfile.TemporaryDirectory() as scratch:
        shutil.move(page.build(Path(scratch)), folder)
    for deb in cached(f"cockpit-{codename}", [root.name], download).glob("*.deb"):
        shutil.copy(deb, folder)
    summed(folder)


def networked(root: Path, folders: Mapping[Path, Path]) -> Namespace:
    """Return a root with the network, and with folders that it may write, by their paths inside."""
    lent = [Path(path) for path in NETWORK if Path(path).exists()]
    binds = {path: (path, "ro") for path in lent} | {at: (to, "rw") for at, to in folders.items()}
    return Namespace(Path(tempfile.mkdtemp(prefix="lab-")), root, binds)


def qemu_folder(folder: Path, mark: str = MARK) -> Path:
    """Fill a folder with Debian 13's QEMU under the version that the patched one has.

    Nothing in it is patched. It is for tests of what installs such packages.
    mark: what the version has beyond Debian's.
    """
    names = ["qemu-system-x86", "qemu-system-common", "qemu-utils"]
    root = hypervisor("trixie")

    def download(to: Path) -> None:
        with networked(root, {Path("/debs"): to}) as inside:
            inside.run(["apt-get", "-qq", "update"], timeout=600)
            inside.run(["env", "--chdir=/debs", "apt-get", "-qq", "download", *names], timeout=600)

    folder.mkdir()
    for deb in cached("qemu-packages", [root.name, *names], download).glob("*.deb"):
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["dpkg-deb", "-R", deb, scratch], check=True)
            control = Path(scratch) / "DEBIAN/control"
            text = control.read_text()
            # Its own version, and that of the others on which it depends.
            control.write_text(_OWN_VERSION.sub(rf"\1\2{mark}", text))
            name, version, architecture = deb.name.split("_")
            to = folder / f"{name}_{unquote(version).split(':')[-1]}{mark}_{architecture}"
            _build(Path(scratch), to)
    return summed(folder)
