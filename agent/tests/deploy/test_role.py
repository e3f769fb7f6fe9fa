"""The role and its playbooks without a host: style, documentation, and what they refuse."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from iokeel.config.load import parse
from testing.agents import free_port
from testing.playbooks import role_doc
from testing.playbooks.run import BIN, PLAYBOOKS, Played, inventory, play

ROLE = role_doc.ROLE
DOCS = PLAYBOOKS.parent / "docs"
LOCAL = {"ansible_connection": "local", "ansible_become": False}
TABLES = (
    "agent",
    "libvirt",
    "fleet",
    "hook",
    "curve",
    "classes",
    "tenants",
    "ceilings",
    "storage",
    "cgroup",
    "jobs",
    "history",
    "policy",
    "rules",
)


def test_ansible_lint_has_nothing_to_say_in_its_production_profile() -> None:
    done = subprocess.run(
        [BIN / "ansible-lint", "--nocolor", "--profile", "production", "--strict"],
        cwd=PLAYBOOKS, env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_yamllint_has_nothing_to_say() -> None:
    done = subprocess.run([BIN / "yamllint", "--strict", "."], cwd=PLAYBOOKS, capture_output=True)
    assert done.stdout.decode() == ""
    assert done.returncode == 0


def test_readme_is_made_from_the_argument_specs() -> None:
    assert (ROLE / "README.md").read_text() == role_doc.text(), "run `make role-doc`"


def test_defaults_are_those_of_the_argument_specs() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]
    options = {name: option for s in specs.values() for name, option in s["options"].items()}
    given = {name: option["default"] for name, option in options.items() if "default" in option}
    # These two are a play's and no host's.
    assert given.pop("iokeel_serial") == [1, "25%"]
    assert given.pop("iokeel_max_fail_percentage") == 0
    assert defaults == given


def test_variables_make_the_configuration_that_the_documentation_shows(tmp_path: Path) -> None:
    page = (DOCS / "configuration.md").read_text()
    shown = page.split("```toml\n")[1].split("```")[0]
    wanted = tomllib.loads(shown)
    variables = {f"iokeel_{name}": wanted[name] for name in TABLES} | {"iokeel_vms": wanted["vm"]}
    variables["iokeel_discover"] = wanted["discover"]
    # What the operator has written comes before what was measured.
    variables["iokeel_storage_calibrated"] = {"fast": {"capacity": 5}, "slow": {"capacity": 7}}
    made = tmp_path / "agent.toml"
    task = {
        "ansible.builtin.template": {"src": f"{ROLE}/templates/agent.toml.j2", "dest": f"{made}"}
    }
    playbook = tmp_path / "play.yml"
    files = [f"{ROLE}/vars/main.yml"]
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False,
                                         "vars_files": files, "tasks": [task]}]))  # fmt: skip
    played = play(playbook, inventory(tmp_path, {"hv1": LOCAL}, **variables))
    assert played.status == 0, played.out
    wanted["storage"]["slow"] = {"capacity": 7}
    assert tomllib.loads(made.read_text()) == wanted
    assert parse(made.read_bytes(), str(made)).fleet is not None


@pytest.mark.parametrize(
    ("variables", "allowed"),
    [
        ({"iokeel_metrics_clients": ["192.0.2.9", "2001:db8::/32"]}, "192.0.2.9 2001:db8::/32"),
        ({"iokeel_metrics_clients": "192.0.2.9, 192.0.2.10"}, "192.0.2.9 192.0.2.10"),
        (
            {
                "iokeel_fleet": {"etcd": ["https://10.0.0.2:2379"]},
                "iokeel_metrics_clients": ["192.0.2.9"],
            },
            "10.0.0.2 192.0.2.9",
        ),
    ],
)
def test_the_service_may_talk_to_etcd_and_to_who_reads_metrics(
    tmp_path: Path, variables: dict[str, Any], allowed: str
) -> None:
    made = tmp_path / "drop-in"
    template = {"src": f"{ROLE}/templates/fleet.conf.j2", "dest": f"{made}"}
    task = {"ansible.builtin.template": template, "vars": variables}
    files = [f"{ROLE}/vars/main.yml", f"{ROLE}/defaults/main.yml"]
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False,
                                         "vars_files": files, "tasks": [task]}]))  # fmt: skip
    played = play(playbook, inventory(tmp_path, {"hv1": LOCAL}))
    assert played.status == 0, played.out
    assert made.read_text().splitlines()[-2:] == ["[Service]", f"IPAddressAllow={allowed}"]


PACKAGE = "{{ inventory_dir }}/iokeel_1~deb99_amd64.deb"
ARCHIVE = {"iokeel_install": "archive"}

# What is refused, and the words that say so.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"iokeel_agent": {"log_lvel": "debug"}}, "iokeel_agent.log_lvel. Supported"),
    "value": ({"iokeel_agent": {"log_level": "loud"}}, "log_level must be one of: debug, info"),
    "type": ({"iokeel_min_free_mib": "much"}, "argument 'iokeel_min_free_mib' is of type"),
    "vm": ({"iokeel_vms": [{"name": "a"}]}, "missing required arguments: socket found in iokeel"),
    "name": ({"iokeel_pakage": "x"}, "no such variable: iokeel_pakage"),
    "unquoted": (
        {"iokeel_tenants": "{{ {false: {}, 1: {}} }}", "iokeel_classes": "{{ {none: {}} }}"},
        "has a name that is false, null in YAML: put it in quotes",
    ),
    "space": ({"iokeel_min_free_mib": 10**9}, "MiB left in /usr or /var/lib, and iokeel_min_free"),
    "libvirt": ({"iokeel_libvirt": {"uri": "test:///no"}}, "libvirt doesn't answer at test:///no"),
    "package": ({"iokeel_package": "/nonexistent"}, "/nonexistent has no package iokeel_VER"),
    "etcd": (
        {"iokeel_fleet": {"etcd": ["https://etcd1:2379", "https://10.0.0.2:2379"]}},
        "iokeel_fleet.etcd has names (etcd1): set iokeel_fleet_addresses",
    ),
    "etcd_scheme": (
        {"iokeel_fleet": {"etcd": ["https://10.0.0.2:2379", "10.0.0.1:2379"]}},
        "iokeel_fleet.etcd has 10.0.0.1:2379, which is no URL: write https://10.0.0.1:2379",
    ),
    "metrics": (
        {"iokeel_agent": {"metrics_address": "0.0.0.0:9632", "metrics_web_config": "/web.yml"}},
        "nobody could reach iokeel_agent.metrics_address 0.0.0.0:9632: set iokeel_metrics_clients",
    ),
    "space_text": ({"iokeel_min_free_mib": "999999999"}, "MiB left in /usr or /var/lib"),
    "page_text": (
        {"iokeel_page": "true", "iokeel_package": "/nonexistent"}, "`make packages-page`"
    ),
    "page": ({"iokeel_page": True, "iokeel_package": "/nonexistent"}, "`make packages-page`"),
    "release": ({"iokeel_package": PACKAGE}, "isn't for Debian"),
    "file": ({"iokeel_package": "/x/iokeel_1~deb99_amd64.deb"}, "_amd64.deb isn't there: build it"),
    "version": (
        {"iokeel_package": PACKAGE, "iokeel_version": "1.0"},
        "iokeel_1~deb99_amd64.deb isn't iokeel_version 1.0: leave that out",
    ),
    "how": ({"iokeel_install": "wheels"}, "iokeel_install must be one of: packages, archive"),
    "archive": (ARCHIVE, "set iokeel_package to the file that `make packages-archive` builds"),
    "archive_file": (
        {**ARCHIVE, "iokeel_package": "/x/iokeel-1.tar.gz"},
        "iokeel-1.tar.gz isn't there: build it with `make packages-archive`",
    ),
    "archive_folder": (
        {**ARCHIVE, "iokeel_package": "/x"}, "/x has no archive iokeel-VERSION.tar.gz: build it"
    ),
    "archive_version": (
        {**ARCHIVE, "iokeel_package": "{{ inventory_dir }}/iokeel-1.tar.gz", "iokeel_version": "2"},
        "iokeel-1.tar.gz isn't iokeel_version 2: leave that out",
    ),
    "archive_page": ({**ARCHIVE, "iokeel_page": True}, "iokeel_page needs iokeel_install to be"),
    "python": (
        {**ARCHIVE, "iokeel_python": "/nonexistent"},
        "/nonexistent doesn't run: install Python 3.11 or later, and name it by iokeel_python",
    ),
    "old_python": (
        {**ARCHIVE, "iokeel_python": "{{ inventory_dir }}/old"},
        "/old is Python 3.9, and iokeel needs 3.11: install python3.11 or later, and name it by",
    ),
}  # fmt: skip


PLAYED_ALONE = ("policies.yml", "calibrate.yml", "patched-qemu.yml")


@pytest.mark.parametrize("playbook", PLAYED_ALONE)
def test_each_playbook_refuses_a_misspelt_variable(tmp_path: Path, playbook: str) -> None:
    hosts = {"hv1": {**LOCAL, "iokeel_polices": {}, "iokeel_qemu_packages": "/nonexistent"}}
    ((_, message),) = play(playbook, inventory(tmp_path, hosts), "--check").failures
    assert message.startswith("hv1: no such variable: iokeel_polices (roles/iokeel/README.md")


def test_no_policy_is_set_if_a_variable_is_misspelt_on_any_host(tmp_path: Path) -> None:
    hosts = {"hv1": {**LOCAL, "iokeel_polices": {}}, "hv2": LOCAL}
    played = play("policies.yml", inventory(tmp_path, hosts), "--check")
    assert "TASK [iokeel : Check all policies" not in played.out


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """deploy.yml on hosts of which each has one fault (and this machine's own)."""
    hosts = {name: {**LOCAL, **variables} for name, (variables, _) in REFUSED.items()}
    hosts["gone"] = {"ansible_host": "127.0.0.1", "ansible_port": free_port()}
    folder = tmp_path_factory.mktemp("refused")
    for name in (PACKAGE.rpartition("/")[2], "iokeel-1.tar.gz"):
        (folder / name).touch()
    (folder / "old").write_text("#!/bin/sh\necho 3.9\n")
    (folder / "old").chmod(0o755)
    return play("deploy.yml", inventory(folder, hosts), "--check")


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_variable_is_refused_by_its_name(refusals: Played, name: str) -> None:
    (message,) = [message for host, message in refusals.failures if host == name]
    assert REFUSED[name][1] in message
    assert refusals.recap[name]["changed"] == 0


def test_packages_below_the_home_folder_are_found(tmp_path: Path) -> None:
    for release in (12, 13):
        for version in (1, 2):
            (tmp_path / f"iokeel_{version}~deb{release}_amd64.deb").touch()
    folder = Path("~", os.path.relpath(tmp_path, Path.home()))
    hosts = {"hv1": {**LOCAL, "iokeel_package": str(folder)}}
    ((_, message),) = play("deploy.yml", inventory(tmp_path, hosts), "--check").failures
    assert f"{folder} has several packages (iokeel_1~deb" in message


def test_a_package_is_found_in_a_folder_with_brackets(tmp_path: Path) -> None:
    package = tmp_path / "builds[1]" / "iokeel_1~deb99_amd64.deb"
    package.parent.mkdir()
    package.touch()
    hosts = {"hv1": {**LOCAL, "iokeel_package": str(package)}}
    ((_, message),) = play("deploy.yml", inventory(tmp_path, hosts), "--check").failures
    assert "iokeel_1~deb99_amd64.deb isn't for Debian" in message
    assert "isn't there" not in message


def test_each_path_on_the_controller_may_begin_with_a_tilde() -> None:
    found = [line for file in ROLE.rglob("*.yml") for line in file.read_text().splitlines()]
    paths = [line for line in found if "| realpath" in line]
    assert paths
    assert all("| expanduser | realpath" in line for line in paths)


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_checked(
    refusals: Played,
) -> None:
    (message,) = [message for host, message in refusals.failures if host == "gone"]
    assert "Connection refused" in message
    assert refusals.recap["gone"]["unreachable"] == 1
    assert refusals.recap["space"]["ok"] > 5


def rollout(
    folder: Path, playbook: str, hosts: dict[str, str], *words: str, **given: Any
) -> Played:
    """Run a playbook's plays with tasks that do as hosts say, instead of the role's."""
    tasks = folder / "roles/iokeel/tasks"
    tasks.mkdir(parents=True, exist_ok=True)
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": free_port()}
    refuse = {"ansible.builtin.fail": {"msg": "refused"}, "when": "does == 'refused'"}
    serve = [
        {"ansible.builtin.ping": {}, "vars": gone, "when": "does == 'gone'"},
        {"ansible.builtin.fail": {"msg": "failed"}, "when": "does == 'failed'"},
        {"ansible.builtin.debug": {"msg": "served in batch {{ ansible_play_batch }}"}},
    ]
    (tasks / "preflight.yml").write_text(yaml.safe_dump([refuse]))
    for name in ("main", "patched_qemu", "remove"):
        (tasks / f"{name}.yml").write_text(yaml.safe_dump(serve))
    shutil.copy(PLAYBOOKS / playbook, folder)
    there = {name: {**LOCAL, "does": does} for name, does in hosts.items()}
    return play(folder / playbook, inventory(folder, there), *words, **given)


def served(played: Played) -> list[str]:
    """Return the hosts that were served, in order."""
    return re.findall(r'^ok: \[(\w+)\] => .*\n +"msg": "served', played.out, re.MULTILINE)


def test_the_first_batch_is_one_host_though_the_first_host_was_refused(tmp_path: Path) -> None:
    hosts = {"hv1": "refused", **dict.fromkeys(("hv2", "hv3", "hv4", "hv5"), "well")}
    played = rollout(tmp_path, "deploy.yml", hosts, iokeel_serial=[1, 3])
    assert dict(played.failures) == {"hv1": "refused"}
    batches = re.findall(r"served in batch (\[.*?\])", played.out)
    assert batches[0] == "['hv2']"
    assert served(played)[0] == "hv2"
    assert sorted(served(played)) == ["hv2", "hv3", "hv4", "hv5"]


@pytest.mark.parametrize("playbook", ["deploy.yml", "patched-qemu.yml"])
@pytest.mark.parametrize("does", ["gone", "failed"])
def test_a_rollout_ends_with_the_batch_in_which_a_host_fails_or_is_lost(
    tmp_path: Path, playbook: str, does: str
) -> None:
    hosts = dict.fromkeys(("hv1", "hv2", "hv3", "hv4", "hv5", "hv6"), "well") | {"hv3": does}
    played = rollout(tmp_path, playbook, hosts, iokeel_serial=[1, 2])
    assert played.status != 0
    # The others of its batch go on to their end, and no later batch begins.
    assert served(played) == ["hv1", "hv2"]
    said = dict(played.failures)
    assert said.pop("hv3")
    ended = "hv3 failed or can't be reached: see to it, and run this again"
    assert said == {"hv4": ended}


def test_a_removal_that_fails_on_the_first_host_goes_on_without_it_if_it_is_left_out(
    tmp_path: Path,
) -> None:
    hosts = {"hv1": "failed", "hv2": "well", "hv3": "failed", "hv4": "well"}
    assert served(rollout(tmp_path, "remove.yml", hosts)) == []
    words = ["--limit", "!hv1"]
    played = rollout(tmp_path, "remove.yml", hosts, *words, iokeel_serial=[1, 2])
    assert dict(played.failures) == {"hv3": "failed"}
    assert served(played) == ["hv2", "hv4"]


def test_hosts_may_be_lost_if_some_may_fail(tmp_path: Path) -> None:
    hosts = {"hv1": "well", "hv2": "gone", "hv3": "well", "hv4": "well"}
    given = {"iokeel_serial": [1, 2], "iokeel_max_fail_percentage": "50%"}
    assert served(rollout(tmp_path, "deploy.yml", hosts, **given)) == ["hv1", "hv3", "hv4"]


def tasks_alone(folder: Path, tasks: str, programs: str) -> Path:
    """Write a playbook of one file of the role's tasks. programs: a folder to look in first."""
    role = {"name": "iokeel", "tasks_from": tasks}
    alone = {
        "hosts": "all",
        "gather_facts": False,
        "environment": {"PATH": f"{programs}:/usr/bin:/bin"},
        "tasks": [{"ansible.builtin.import_role": role}],
    }
    playbook = folder / "play.yml"
    playbook.write_text(yaml.safe_dump([alone]))
    return playbook


def test_a_login_is_root_or_becomes_root(tmp_path: Path) -> None:
    """Many a host to which one logs in as root has no sudo, and Ansible doesn't know the login."""
    logins = {"root": ("0", False), "sudoer": ("7", True), "nobody": ("7", False)}
    hosts: dict[str, dict[str, Any]] = {}
    for host, (uid, has_sudo) in logins.items():
        (tmp_path / host).mkdir()
        for name, text in (("id", f"echo {uid}"), *([("sudo", "exit 1")] if has_sudo else [])):
            (tmp_path / host / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / host / name).chmod(0o755)
        hosts[host] = {"ansible_connection": "local"}
    playbook = Path(tasks_alone(tmp_path, "root", ""))
    (text,) = yaml.safe_load(playbook.read_text())
    text["environment"]["PATH"] = f"{tmp_path}/{{{{ inventory_hostname }}}}"
    told = {"msg": "{{ inventory_hostname }} asks sudo: {{ ansible_become | default(true) }}"}
    text["tasks"].append({"ansible.builtin.debug": told})
    playbook.write_text(yaml.safe_dump([text]))
    played = play(playbook, inventory(tmp_path, hosts))
    ((refused, why),) = played.failures
    assert refused == "nobody"
    assert why.endswith("log in as root, install sudo, or set ansible_become_method")
    assert "root asks sudo: False" in played.out
    assert "sudoer asks sudo: True" in played.out


@pytest.mark.parametrize("there", ["nothing", "etc/agent.toml", "lib/state.db"])
def test_only_an_agent_on_a_new_host_begins_by_observing(tmp_path: Path, there: str) -> None:
    """Else it has a configuration, or guests that it would let go of."""
    for folder in ("etc", "lib"):
        (tmp_path / folder).mkdir()
    (tmp_path / there).touch()
    config = tmp_path / "etc/agent.toml"
    given: dict[str, Any] = {
        "__iokeel_config": str(config),
        "__iokeel_state_dir": str(tmp_path / "lib"),
    }
    playbook = tasks_alone(tmp_path, "first", "/nowhere")
    played = play(playbook, inventory(tmp_path, {"hv1": LOCAL}), **given)
    assert played.status == 0, played.out
    text = config.read_text() if config.exists() else ""
    assert ("observe" in text) == (there == "nothing")


def test_only_an_agent_that_is_not_the_service_is_refused(tmp_path: Path) -> None:
    """One that hangs as it starts, or is at its stop, has to be replaced by a rollback."""
    own = {
        "foreign": "ActiveState=inactive\nMainPID=0",
        "starting": "ActiveState=activating\nMainPID=7",
        "stopping": "ActiveState=deactivating\nMainPID=7",
        # What is in its way is the foreign one.
        "restarting": "ActiveState=activating\nMainPID=0",
    }
    for host, says in own.items():
        (tmp_path / host).mkdir()
        (tmp_path / host / "systemctl").write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (tmp_path / host / "systemctl").chmod(0o755)
    playbook = tasks_alone(tmp_path, "preflight", f"{tmp_path}/{{{{ inventory_hostname }}}}")
    given = {**LOCAL, "iokeel_package": "/nonexistent"}
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words: dict[str, Any] = {"__iokeel_state_dir": str(tmp_path)}
        played = play(playbook, inventory(tmp_path, dict.fromkeys(own, given)), **words)
    refused = {host for host, why in played.failures if "an agent runs that isn't iokeel.s" in why}
    assert refused == {"foreign", "restarting"}
    assert {host for host, _ in played.failures} == own.keys(), "for their missing package"


def test_a_host_has_the_agent_from_packages_or_from_the_archive_and_not_from_both(
    tmp_path: Path,
) -> None:
    for host, dpkg in {
        "archive": "",
        "package": "installed 1 x",
        "removed": "config-files 1 x",
    }.items():
        (tmp_path / host).mkdir()
        (tmp_path / host / "dpkg-query").write_text(f"#!/bin/sh\nprintf '{dpkg}'\n")
        (tmp_path / host / "dpkg-query").chmod(0o755)
    (tmp_path / "archive/sums").touch()
    own = f"{tmp_path}/{{{{ inventory_hostname }}}}"
    playbook = tasks_alone(tmp_path, "preflight", own)
    # Each names nothing to install, so that one that isn't refused for this is for that.
    names = ("archive", "package", "removed")
    hosts = {name: {**LOCAL, "iokeel_package": "/x"} for name in names}
    refused: dict[str, str] = {}
    for install in ("packages", "archive"):
        played = play(playbook, inventory(tmp_path, hosts), iokeel_install=install,
                      __iokeel_sums=f"{own}/sums")  # fmt: skip
        assert {host for host, _ in played.failures} == hosts.keys()
        refused |= {host: why for host, why in played.failures if "run remove.yml and then" in why}
        assert len(refused) == (1 if install == "packages" else 3), played.failures
    assert "has iokeel from the archive: set iokeel_install to archive, or" in refused["archive"]
    assert "has iokeel as a package: set iokeel_install to packages, or" in refused["package"]
    assert "has iokeel as a package: " in refused["removed"]


def test_only_a_libvirt_that_does_not_answer_is_refused_and_no_missing_virsh(
    tmp_path: Path,
) -> None:
    """libvirt may run in a container. Then the host has its socket."""
    given = {**LOCAL, "iokeel_package": "/nonexistent"}
    sockets = {"bare": "there", "none": "missing", "broken": "there"}
    (tmp_path / "there").touch()
    hosts = {}
    for host, socket in sockets.items():
        (tmp_path / host).mkdir()
        (tmp_path / host / "virsh").write_text(
            f"#!/bin/sh\nexit {1 if host == 'broken' else 127}\n"
        )
        (tmp_path / host / "virsh").chmod(0o755)
        uri = f"qemu+unix:///system?mode=direct&socket={tmp_path / socket}"
        hosts[host] = {**given, "iokeel_libvirt": {"uri": uri}}
    playbook = tasks_alone(tmp_path, "preflight", f"{tmp_path}/{{{{ inventory_hostname }}}}")
    played = play(playbook, inventory(tmp_path, hosts))
    refused = {host for host, why in played.failures if "libvirt doesn't answer" in why}
    assert refused == {"broken", "none"}
    assert {host for host, _ in played.failures} == {*hosts}, "for their missing package"


# It warns of all storages but /quiet, and notes the words that it is given.
CALIBRATES = """\
#!/usr/bin/python3
import json, sys
with open("{words}", "a") as file:
    print(*sys.argv[1:], file=file)
target = sys.argv[2]
warnings = ["a {{{{ b }}}} of 4 KiB: may do more"] if target != "/quiet" else []
config = "[storage.x]\\npath = " + json.dumps(target) + "\\ncapacity = 5"
print(json.dumps({{"warnings": warnings, "config": config}}))
"""


def test_warnings_of_a_calibration_are_shown_and_kept(tmp_path: Path) -> None:
    words = tmp_path / "words"
    programs = {"fio": "#!/bin/sh\n", "iokeel": CALIBRATES.format(words=words)}
    for name, script in programs.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    playbook = tasks_alone(tmp_path, "calibrate", str(tmp_path))

    def calibrated(*storages: dict[str, Any]) -> tuple[str, list[str], dict[str, Any]]:
        """Calibrate; return what was said, and the comments and storages that were written."""
        hosts = {"hv1": {**LOCAL, "iokeel_calibrate": storages}}
        played = play(playbook, inventory(tmp_path, hosts))
        assert played.status == 0, played.out
        text = (tmp_path / "host_vars/hv1/iokeel_calibrated.yml").read_text()
        comments = [line for line in text.splitlines()[1:] if line.startswith("#")]
        return played.out, comments, yaml.safe_load(text)["iokeel_storage_calibrated"]

    more = {"destroy_data": True, "fill": True, "threads": 4}
    noisy = {"name": "rbd.a", "target": r"/no\x20isy", **more}
    said, comments, found = calibrated(noisy, {"name": "b", "target": "/quiet"})
    assert re.findall(r"hv1: (/.*)\"", said) == [r"/no\\x20isy: a {{ b }} of 4 KiB: may do more"]
    assert comments == ["# rbd.a: a {{ b }} of 4 KiB: may do more"]
    assert found == {
        "rbd.a": {"path": r"/no\x20isy", "capacity": 5},
        "b": {"path": "/quiet", "capacity": 5},
    }
    first, second = words.read_text().splitlines()
    assert first.split("rbd.a ")[1] == "--threads 4 --destroy-data --fill"
    assert second == "calibrate /quiet --json --name b"

    # Each storage's warnings are those of its last measurement.
    _, comments, _ = calibrated({**noisy, "target": "/quiet"}, {"name": "b", "target": "/noisy"})
    assert [line.split()[1] for line in comments] == ["b:"]


# Each would make a file in the folder of the host that says it, if the controller took it.
HOSTILE = {
    "value": [r'path = "{{ lookup(\"pipe\", \"touch FILE\") }}"', "capacity = 5"],
    "number": [r'capacity = "{{ lookup(\"pipe\", \"touch FILE\") }}"'],
    "size": ["capacity = 5", r'curve_read = [["{{ lookup(\"pipe\", \"touch FILE\") }}", 1.0]]'],
    "endless": ["capacity = Infinity"],
    "deep": ["capacity = " + 9000 * "["],
    "key": ["capacity = 5", r'iokeel_min_free_mib = "{{ lookup(\"pipe\", \"touch FILE\") }}"'],
    "warning": ["capacity = 5", 'path = "/a"', 'curve_read = [["4k", 1.0], ["1m", 0.5]]'],
}
WARNINGS = [f"so{end}iokeel_min_free_mib: \"{{{{ lookup('pipe', 'touch FILE') }}}}\"" for end in (
    "\n", "\r", "\x85", "\u2028")]  # fmt: skip


def test_a_hypervisors_words_are_never_run_on_the_controller(tmp_path: Path) -> None:
    for host, config in HOSTILE.items():
        folder = tmp_path / host
        folder.mkdir()
        said = json.dumps({"config": "\n".join(["[storage.x]", *config]), "warnings": WARNINGS})
        scripts = {"iokeel": f"cat <<'END'\n{said}\nEND", "fio": ""}
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n".replace("FILE", f"{folder}/made"))
            (folder / name).chmod(0o755)
    given = {**LOCAL, "iokeel_calibrate": [{"name": "x", "target": "/{{ 6 }}"}]}
    hosts = inventory(tmp_path, {host: given for host in HOSTILE})
    playbook = tasks_alone(tmp_path, "calibrate", f"{tmp_path}/{{{{ inventory_hostname }}}}")
    played = play(playbook, hosts)
    refused = {"value", "number", "size", "endless", "deep"}
    assert {host for host, _ in played.failures} == refused
    assert "no iokeel says" in dict(played.failures)["value"]
    show = {
        "ansible.builtin.debug": {
            "msg": "{{ iokeel_storage_calibrated }}{{ iokeel_min_free_mib | default(0) }}"
        }
    }
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [show]}]))
    play(playbook, hosts)
    assert [*tmp_path.glob("*/made")] == []
    written = {
        host: yaml.safe_load((tmp_path / f"host_vars/{host}/iokeel_calibrated.yml").read_text())
        for host in ("key", "warning")
    }
    curve = [["4k", 1.0], ["1m", 0.5]]
    assert written == {
        "key": {"iokeel_storage_calibrated": {"x": {"capacity": 5}}},
        "warning": {
            "iokeel_storage_calibrated": {"x": {"path": "/a", "capacity": 5, "curve_read": curve}}
        },
    }


def test_the_role_by_itself_refuses_what_the_playbook_refuses(tmp_path: Path) -> None:
    variables, why = REFUSED["space"]
    playbook = tmp_path / "play.yml"
    alone = {"hosts": "all", "gather_facts": False, "roles": ["iokeel"]}
    playbook.write_text(yaml.safe_dump([alone]))
    hosts = {"hv1": {**LOCAL, **variables}}
    ((_, message),) = play(playbook, inventory(tmp_path, hosts), "--check").failures
    assert why in message


def test_facts_of_a_cache_are_gathered_anew(tmp_path: Path) -> None:
    variables, why = REFUSED["space"]
    earlier = {"distribution": "Plan9", "service_mgr": "init", "cacheable": True}
    role = {"name": "iokeel", "tasks_from": "preflight"}
    tasks = [{"ansible.builtin.set_fact": earlier}, {"ansible.builtin.import_role": role}]
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    hosts = {"hv1": {**LOCAL, **variables}}
    ((_, message),) = play(playbook, inventory(tmp_path, hosts)).failures
    assert why in message
    assert "Plan9" not in message


DPKG = """\
The following NEW packages will be installed:
  iokeel
Unpacking iokeel (0.1.0~deb12) ...
dpkg: error processing archive iokeel_0.1.0~deb12_amd64.deb (--unpack):
 {}
Errors were encountered while processing:
 iokeel
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
REASONS = (
    "unable to create '/etc/iokeel/agent.toml.dpkg-new': Read-only file system",
    "trying to overwrite '/usr/bin/iokeel', which is also in package other 1",
    "installed iokeel package post-installation script subprocess returned error exit status 1",
)


def test_the_reason_that_dpkg_gives_is_told(tmp_path: Path) -> None:
    hosts = {}
    for number, reason in enumerate(REASONS):
        apt = {"stdout_lines": DPKG.format(reason).splitlines(), "stderr_lines": [], "stderr": ""}
        hosts[f"hv{number}"] = {**LOCAL, "__iokeel_apt": apt}
    tasks = [{"ansible.builtin.fail": {"msg": "{{ __iokeel_apt_says }}"}}]
    files = [f"{ROLE}/vars/main.yml"]
    alone = {"hosts": "all", "gather_facts": False, "vars_files": files, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([alone]))
    said = dict(play(tmp_path / "play.yml", inventory(tmp_path, hosts)).failures)
    error, end = (line for line in DPKG.splitlines() if line.startswith(("dpkg: ", "E: ")))
    assert said == {f"hv{n}": f"{error}; {reason}; {end}" for n, reason in enumerate(REASONS)}


# When the agent last started and reloaded, and when its files were written: the configuration, what
# lets it out to etcd, and its command, which keeps the modification time that it was built with.
READ = {
    "first": ("ExecMainStartTimestamp=\nStateChangeTimestamp=\n", 0, 0, 0, False),
    "read": ("ExecMainStartTimestamp=@100\nStateChangeTimestamp=@100\n", 90, 90, 99, False),
    "reloaded": ("StateChangeTimestamp=@200\nExecMainStartTimestamp=@100\n", 150, 90, 99, False),
    "unread": ("ExecMainStartTimestamp=@100\nStateChangeTimestamp=@100\n", 150, 90, 99, True),
    "let out": ("ExecMainStartTimestamp=@100\nStateChangeTimestamp=@100\n", 90, 150, 99, True),
    # A reload goes on with the old version.
    "old": ("ExecMainStartTimestamp=@100\nStateChangeTimestamp=@200\n", 90, 90, 150, True),
    "never ran": ("ExecMainStartTimestamp=\nStateChangeTimestamp=\n", 90, 90, 99, True),
}


def test_an_agent_that_has_not_read_its_files_or_is_of_another_version_is_told(
    tmp_path: Path,
) -> None:
    tasks = yaml.safe_load((ROLE / "tasks/configure.yml").read_text())
    (write,) = (task for task in tasks if "__iokeel_is_unread" in task.get("vars", {}))
    msg = "unread: {{ __iokeel_is_unread }}"
    fail = {"ansible.builtin.fail": {"msg": msg}, "vars": write["vars"]}
    hosts = {}
    for name, (since, *written, _) in READ.items():
        stats = [
            {"stat": {"exists": True, key: float(at)} if at else {"exists": False}}
            for key, at in zip(("mtime", "mtime", "ctime"), written, strict=True)
        ]
        hosts[name.replace(" ", "-")] = {
            **LOCAL,
            "__iokeel_since": {"stdout": since},
            "__iokeel_written_at": {"results": stats},
        }
    alone = {"hosts": "all", "gather_facts": False, "tasks": [fail]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([alone]))
    said = dict(play(tmp_path / "play.yml", inventory(tmp_path, hosts)).failures)
    assert said == {name.replace(" ", "-"): f"unread: {row[-1]}" for name, row in READ.items()}


# What the agent says of guests a and b, which run on each of these hosts.
FAULT = {"where": "drive a/vda", "what": "limits couldn't be set", "mend": "see QEMU's log"}
SEEN: dict[str, list[dict[str, Any]] | None] = {
    "hung": [{"domain": "a", "policy_error": None, "drives": [{"error": FAULT}]}],
    "blind": [],
    "all-hung": [],
    "without-virsh": [],
    "dead": None,
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The role's last look at hosts whose programs say what they are told to."""
    folder = tmp_path_factory.mktemp("verified")
    for host, seen in SEEN.items():
        said = {"virsh": "a\nb", "systemctl": "ActiveState=active", "journalctl": "its last words"}
        if seen is not None:
            said["iokeel"] = json.dumps(seen)
        (folder / host).mkdir()
        for program, words in said.items():
            (folder / host / program).write_text(f"#!/bin/sh\ncat <<'END'\n{words}\nEND\n")
            (folder / host / program).chmod(0o755)
    virsh = folder / "all-hung" / "virsh"
    hangs = '#!/bin/sh\ncase "$*" in *domblkerror*) exec sleep 60; esac\n'
    virsh.write_text(virsh.read_text().replace("#!/bin/sh\n", hangs))
    (folder / "dead" / "iokeel").symlink_to("/bin/false")
    # libvirt's own test driver, by the binding: its guest's disks have no errors to tell of.
    bare, python = folder / "without-virsh", Path(sys.executable)
    (bare / "virsh").write_text("#!/bin/sh\nexit 127\n")
    (bare / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (bare / "python3").chmod(0o755)
    playbook = tasks_alone(folder, "verify", f"{folder}/{{{{ inventory_hostname }}}}")
    hosts = {host: {**LOCAL} for host in SEEN}
    hosts["without-virsh"]["iokeel_libvirt"] = {"uri": "test:///default"}
    return play(playbook, inventory(folder, hosts))


def test_a_guest_that_hangs_is_named_and_ends_no_deployment(verified: Played) -> None:
    assert verified.recap["hung"]["failed"] == 0
    assert "drive a/vda: limits couldn't be set: see QEMU's log" in verified.out
    assert "hung: guests that run, but that the agent does not see: b: `journalctl" in verified.out
    # Nor do all guests of a host
    assert verified.recap["all-hung"]["failed"] == 0
    assert "all-hung: guests that run, but that the agent does not see: a, b: `jour" in verified.out


def test_an_agent_that_sees_no_guest_or_does_not_answer_ends_the_deployment(
    verified: Played,
) -> None:
    assert dict(verified.failures) == {
        "blind": "blind: the agent sees none of the guests that run: a, b",
        "without-virsh": "without-virsh: the agent sees none of the guests that run: test",
        "dead": "dead: the agent does not answer:  (its last words)",
    }


POLICIES: dict[str, tuple[dict[str, Any], str]] = {
    "guest": ({"tst": {"limit": 5}}, "tst: not on this host, and not on exactly one"),
    "attribute": ({"test": {"limt": 5}}, "policy of test: attribute 'limt' is not known; did you"),
    "value": ({"test": {"limit": -1}}, "policy of test: "),
    "drive": ({"test": {"drives": {"vdz": {"limit": 5}}}}, "the policy names vdz, but there is no"),
    "class": ({"test": {"class": "golden"}}, "class 'golden' is not known"),
    "no": ({"test": {"tenant": False}}, "tenant is false in YAML: quote its name, or leave it"),
    "null": ({"test": {"drives": {"vda": {"class": None}}}}, "class is null in YAML: quote its"),
    "list": ({"test": {"drives": [{"target": "vda"}]}}, "drives is a list: write each as TARGET:"),
    "number": ({"test": {"drives": {"vda": 500}}}, "drive vda is 500: write it as {limit: 500}"),
    "space": ({"test": {"burst seconds": 5}}, "policy of test: 'burst seconds' is not a name"),
}  # fmt: skip
GOOD = {"test": {"tenant": "acme", "drives": {"vda": {"limit": 500, "burst_seconds": 9}}}}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """policies.yml on hosts that each have libvirt's test driver, with its guest `test`."""
    driver = {**LOCAL, "iokeel_libvirt": {"uri": "test:///default"}}
    hosts = {name: {**driver, "iokeel_policies": given} for name, (given, _) in POLICIES.items()}
    hosts["good"] = {**driver, "iokeel_policies": GOOD}
    return play("policies.yml", inventory(tmp_path_factory.mktemp("policies"), hosts))


@pytest.mark.parametrize("name", POLICIES)
def test_a_bad_policy_is_refused(policies: Played, name: str) -> None:
    (message,) = [message for host, message in policies.failures if host == name]
    assert POLICIES[name][1] in message


def test_no_policy_is_set_if_any_is_refused_on_any_host(policies: Played) -> None:
    assert policies.status != 0
    assert "TASK [iokeel : Set the policies]" not in policies.out
    # The difference was shown before that.
    assert '+<policy tenant="acme">' in policies.out
    assert '+  <drive burst-seconds="9" limit="500" target="vda" />' in policies.out


GUEST = """<domain type="test"><name>{}</name><uuid>{}</uuid><memory>8192</memory>
    <os><type>hvm</type></os><devices>
    <disk type="file"><source file="/a"/><target dev="vda" bus="virtio"/></disk>
    </devices></domain>"""


def test_a_guest_that_has_migrated_gets_its_policy_where_it_is_now(tmp_path: Path) -> None:
    there = {"hv1": ["db1", "same"], "hv2": ["db2", "same"], "hv3": ["db3", "db4"]}
    given = {
        "hv1": {"db1": {"limit": 1}, "db3": {"limit": 3}, "same": {"limit": 5}},
        "hv2": {"db4": None, "same": {"limit": 6}},
    }
    hosts: dict[str, dict[str, Any]] = {}
    for host, names in there.items():
        guests = [
            GUEST.format(n, f"6695eb01-f6a4-8304-79aa-97f2502e19{ord(host[2]):02x}") for n in names
        ]
        unique = "".join(g.replace("79aa", f"79a{i}") for i, g in enumerate(guests))
        (tmp_path / f"{host}.xml").write_text(f"<node>{unique}</node>")
        uri = {"uri": f"test://{tmp_path}/{host}.xml"}
        hosts[host] = {**LOCAL, "iokeel_libvirt": uri}
        if host in given:
            hosts[host]["iokeel_policies"] = given[host]
    played = play("policies.yml", inventory(tmp_path, hosts), "--check")
    assert played.status == 0, played.out
    said = " ".join(played.out.split())
    assert "db3 is on hv3 now, and gets its policy there" in said
    assert "db4 is on hv3 now" in said
    checked = played.out.partition("TASK [iokeel : Check all")[2].partition("TASK [iokeel : Set")[0]
    done = {*re.findall(r"^(\w+): \[(hv.)\] => \(item=(\w+)\)", checked, re.MULTILINE)}
    assert done == {
        ("changed", "hv1", "db1"), ("changed", "hv1", "same"), ("changed", "hv2", "same"),
        ("changed", "hv3", "db3"), ("ok", "hv3", "db4"),
    }  # fmt: skip
    hosts["hv1"]["iokeel_policies"] = {"db9": {"limit": 1}}
    played = play("policies.yml", inventory(tmp_path, hosts), "--check")
    assert dict(played.failures).keys() == {"hv1"}
    assert "db9: not on this host, and not on exactly one other host of" in played.out


def test_a_class_that_covers_a_disk_that_cant_be_limited_is_told(tmp_path: Path) -> None:
    driver = tmp_path / "driver.xml"
    driver.write_text("""<node><domain type="test"><name>db1</name>
        <uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><memory>8192</memory>
        <os><type>hvm</type></os><devices>
        <disk type="file"><source file="/a"/><target dev="vda" bus="virtio"/></disk>
        <disk type="vhostuser"><driver name="qemu" type="raw"/>
        <source type="unix" path="/run/spdk.sock"/><target dev="vdb" bus="virtio"/></disk>
        </devices></domain></node>""")
    given = {"db1": {"class": "gold"}}
    host = {**LOCAL, "iokeel_libvirt": {"uri": f"test://{driver}"}, "iokeel_policies": given}
    played = play("policies.yml", inventory(tmp_path, {"hv1": host}), "--check")
    assert played.status == 0, played.out
    said = " ".join(played.out.split())
    assert said.count("policy of db1: vdb can't be limited (the I/O of a vhost-user disk") == 1
