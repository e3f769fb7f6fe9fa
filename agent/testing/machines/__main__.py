"""Machines that run on after the command that booted them: what Molecule's scenario uses.

    python -m testing.machines up FOLDER CODENAME...
    python -m testing.machines down FOLDER

`up` boots a container of each Debian, which has its codename as its name. It fills the folder with
an inventory for Ansible, an ssh_config, and packages of the agent. A process in the background
holds the machines until `down`, or until the folder is gone.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from testing.machines import ssh
from testing.machines.container import VARIABLES, Machine
from testing.packages.folder import package_folder
from testing.playbooks.run import inventory

# The holder has a lock on this file, and ends the machines when it is deleted.
_HELD = "machines.lock"
_LOG = "machines.log"
_READY = "ssh_config"  # the last file that is written
_PAUSE_S = 0.2


def up(folder: Path, codenames: list[str]) -> None:
    """Boot the machines, in place of those that the folder has."""
    down(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ready, log = folder / _READY, folder / _LOG
    ready.unlink(missing_ok=True)
    with log.open("w") as said:
        holder = subprocess.Popen(
            [sys.executable, "-m", __package__, "hold", folder, *codenames],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    while not ready.exists():
        if holder.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(_PAUSE_S)


def hold(folder: Path, codenames: list[str]) -> None:
    """Boot the machines, and run them for as long as the folder's lock file is there."""
    held = folder / _HELD
    with held.open("w") as lock, ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        packages = package_folder(folder / "packages", codenames)
        machines = {name: stack.enter_context(Machine(name)) for name in codenames}
        hosts = {
            # ssh knows its open connections by the host's name.
            name: {**ssh.admit(machine), **VARIABLES, "ansible_host": machine.name}
            for name, machine in machines.items()
        }
        inventory(folder / "inventory", hosts, iokeel_package=str(packages))
        parts = [ssh.config(name, machine) for name, machine in machines.items()]
        (folder / _READY).write_text("".join(parts))
        while held.exists():
            time.sleep(_PAUSE_S)


def down(folder: Path) -> None:
    """End the machines, if there are any, and wait for it."""
    try:
        lock = (folder / _HELD).open()
    except FileNotFoundError:
        return
    with lock:
        (folder / _HELD).unlink()
        fcntl.flock(lock, fcntl.LOCK_EX)


def main(words: list[str]) -> None:
    """Do what the command line says."""
    match words:
        case ["up", folder, *codenames] if codenames:
            up(Path(folder), codenames)
        case ["hold", folder, *codenames]:
            hold(Path(folder), codenames)
        case ["down", folder]:
            down(Path(folder))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
