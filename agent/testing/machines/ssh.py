"""Access to machines for Ansible and ssh: a key of its own, and how to reach a machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testing.lab.cache import cached
from testing.machines.host import Host

#: A test machine has a host key of its root's, and a name of the test's.
OPTIONS = (
    "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR",
    "ServerAliveInterval=10",
)  # fmt: skip


def make_key() -> Path:
    """Return the file of a private key that logs in to test machines; made at first use."""

    def build(folder: Path) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]
        subprocess.run([*command, folder / "key"], check=True)

    return cached("machine-key", ["ed25519"], build) / "key"


def admit(machine: Host) -> dict[str, str]:
    """Let the key log in as root, and return the machine's variables for an inventory."""
    key = make_key()
    public = key.with_suffix(".pub").read_text().strip()
    machine.sh(f"mkdir -m 700 -p /root/.ssh; echo '{public}' >/root/.ssh/authorized_keys")
    # Ansible isn't told whose login it is, as if ssh's configuration had it.
    words = [f"-o '{option}'" for option in ("User=root", *OPTIONS, *machine.ssh_options)]
    return {
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": " ".join(words),
    }


def config(name: str, machine: Host) -> str:
    """Return what a file for `ssh -F` says of a machine that has admitted the key."""
    options = ("User=root", f"IdentityFile={make_key()}", *OPTIONS, *machine.ssh_options)
    return "".join([f"Host {name}\n", *(f"  {option}\n" for option in options)])
