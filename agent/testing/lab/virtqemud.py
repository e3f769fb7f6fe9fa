"""virtqemud, libvirt's daemon for QEMU alone: other distributions' default, and not in Debian."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from testing.lab.cache import cached
from testing.lab.roots import debian
from testing.lab.roots.environment import NETWORK
from testing.lab.roots.namespace import Namespace

HOME = Path("/opt/virtqemud")
"""Where it has to be, seen from inside."""
_PACKAGES = (
    "build-essential", "dpkg-dev", "libglib2.0-dev", "libgnutls28-dev", "libnl-3-dev",
    "libnl-route-3-dev", "libtirpc-dev", "libxml2-dev", "libxml2-utils", "libyajl-dev", "meson",
    "mount", "pkg-config", "python3-docutils", "qemu-utils", "rpcsvc-proto", "xsltproc",
)  # fmt: skip
# Debian's own source, of the version that a bookworm host's libvirtd has.
_BUILD = f"""\
exec >&2
cd /build
sed 's/^deb /deb-src /' /etc/apt/sources.list >sources.list
apt="-o Dir::Etc::SourceList=/build/sources.list -o APT::Sandbox::User=root"
apt-get -qq $apt update
apt-get -qq $apt source --only-source libvirt
cd libvirt-*/
meson setup made --prefix={HOME} --sysconfdir=/etc --localstatedir=/var --buildtype=plain \\
    --auto-features=disabled -Drunstatedir=/run -Drpath=enabled \\
    -Ddriver_remote=enabled -Ddriver_libvirtd=enabled -Ddriver_qemu=enabled -Dyajl=enabled
meson install -C made
"""
_BUILD_S = 3600


def virtqemud() -> Path:
    """Return a folder to bind to HOME in a bookworm host; made at first use (10 minutes).

    Raises RuntimeError with the build's words.
    """
    root = debian.root("bookworm", _PACKAGES)

    def build(folder: Path) -> None:
        folder.chmod(0o755)
        binds = {Path(p): (Path(p), "ro") for p in NETWORK if Path(p).exists()}
        with (
            tempfile.TemporaryDirectory(prefix="libvirt-", dir=folder.parent) as scratch,
            Namespace(Path(tempfile.mkdtemp(prefix="lab-")), root, {
                **binds, HOME: (folder, "rw"), Path("/build"): (Path(scratch), "rw"),
            }) as inside,
        ):  # fmt: skip
            environment = ("env", f"NINJAFLAGS=-j{os.cpu_count()}", "LC_ALL=C.UTF-8")
            inside.run([*environment, "sh", "-ec", _BUILD], timeout=_BUILD_S)

    return cached("virtqemud", [root.name, _BUILD], build)
