"""Debian packages fetched and unpacked, never installed, by the machine's own apt sources."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """One version of a package that apt can fetch. `sha256` is the package file's."""

    name: str
    version: str
    depends: str
    sha256: str

    def unpack(self, into: Path) -> None:
        """Download the package and unpack its files under `into`; no script of it is run."""
        with tempfile.TemporaryDirectory(prefix="iokeel-apt-") as scratch:
            _run(["apt-get", "-qq", "download", f"{self.name}={self.version}"], cwd=scratch)
            for deb in Path(scratch).glob("*.deb"):
                _run(["dpkg-deb", "-x", str(deb), str(into)])


def candidates(*names: str) -> list[Package]:
    """Return the versions of these packages that apt would install now, in the same order.

    Raises RuntimeError when apt doesn't know one; mostly `apt-get update` was never run.
    """
    shown = _run(["apt-cache", "show", "--no-all-versions", *names])
    found = {}
    for stanza in shown.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if "SHA256" in fields:  # a package that is only installed has none
            found[fields["Package"]] = Package(
                fields["Package"], fields["Version"], fields.get("Depends", ""), fields["SHA256"]
            )
    if missing := [name for name in names if name not in found]:
        raise RuntimeError(f"apt has no package {', '.join(missing)}: run apt-get update")
    return [found[name] for name in names]


def installed_versions(*names: str) -> list[str]:
    """Return the installed versions of these packages, in the same order.

    Raises RuntimeError when one isn't installed.
    """
    form = "-f=${Package} ${db:Status-Status} ${Version}\\n"
    queried = subprocess.run(["dpkg-query", "-W", form, *names], capture_output=True, text=True)
    rows = [line.split(" ") for line in queried.stdout.splitlines()]
    versions = {name: version for name, status, version in rows if status == "installed"}
    if missing := [name for name in names if name not in versions]:
        raise RuntimeError(f"not installed: apt-get install {' '.join(missing)}")
    return [versions[name] for name in names]


def _run(argv: list[str], cwd: str | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
