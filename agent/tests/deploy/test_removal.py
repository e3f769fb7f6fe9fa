"""What remove.yml does on a host whose programs note how they are called, and fail if told to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.playbooks import role_doc
from testing.playbooks.run import Played, inventory, play, start

LOCAL = {"ansible_connection": "local", "ansible_become": False}
NOTES = """\
#!/bin/sh
name=$(basename "$0")
case "$name $*" in
    *--simulate*) exit;;
    dpkg-query*) echo "installed iokeel"; exit;;
    *--download-only*) step=ask;;
    apt-get*) step=purge;;
    systemctl*) step=$1;;
    iokeel*) step=release;;
esac
cd {host}
echo $step >>steps
if [ -e wait-at-$step ]; then until [ -e go-on ]; do sleep 0.1; done; fi
if [ $step = purge ] && [ -e purge-takes-it ]; then rm command; fi
if [ -e fails-at-$step ]; then cat fails-at-$step; exit 1; fi
"""
LOCK = "E: Unable to acquire the dpkg frontend lock"


class Host:
    """A host with an agent, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("dpkg-query", "apt-get", "systemctl", "iokeel"):
            self.write(f"bin/{name}", NOTES.format(host=folder)).chmod(0o755)
        for name in ("command", "unit", "etc/agent.toml"):
            self.write(name)
        role = {"name": "iokeel", "tasks_from": "remove"}
        alone = {
            "hosts": "all",
            "gather_facts": False,
            "environment": {"PATH": f"{folder}/bin:/usr/bin:/bin"},
            "tasks": [{"ansible.builtin.import_role": role}],
        }
        self.playbook = self.write("play.yml", yaml.safe_dump([alone]))
        self.inventory = inventory(folder, {"hv1": LOCAL})
        there = {
            "command": "command", "unit_file": "unit", "state_dir": "state", "source": "source",
            "key": "key", "hook_file": "hook", "config": "etc/agent.toml", "drop_in": "d/drop-in",
            "removal_lock": "lock",
        }  # fmt: skip
        self.given: dict[str, Any] = {
            f"__iokeel_{name}": f"{folder}/{path}" for name, path in there.items()
        }

    def write(self, name: str, text: str = "") -> Path:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    def remove(self, *words: str) -> Played:
        return play(self.playbook, self.inventory, *words, **self.given)

    @property
    def steps(self) -> list[str]:
        """What was done, in order."""
        file = self.folder / "steps"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_removal_asks_apt_first_and_starts_no_agent(host: Host) -> None:
    played = host.remove()
    assert played.status == 0, played.out
    assert host.steps == ["ask", "stop", "release", "purge"]
    assert not (host.folder / "etc").exists()


def test_check_mode_only_asks(host: Host) -> None:
    played = host.remove("--check")
    assert played.status == 0, played.out
    assert played.changed["hv1"] > 0
    assert host.steps == ["ask"]
    assert (host.folder / "etc").exists()


def test_a_removal_beside_another_does_nothing(host: Host) -> None:
    with open(host.given["__iokeel_removal_lock"], "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ((_, why),) = host.remove().failures
    says = "another removal runs on the host; wait until it has ended, and run this again"
    assert why == f"hv1: {says}"
    assert host.steps == ["ask"]
    assert host.remove().status == 0


# iokeel brought a library along. libvirt was brought by a package that has gone since then.
STATUS = """\
Package: iokeel
Status: install ok installed
Version: 1
Architecture: all
Depends: library
Suggests: libvirt

Package: library
Status: install ok installed
Version: 1
Architecture: all

Package: libvirt
Status: install ok installed
Version: 1
Architecture: all
"""


def test_what_iokeel_merely_suggests_is_not_taken_for_its_own(tmp_path: Path) -> None:
    (find,) = (
        task
        for task in yaml.safe_load((role_doc.ROLE / "tasks/remove.yml").read_text())
        if task["name"] == "Find what was installed for it"
    )
    words = find["ansible.builtin.command"]["argv"].removeprefix("{{ ").removesuffix(" + item }}")
    (tmp_path / "status").write_text(STATUS)
    brought = "".join(
        f"Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n\n"
        for name in ("library", "libvirt")
    )
    (tmp_path / "extended_states").write_text(brought)
    (tmp_path / "apt.conf").write_text(
        f'Dir::State "{tmp_path}";\nDir::State::status "{tmp_path}/status";\n'
        'APT::AutoRemove::SuggestsImportant "true";\n'  # which is apt's default
    )

    def gone(*removed: str) -> set[str]:
        argv = [*yaml.safe_load(words), *removed]
        environment = {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf"), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        lines = (line.split() for line in done.stdout.splitlines())
        return {line[1] for line in lines if line[:1] == ["Remv"]}

    assert gone("iokeel") - gone() == {"iokeel", "library"}


def test_nothing_is_done_if_apt_could_not_purge(host: Host) -> None:
    host.write("fails-at-ask", LOCK)
    why = f"hv1: apt can't remove iokeel ({LOCK}), so nothing was changed: mend that and run"
    assert host.remove().failures == [("hv1", f"{why} this again")]
    assert host.steps == ["ask"]


@pytest.mark.parametrize(
    ("failing", "done", "state"),
    [
        (["purge"], ["purge", "start"], "the agent runs again"),
        (["purge", "start"], ["purge", "start"],
         "no drive has its limits any more, but the agent does not start"),
    ],
)  # fmt: skip
def test_a_purge_that_fails_starts_the_agent_again_and_the_message_says_so(
    host: Host, failing: list[str], done: list[str], state: str
) -> None:
    for step in failing:
        host.write(f"fails-at-{step}", LOCK)
    why = f"hv1: apt could not remove iokeel ({LOCK}); {state}: mend that and run this again"
    assert host.remove().failures == [("hv1", why)]
    assert host.steps == ["ask", "stop", "release", *done]
    assert (host.folder / "etc").exists()


def test_a_purge_that_fails_halfway_leaves_no_agent_to_start(host: Host) -> None:
    host.write("fails-at-purge", LOCK)
    host.write("purge-takes-it")
    ((_, why),) = host.remove().failures
    assert "no drive has its limits any more, and the agent is gone" in why
    assert host.steps == ["ask", "stop", "release", "purge"]


@pytest.mark.parametrize(
    ("failing", "state"),
    [
        (["release"], "the agent runs again"),
        (["release", "start"], "limits stay as they are, but the agent does not start: run deploy"),
    ],
)
def test_a_release_that_fails_starts_the_agent_again(
    host: Host, failing: list[str], state: str
) -> None:
    for step in failing:
        host.write(f"fails-at-{step}", "WARNING hung\niokeel: db1/vda: not given back")
    ((_, why),) = host.remove().failures
    assert why.startswith(f"hv1: iokeel: db1/vda: not given back; {state}")
    assert host.steps == ["ask", "stop", "release", "start"]


def test_a_stop_that_fails_is_told_by_its_reason(host: Host) -> None:
    host.write("fails-at-stop", "Failed to stop iokeel.service: timed out\nSee 'systemctl status'")
    ((_, why),) = host.remove().failures
    assert why == "hv1: Failed to stop iokeel.service: timed out; the agent runs again"
    assert host.steps == ["ask", "stop", "start"]


def test_a_host_that_is_lost_after_the_stop_starts_its_agent_again(host: Host) -> None:
    host.write("wait-at-stop")
    host.write("fails-at-release")
    playing = start(host.playbook, host.inventory, **host.given)
    try:
        until(host, "stop")
        # As the end of a connection ends what it runs
        os.killpg(os.getpgid(parent_of_script(host)), signal.SIGKILL)
    finally:
        os.killpg(playing.pid, signal.SIGKILL)
        playing.communicate()
    host.write("go-on")
    until(host, "start")
    assert host.steps == ["ask", "stop", "release", "start"]


def parent_of_script(host: Host) -> int:
    """Return the process that has started the one that stops the agent, and goes on."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            told = words.read_bytes().split(b"\0")
            if told[0] == b"sh" and f"{host.folder}/unit".encode() in told:
                status = (words.parent / "status").read_text()
                parent = int(status.split("PPid:")[1].split()[0])
                if b"python" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    return parent
    raise AssertionError("no script runs")


def until(host: Host, step: str) -> None:
    """Wait until a step has begun."""
    deadline = time.monotonic() + 60
    while step not in host.steps:
        assert time.monotonic() < deadline, host.steps
        time.sleep(0.05)
