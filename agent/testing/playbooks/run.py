"""Runs this project's playbooks, as an operator does, and reads what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
BIN = Path(sys.executable).parent
GROUP = "hypervisors"

_RECAP = re.compile(r"^(\S+) +: (.*failed=.*)$", re.MULTILINE)
_FAILURE = re.compile(r'^(?:fatal|failed): \[([^\]]+)\].*?"msg": "((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass(frozen=True)
class Played:
    """The end of a playbook: its exit status, what it printed, and Ansible's counts by host."""

    status: int
    out: str
    recap: Mapping[str, Mapping[str, int]]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The hosts that failed and why, one for each line that says so."""
        found = _FAILURE.findall(self.out)
        return [(host, json.loads(f'"{message}"')) for host, message in found]

    @property
    def changed(self) -> dict[str, int]:
        """The number of changes, by host."""
        return {host: counts["changed"] for host, counts in self.recap.items()}


def inventory(folder: Path, hosts: Mapping[str, Mapping[str, object]], **variables: object) -> Path:
    """Write an inventory of hypervisors with their variables, and those of all; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "hosts.json"
    file.write_text(json.dumps({GROUP: {"hosts": hosts, "vars": variables}}, indent=1))
    return file


def play(
    playbook: str | Path, hosts: Path, *words: str, timeout_s: float = 600, **variables: object
) -> Played:
    """Run one of the playbooks on an inventory. variables: given on the command line."""
    done = subprocess.run(
        _command(playbook, hosts, *words, **variables),
        cwd=PLAYBOOKS, env=_environment(hosts), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    rows = _RECAP.findall(done.stdout)
    recap = {
        host: {name: int(n) for name, n in (pair.split("=") for pair in counts.split())}
        for host, counts in rows
    }
    return Played(done.returncode, done.stdout, recap)


def start(
    playbook: str | Path, hosts: Path, *words: str, **variables: object
) -> subprocess.Popen[str]:
    """Begin to run a playbook, in a session of its own."""
    return subprocess.Popen(
        _command(playbook, hosts, *words, **variables),
        cwd=PLAYBOOKS, env=_environment(hosts), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def break_off(playbook: str, hosts: Path, at: str, *words: str, **variables: object) -> None:
    """Run a playbook, and kill it as soon as it begins the task named `at`."""
    playing = start(playbook, hosts, *words, **variables)
    assert playing.stdout is not None
    with playing.stdout as lines:
        assert any(line.startswith(f"TASK [iokeel : {at}]") for line in lines)
        os.killpg(playing.pid, signal.SIGKILL)
    playing.wait()


def _command(
    playbook: str | Path, hosts: Path, *words: str, **variables: object
) -> list[str | Path]:
    given = ["--extra-vars", json.dumps(variables)]
    return ["ansible-playbook", "--inventory", hosts, PLAYBOOKS / playbook, *words, *given]


def _environment(hosts: Path) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_HOME": str(hosts.parent / "ansible"),
        "ANSIBLE_LOG_PATH": str(hosts.parent / "ansible.log"),  # with the time of each line
        # Connections are known by the hosts' names, which other runs have too.
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(hosts.parent / "ansible/cp"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORKS": "4",
        "LC_ALL": "C.UTF-8",
    }
