"""The sources of the packages: what can be known without building them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from packaging.requirements import Requirement

import iokeel
from iokeel.config.load import parse
from iokeel.config.settings import Config
from iokeel.config.tables import ClassTable, Root, Table
from testing.packages.agent import put
from testing.packages.qemu import PATCHES, build_depends, patches, prepare

AGENT = Path(__file__).parents[2]
DEBIAN = AGENT / "debian"
EXPOSURE = "3.0"
ARRIVES = b"""<domain><metadata><policy xmlns="urn:iokeel:policy:1"/></metadata><iotune>
<total_iops_sec_max>9</total_iops_sec_max></iotune></domain>"""


def runtime_lock(folder: Path = AGENT) -> str:
    command = [sys.executable, str(DEBIAN / "runtime_lock.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def installed_closure(names: set[str]) -> set[str]:
    """Return these libraries and those that they need, by what the installed ones say."""
    todo, found = {(name, "") for name in names}, set[tuple[str, str]]()
    while todo:
        name, extra = todo.pop()
        found.add((name, extra))
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                plain = re.sub("[-_.]+", "-", needed.name).lower()
                todo |= {(plain, each) for each in ("", *needed.extras)} - found
    return {name for name, _ in found}


# The libraries


def test_runtime_lock_has_what_the_agent_needs_to_run_and_no_more() -> None:
    wanted = installed_closure({"iokeel"}) - {"iokeel", "libvirt-python"}
    locked = re.findall("^([a-z0-9-]+)==", runtime_lock(), re.MULTILINE)
    assert len(locked) == len({*locked}) > 10
    # Some are needed by versions of Python that this one isn't.
    assert wanted <= {*locked}
    dev = {"pytest", "mypy", "ruff", "matplotlib", "hypothesis", "numpy", "libvirt-python"}
    assert not dev & {*locked}
    assert {*locked} - wanted <= {"typing-extensions"}


def test_runtime_lock_has_the_versions_and_hashes_of_the_lock_file() -> None:
    lock = (AGENT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[a-z])", runtime_lock())
    assert all(entry.strip() in lock for entry in entries)
    assert all("--hash=sha256:" in entry for entry in entries)


def test_runtime_lock_refuses_a_lock_file_that_lacks_a_library(tmp_path: Path) -> None:
    shutil.copy(AGENT / "pyproject.toml", tmp_path)
    lock = (AGENT / "requirements.lock").read_text()
    (tmp_path / "requirements.lock").write_text(lock.replace("\nmsgspec==", "\nother=="))
    with pytest.raises(subprocess.CalledProcessError) as raised:
        runtime_lock(tmp_path)
    assert raised.value.stderr == "runtime-lock: not in the lock file: msgspec\n"


def test_whatever_names_the_version_has_the_agents() -> None:
    page = AGENT / "cockpit"
    lock = json.loads((page / "package-lock.json").read_text())
    said = {
        "package": _newest(r"iokeel \((.*?)\)", DEBIAN / "changelog"),
        "page's package": _newest(r"cockpit-iokeel \((.*?)\)", page / "debian/changelog"),
        "docs": _newest(r"## (\S+)", AGENT.parent / "docs/changelog.md"),
        "page": json.loads((page / "manifest.json").read_text())["version"],
        "page's source": json.loads((page / "package.json").read_text())["version"],
        "page's lock": lock["version"],
        "page's lock, its root": lock["packages"][""]["version"],
    }
    assert said == dict.fromkeys(said, iokeel.__version__)


def _newest(heading: str, changelog: Path) -> str:
    """Return the version that a changelog's first heading names."""
    found = re.search(rf"^{heading}(?!\S)", changelog.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_a_package_replaces_other_versions_for_its_own_distribution_alone(tmp_path: Path) -> None:
    new, folder = tmp_path / "new", tmp_path / "packages"
    for at, names in (
        (folder, ["iokeel_0.1.0~deb12_amd64.deb", "iokeel_0.1.0~deb13_amd64.deb",
                  "iokeel-0.1.0-py3-none-any.whl", "cockpit-iokeel_0.1.0_all.deb",
                  "qemu-utils_10.0.2+deb13u1+iokeel1_amd64.deb"]),
        (new, ["iokeel_0.2.0~deb13_amd64.deb", "iokeel-0.2.0-py3-none-any.whl",
               "qemu-utils_10.0.3+deb13u2+iokeel1_amd64.deb", "build.log"]),
    ):  # fmt: skip
        at.mkdir()
        for name in names:
            (at / name).touch()
    put(new, folder)
    listed = [line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    there = {file.name for file in folder.iterdir()}
    assert there == {*listed, "SHA256SUMS"}
    assert listed == [
        "cockpit-iokeel_0.1.0_all.deb", "iokeel-0.2.0-py3-none-any.whl",
        "iokeel_0.1.0~deb12_amd64.deb", "iokeel_0.2.0~deb13_amd64.deb",
        "qemu-utils_10.0.3+deb13u2+iokeel1_amd64.deb",
    ]  # fmt: skip


# The hook


def called(hook: Path, operation: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [hook, "db1", operation, "begin", "-"], input=ARRIVES,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={"IOKEEL_CONFIG": str(hook.parent)},  # a folder can't be read, which it tells
    )  # fmt: skip
    return done.returncode, done.stdout


def packaged(folder: Path, python: str = "/usr/bin/python3") -> tuple[Path, Path]:
    """Put the package's hook into a folder. Return its file, and that of the hook it calls."""
    hook, inner = folder / "hook", folder / "50-iokeel"
    text = (DEBIAN / "hook").read_text()
    assert "/usr/lib/iokeel/50-iokeel\n" in text
    assert "/usr/bin/python3 " in text
    text = text.replace("/usr/lib/iokeel/50-iokeel", str(inner))
    hook.write_text(text.replace("/usr/bin/python3", python))
    hook.chmod(0o755)
    return hook, inner


@pytest.mark.parametrize("operation", ["prepare", "reconnect", "restore"])
def test_the_packages_hook_does_nothing_once_the_package_is_gone(
    tmp_path: Path, operation: str
) -> None:
    hook, inner = packaged(tmp_path)
    assert called(hook, operation) == (0, b"")
    shutil.copy(AGENT.parent / "libvirt-hooks/qemu.d/50-iokeel", inner)
    assert (called(hook, operation) == (0, b"")) == (operation == "reconnect")


@pytest.mark.parametrize("status", [0, 1, 2, 127])
def test_the_packages_hook_fails_only_to_refuse_a_start(tmp_path: Path, status: int) -> None:
    python = tmp_path / "python3"
    hook, inner = packaged(tmp_path, str(python))
    inner.touch()
    if status != 127:  # which is that of a program that isn't there
        python.write_text(f"#!/bin/sh\nexit {status}\n")
        python.chmod(0o755)
    for operation in ("prepare", "reconnect", "restore"):
        refuses = status == 1 and operation == "prepare"
        assert called(hook, operation)[0] == int(refuses)


# The default configuration


def shown() -> dict[str, object]:
    """Return the default configuration with all of its settings in force."""
    text = (DEBIAN / "agent.toml").read_text()
    return tomllib.loads(re.sub(r"^#(?![# ])", "", text, flags=re.MULTILINE))


def test_default_configuration_changes_nothing() -> None:
    assert parse((DEBIAN / "agent.toml").read_bytes(), "agent.toml") == Config()


def test_default_configuration_shows_settings_that_are_valid_and_the_defaults() -> None:
    text = (DEBIAN / "agent.toml").read_text()
    config = parse(re.sub(r"^#(?![# ])", "", text, flags=re.MULTILINE).encode(), "agent.toml")
    default = Config()
    assert config.libvirt == default.libvirt
    assert config.hook == default.hook
    assert config.cgroup == default.cgroup
    agent = config.agent
    assert agent.metrics_address is not None
    for name in ("socket", "state_dir", "tick_seconds", "log_level"):
        assert getattr(agent, name) == getattr(default.agent, name)


def keys(table: type[Table], where: str = "") -> Iterator[str]:
    """Yield every key that may be written, below the tables that it stands in."""
    for name, field in table.model_fields.items():
        key = f"{where}{field.alias or name}"
        below = [*tables(field.annotation)]
        yield from (keys(below[0], f"{key}.") if below else [key])


def tables(annotation: object) -> Iterator[type[Table]]:
    """Yield the tables that a key of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    for each in get_args(annotation):
        yield from tables(each)


def written(value: object, where: str, named: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys that are written in a table, without the names of tables."""
    match value:
        case _ if where.rstrip(".") in {*keys(Root)}:
            yield where.rstrip(".")
        case dict() if where.rstrip(".") in named:
            for below in value.values():
                yield from written(below, where, ())
        case dict():
            for key, below in value.items():
                yield from written(below, f"{where}{key}.", named)
        case [dict(), *_]:
            for below in value:
                yield from written(below, where, named)
        case _:
            yield where.rstrip(".")


def test_default_configuration_shows_every_key() -> None:
    named = ("classes", "ceilings", "tenants", "storage", "vm.drives")
    there = {*written(shown(), "", named)}
    # A drive has the keys of a class, and the comment there says so.
    of_class = {f"vm.drives.{key}" for key in keys(ClassTable)}
    assert {*keys(Root)} - of_class <= there
    assert there <= {*keys(Root)}


# The unit


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit without what an older systemd doesn't know."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there: install systemd")
    text = (DEBIAN / "iokeel.service").read_text()
    file = tmp_path / "iokeel.service"
    file.write_text(re.sub(r"^Restart(Steps|MaxDelaySec)=.*\n", "", text, flags=re.MULTILINE))
    return file


def test_exposure_of_the_unit_is_low(unit: Path) -> None:
    threshold = str(int(float(EXPOSURE) * 10))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={threshold}", unit],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Overall exposure level" in done.stdout


def test_whatever_a_qemu_sends_the_kernel_ends_the_agent_and_no_guest(unit: Path) -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE))
    assert (settings["MemoryHigh"], settings["MemoryMax"]) == ("768M", "1G")
    assert int(settings["TasksMax"]) <= 512
    assert settings.keys() >= {"LogRateLimitIntervalSec", "LogRateLimitBurst"}
    assert "-/run/dbus" in settings["InaccessiblePaths"].split()


def test_each_exception_of_the_sandbox_is_explained(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True
    )
    exceptions = unit.read_text().split("# The exceptions")[1]
    ours = {"Private", "Protect", "Proc", "CapabilityBoundingSet", "RestrictAddressFamilies"}
    missing = {
        name
        for name in re.findall(r"^✗ ([A-Za-z]+)=", done.stdout, re.MULTILINE)
        if name.startswith(tuple(ours)) and name not in exceptions
    }
    assert missing == set()
    assert "✗ PrivateDevices=" in done.stdout


# QEMU's packages

CONTROL = """\
# autogenerated
Source: qemu
Build-Depends: debhelper-compat (= 13), python3:any (>> 3.11),
 ninja-build,
Build-Depends-Arch: pkgconf:native, libaio-dev [linux-any],
# for x
 libarm-dev [arm64], librbd-dev\t[amd64 arm64], seabios (>> 1.16) [amd64] <!nocheck>,
Build-Depends-Indep: gcc-alpha

Package: qemu-system
Architecture: amd64

Package: qemu-system-x86
Architecture: amd64

Package: qemu-system-arm
Architecture: amd64
Build-Profiles: <!pkg.qemu.omit-system>
"""


def test_build_dependencies_of_qemu_are_those_of_this_architecture() -> None:
    assert build_depends(CONTROL) == {
        "debhelper", "python3", "ninja-build", "pkgconf", "libaio-dev", "librbd-dev", "seabios",
    }  # fmt: skip


def test_qemus_source_gets_the_series_a_version_and_x86_alone(tmp_path: Path) -> None:
    folder = tmp_path / "debian"
    (folder / "patches").mkdir(parents=True)
    (folder / "patches/series").write_text("debians.patch\n")
    version = "1:10.0.13+ds-0+deb13u1"
    (folder / "changelog").write_text(f"qemu ({version}) trixie; urgency=medium\n")
    (folder / "control").write_text(CONTROL)
    (folder / "control.mk").write_text("a := 1\nsystem-packages := arm x86 misc\n")
    series = [PATCHES / name for name in patches(PATCHES / "series")]
    prepare(tmp_path, series)
    listed = (folder / "patches/series").read_text().splitlines()
    assert listed == ["debians.patch", *(file.name for file in series)]
    assert all(
        (folder / "patches" / file.name).read_bytes() == file.read_bytes() for file in series
    )
    assert "system-packages := x86\n" in (folder / "control.mk").read_text()
    control = (folder / "control").read_text()
    assert control.startswith("# autogenerated\nSource: qemu\n")
    off = [each for each in control.split("\n\n") if "\nBuild-Profiles: <pkg.qemu.all>" in each]
    assert [each.split("\n")[0] for each in off] == ["Package: qemu-system-arm"]
    assert control.count("Build-Profiles") == 1
    ours = re.findall(r"^qemu \((.*?)\)", (folder / "changelog").read_text(), re.MULTILINE)[0]
    for lower, higher in (
        (version, ours),
        (ours, "1:10.0.13+ds-0+deb13u2"),
        (ours, "1:10.0.14+ds-0+deb13u1"),
    ):
        subprocess.run(["dpkg", "--compare-versions", lower, "lt", higher], check=True)
