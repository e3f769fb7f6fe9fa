"""One archive for any systemd Linux with Python 3.11 or later: `make packages-archive`.

It has what the Debian packages have, from the same sources, and in place of their libraries the
wheels of the lock file for several Pythons and machines, with pip and libvirt-python's sources.
agent/archive/setup installs it. The result goes to build/packages.
"""

from __future__ import annotations

import email.utils
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import iokeel
from testing.lab.cache import cached
from testing.packages.agent import PROJECT, contents, put

_AGENT = PROJECT / "agent"
_DEBIAN = _AGENT / "debian"
#: Pythons and machines whose wheels are in the archive.
TARGETS = tuple(
    (python, machine) for machine in ("x86_64", "aarch64") for python in ("3.11", "3.12", "3.13")
)
# Debian 12 has 2.36, EL 9 has 2.34, and wheels may ask for less.
_GLIBC_MINORS = range(17, 35)
_DOCS = "usr/share/doc/iokeel"
_FILES = {
    "LICENSE": f"{_DOCS}/LICENSE",
    "agent/debian/command": "usr/bin/iokeel",
    "agent/debian/hook": "etc/libvirt/hooks/qemu.d/50-iokeel",
    "agent/debian/iokeel.service": "usr/lib/systemd/system/iokeel.service",
    "agent/debian/iokeel.sysusers": "usr/lib/sysusers.d/iokeel.conf",
    "libvirt-hooks/qemu.d/50-iokeel": "usr/lib/iokeel/50-iokeel",
}
_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/iokeel",
    "zsh": "usr/share/zsh/site-functions/_iokeel",
    "fish": "usr/share/fish/vendor_completions.d/iokeel.fish",
}
_PROGRAMS = ("bin/iokeel", "50-iokeel")


def archive(folder: Path, targets: Sequence[tuple[str, str]] = TARGETS) -> Path:
    """Build the archive into a folder, and return its file. targets: some of TARGETS."""
    tree = folder / f"iokeel-{iokeel.__version__}"
    _put_files(tree / "files")
    _put_wheels(tree / "wheels", targets)
    (own,) = (tree / "wheels").glob("iokeel-*.whl")
    pin = (
        f"iokeel=={iokeel.__version__} --hash=sha256:{hashlib.sha256(own.read_bytes()).hexdigest()}"
    )
    (tree / "runtime.lock").write_text(f"{_lock()}{pin}\n")
    (tree / "libvirt.lock").write_text(_lock("libvirt-python"))
    shutil.copy(_AGENT / "archive/setup", tree)
    digest = hashlib.sha256()
    for part in contents(tree):
        digest.update(part.encode() if isinstance(part, str) else part)
    (tree / "build").write_text(f"{iokeel.__version__} {digest.hexdigest()[:16]}\n")
    made = folder / f"{tree.name}.tar.gz"
    subprocess.run(
        ["tar", "--create", f"--file={made}", "--use-compress-program=gzip -1 -n", "--sort=name",
         "--owner=0", "--group=0", "--numeric-owner", f"--mtime=@{_epoch()}",
         f"--directory={folder}", tree.name],
        check=True,
    )  # fmt: skip
    shutil.rmtree(tree)
    return made


def _put_files(to: Path) -> None:
    """Write what the packages have besides libraries, at its place below a folder."""
    listed = [line.split() for line in (_DEBIAN / "iokeel.install").read_text().splitlines()]
    # Its paths are those in the source package, where agent/debian is debian.
    placed = {
        re.sub("^debian/", "agent/debian/", source): f"{place}/{Path(source).name}"
        for *sources, place in listed
        for source in sources
    }
    docs = (_DEBIAN / "iokeel.docs").read_text().split()
    placed |= {doc: f"{_DOCS}/{Path(doc).name}" for doc in docs}
    for source, place in (placed | _FILES).items():
        _copy(PROJECT / source, to / place)
    with tempfile.TemporaryDirectory() as scratch:
        command = Path(scratch) / "iokeel"
        text = (_DEBIAN / "command").read_text()
        text = text.replace("/usr/bin/python3 -IS", f"{sys.executable} -I")
        command.write_text(text.replace("/usr/lib/iokeel", str(_AGENT / "src")))
        command.chmod(0o755)
        pages: list[str | Path] = [
            _DEBIAN / "man_pages.py",
            command,
            iokeel.__version__,
            _DEBIAN / "agent.toml",
        ]
        subprocess.run(
            [sys.executable, *pages, scratch],
            env={**os.environ, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(_epoch())}, check=True,
        )  # fmt: skip
        for page in Path(scratch).glob("*.[15]"):
            _copy(page, to / f"usr/share/man/man{page.suffix[1:]}/{page.name}")
        for shell, place in _COMPLETIONS.items():
            _copy(Path(scratch) / f"completion.{shell}", to / place)


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)
    to.chmod(0o755 if str(to).endswith(_PROGRAMS) else 0o644)


def _put_wheels(to: Path, targets: Sequence[tuple[str, str]]) -> None:
    to.mkdir()
    for python, machine in targets:
        platforms = (f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS)
        options = [f"--platform={name}" for name in (*platforms, f"manylinux2014_{machine}")]
        options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:"]
        _download(to, f"{python}-{machine}", _lock(), *options)
    _download(to, "any", _lock("pip", "setuptools"), "--only-binary=:all:")
    _download(to, "libvirt", _lock("libvirt-python"), "--no-binary=:all:")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={to}", _AGENT],
        check=True,
    )


def _download(to: Path, name: str, lock: str, *options: str) -> None:
    """Put what a lock file names into a folder; from the cache, if it was downloaded before."""

    def download(folder: Path) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
             *options, f"--dest={folder}", "--requirement=/dev/stdin"],
            input=lock, text=True, timeout=600, check=True,
        )  # fmt: skip

    for file in cached(f"wheels-{name}", [lock, *options], download).iterdir():
        if not (to / file.name).exists():
            shutil.copy(file, to)


def _lock(*tools: str) -> str:
    command: list[str | Path] = [_DEBIAN / "runtime_lock.py", _AGENT, *tools]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _epoch() -> int:
    """Return the time of the changelog's last entry, so that a second build is the same."""
    said = re.search(r"^ -- .*>  (.*)$", (_DEBIAN / "changelog").read_text(), re.MULTILINE)
    assert said is not None
    return int(email.utils.parsedate_to_datetime(said[1]).timestamp())


def main() -> None:
    """Build the archive into build/packages."""
    with tempfile.TemporaryDirectory(prefix="iokeel-archive-") as folder:
        archive(Path(folder))
        put(Path(folder))


if __name__ == "__main__":
    main()
