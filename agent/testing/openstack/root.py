"""The root of a machine with a whole OpenStack on it: Debian's own packages, set up once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from testing.lab.cache import cached
from testing.lab.roots import debian
from testing.machines.container import Machine
from testing.machines.root import CONTAINED
from testing.waiting import eventually

CODENAME = "trixie"
"""Its OpenStack is 2025.1."""
BASICS = ("mariadb", "rabbitmq-server")
APIS = {
    "keystone": 5000, "glance-api": 9292, "placement-api": 8778, "nova-api": 8774,
    "neutron-api": 9696, "cinder-api": 8776,
}  # fmt: skip
"""The services that answer to HTTP, with their ports."""
WORKERS = (
    "neutron-rpc-server", "nova-conductor", "nova-scheduler", "nova-compute", "cinder-scheduler",
    "cinder-volume",
)  # fmt: skip

_PACKAGES = (
    "mariadb-server", "rabbitmq-server", "keystone", "glance", "placement-api", "nova-api",
    "nova-scheduler", "nova-conductor", "nova-compute", "nova-compute-kvm", "neutron-api",
    "neutron-rpc-server", "cinder-api", "cinder-scheduler", "cinder-volume",
    "python3-openstackclient", "python3-cinderclient",
)  # fmt: skip
_HERE = Path(__file__).parent
_NAME = "cloud"
# What the configuration of each service is kept in, if it is not by its own name.
_FOLDERS = {
    "glance-api.conf": "etc/glance", "ml2_conf.ini": "etc/neutron/plugins/ml2",
    "nova-compute.conf": "etc/nova", "openrc": "root",
}  # fmt: skip
_MADE = ("etc/keystone", "var/lib/mysql", "var/lib/rabbitmq")
_SETUP_S = 1200.0


def cloud() -> Path:
    """Return the root, made at first use (2 GB, 15 minutes); write nothing into it.

    Its services are configured, and have their databases and accounts, and none starts by itself.
    """
    base = debian.root(CODENAME, (*CONTAINED, *_PACKAGES))
    sources = [path for path in (*_HERE.glob("etc/*"), _HERE / "setup.sh", _HERE / "mount.nfs")]
    parts = [part for path in sorted(sources) for part in (path.name, path.read_bytes())]

    def build(folder: Path) -> None:
        # Links to the files of the base, which are replaced and never written to.
        subprocess.run(["cp", "-al", f"{base}/.", folder], check=True)
        folder.chmod(0o755)
        _configure(folder)
        with Machine(CODENAME, {"/setup": _HERE}, folder) as machine:
            _set_up(machine)
            for path in _MADE:
                made = machine.inside / path
                subprocess.run(
                    ["cp", "-a", "--remove-destination", f"{made}/.", folder / path], check=True
                )

    return cached("openstack", [base.name, Path(__file__).read_bytes(), *parts], build)


def _configure(folder: Path) -> None:
    for conf in _HERE.glob("etc/*"):
        _put(folder / _FOLDERS.get(conf.name, f"etc/{conf.stem}") / conf.name, conf.read_text())
    _put(folder / "etc/hostname", f"{_NAME}\n")
    _put(folder / "etc/hosts", f"127.0.0.1 localhost {_NAME}\n")
    _put(folder / "etc/cinder/shares", "127.0.0.1:/srv/share\n")
    (folder / "srv/share").mkdir()
    _put(folder / "usr/sbin/mount.nfs", (_HERE / "mount.nfs").read_text())
    for made in ("etc/cinder/shares", "usr/sbin/mount.nfs"):
        (folder / made).chmod(0o755)
    for ini in folder.glob("etc/*/*-uwsgi.ini"):  # for two processors, and maybe without AppArmor
        text = re.sub(r"(?m)^apparmor-profile = .*$|,apparmor$", "", ini.read_text())
        _put(ini, re.sub(r"(?m)^(processes|threads) = .*$", r"\1 = 1", text))
    units = [f"{unit}.service" for unit in (*BASICS, *APIS, *WORKERS, "nova-api-metadata")]
    subprocess.run(["systemctl", "--quiet", f"--root={folder}", "disable", *units], check=True)


def _put(file: Path, text: str) -> None:
    """Replace a file, with its owner and mode."""
    before = file.stat() if file.exists() else None
    file.unlink(missing_ok=True)
    file.write_text(text)
    if before:
        subprocess.run(["chown", f"{before.st_uid}:{before.st_gid}", file], check=True)
        file.chmod(before.st_mode)


def _set_up(machine: Machine) -> None:
    unit = "openstack-setup"
    machine.run("systemd-run", "--quiet", f"--unit={unit}", "--remain-after-exit", "sh",
                "/setup/setup.sh")  # fmt: skip
    ask = ["systemctl", "show", "--value", "--property=SubState", unit]
    ended = ("exited", "failed")
    eventually(lambda: machine.run(*ask).strip() in ended, _SETUP_S, what="OpenStack is set up")
    if machine.run(*ask).strip() != "exited":
        log = machine.run("journalctl", f"--unit={unit}", "--output=cat", "--no-pager")
        raise RuntimeError(f"OpenStack can't be set up\n{log[-6000:]}")
