"""The rpm package, built for this machine's Python, and installed into this machine's root.

The root is an overlay that is thrown away. As on EL 9, its python3 is 3.9, with another one beside
it. The tests are steps of one story, in this order.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import iokeel
from testing.lab.roots.namespace import Namespace
from testing.packages import archive
from testing.packages.rpm import SPEC, rpm
from tests.deploy.test_archive import CONFIG, HOOK, good, status, there

SETUP = "/usr/libexec/iokeel/setup"
PYTHON = "/usr/bin/python3.11"
OLD = f"iokeel-{iokeel.__version__}-1.x86_64.rpm"
NEW = f"iokeel-{iokeel.__version__}-2.x86_64.rpm"
# No dependency is known to rpm here, but each is there.
INSTALL = "rpm --upgrade --nodeps /rpms/"
OLD_PYTHON = """\
#!/bin/sh
case $2 in
    *version_info*) echo 3.9 ;;
    *) exit 1 ;;
esac
"""
SYSTEMCTL = """\
#!/bin/sh
[ "$*" = --version ] && echo 'systemd 252 (252)' || echo "$*" >>/tmp/systemctl
"""
# Lists that setup writes
LISTS = ("SHA256SUMS", "folders")
MISSING = [name for name in ("rpmbuild", "rpmlint") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: agent/prerequisites rpm rpmlint"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, unpacked and not, with its package and one of a later release."""
    to = tmp_path_factory.mktemp("rpm")
    source = archive.archive(to, [("3.11", "x86_64")])
    subprocess.run(["tar", "--extract", f"--file={source}", f"--directory={to}"], check=True)
    (to / f"iokeel-{iokeel.__version__}").rename(to / "archive")
    later = SPEC.read_text().replace("Release: 1\n", "Release: 2\n")
    for spec in ("", later):
        rpm(source, to, "x86_64", spec)
    return to


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    binds = {
        Path("/archive"): (folder / "archive", "ro"),
        Path("/rpms"): (folder, "ro"),
        # Nothing of this machine's /tmp is there.
        Path("/tmp"): (tmp_path_factory.mktemp("tmp"), "rw"),
    }
    with Namespace(tmp_path_factory.mktemp("root"), Path("/"), binds) as running:
        # Whoever uses this machine may have installed the distribution's binding.
        good(running, "rm -rf /usr/lib/python3/dist-packages/libvirt*")
        running.run(["tee", "/tmp/old"], OLD_PYTHON)
        good(running, "rm /usr/bin/python3; install /tmp/old /usr/bin/python3")
        yield running


@pytest.fixture(scope="module")
def before(root: Namespace) -> set[str]:
    return there(root)


@pytest.fixture(scope="module")
def from_archive(root: Namespace, folder: Path, before: set[str]) -> dict[str, tuple[int, bytes]]:
    """What an installation of the archive has, which is then removed."""
    good(root, "/archive/setup install --without-libvirt")
    found = installed(root, folder)
    code, said = status(root, f"{INSTALL}{OLD}")
    assert code != 0
    assert "it is here from the archive: /usr/lib/iokeel/setup remove first" in said
    assert installed(root, folder) == found
    good(root, "/usr/lib/iokeel/setup purge")
    return found


def installed(root: Namespace, folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modes and contents of the archive's files and the libraries, by their paths."""
    top = Path(f"/proc/{root.pid}/root")
    places = [file.relative_to(folder / "archive/files") for file in archived(folder)]
    places += [file.relative_to(top) for file in (top / "usr/lib/iokeel").rglob("*")]
    found = {}
    for place in places:
        debians = Path(str(place).replace("zsh/site-functions", "zsh/vendor-completions"))
        packed = top / f"{place}.gz"
        file = next(each for each in (top / debians, packed, top / place) if each.exists())
        if file.is_file() and file.name not in LISTS and file.suffix != ".pyc":
            content = file.read_bytes()
            content = gzip.decompress(content) if file == packed else content
            found[f"/{place}"] = (file.stat().st_mode, content)
    return found


def archived(folder: Path) -> list[Path]:
    return [file for file in (folder / "archive/files").rglob("*") if file.is_file()]


def asked_of_systemd(root: Namespace) -> list[str]:
    """Return what systemctl was told since the last call."""
    return good(root, "cat /tmp/systemctl; rm /tmp/systemctl").splitlines()


def test_rpmlint_has_nothing_to_say(folder: Path) -> None:
    config = SPEC.with_name("rpmlint.toml")
    command: list[str | Path] = ["rpmlint", f"--config={config}", folder / OLD, SPEC]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    assert "1 packages and 1 specfiles checked; 0 errors, 0 warnings" in said, said


def test_a_second_build_is_the_same(folder: Path, tmp_path: Path) -> None:
    (source,) = folder.glob("*.tar.gz")
    again = rpm(source, tmp_path, "x86_64")
    assert again.name == OLD
    assert again.read_bytes() == (folder / OLD).read_bytes()


def test_a_host_without_libvirts_binding_is_told_the_mend(
    root: Namespace, from_archive: dict[str, tuple[int, bytes]]
) -> None:
    root.run(["tee", "/tmp/fake"], SYSTEMCTL)
    good(root, "install /tmp/fake /usr/bin/systemctl; mkdir -p /run/systemd/system")
    # Without a compiler, none can be built.
    said = good(root, f"CC=/bin/false {INSTALL}{OLD}")
    assert f"{PYTHON} has no libvirt: install python3-libvirt, or what builds it" in said
    assert f"nothing was changed\niokeel: mend that, then: {SETUP} install\n" in said
    assert status(root, "test -e /usr/bin/iokeel -o -e /usr/lib/iokeel")[0] == 1
    good(root, f"{SETUP} install --without-libvirt")
    assert asked_of_systemd(root) == ["daemon-reload", "--quiet preset iokeel.service"]


def test_its_files_are_those_of_the_archives_installation(
    root: Namespace, folder: Path, from_archive: dict[str, tuple[int, bytes]]
) -> None:
    unit = "/usr/lib/systemd/system/iokeel.service"
    found = installed(root, folder)
    assert found.keys() == from_archive.keys()
    # The archive was installed while no systemd was there.
    assert b"RestartSteps" in from_archive[unit][1]
    assert b"RestartSteps" not in found[unit][1]
    assert {name for name in found if found[name] != from_archive[name]} == {unit}


def test_its_list_has_the_archives_files_and_what_makes_the_rest(
    root: Namespace, folder: Path
) -> None:
    listed = good(root, "rpm --query --list iokeel").splitlines()
    files = {f"/{file.relative_to(folder / 'archive/files')}" for file in archived(folder)}
    files -= {"/usr/lib/iokeel/50-iokeel"}
    names = {name.removesuffix(".gz") for name in listed}
    assert files - names == set()
    folders = {str(parent) for file in files for parent in Path(file).parents}
    own = {name for name in names if name.startswith("/usr/libexec/iokeel")}
    others = names - files - folders - own
    assert others == {"/usr/lib/iokeel"}
    assert good(root, "rpm --query --configfiles iokeel") == f"{CONFIG}\n"
    assert good(root, "rpm --verify --nodeps iokeel") == ""


def test_the_command_the_policy_check_and_the_hook_run(root: Namespace) -> None:
    assert good(root, "iokeel --version") == f"iokeel {iokeel.__version__}\n"
    assert good(root, "head -1 /usr/bin/iokeel") == f"#!{PYTHON} -IS\n"
    policy = "<policy xmlns='urn:iokeel:policy:1'><drive target='vda' limit='500'/></policy>"
    good(root, f'echo "{policy}" | iokeel policy check /dev/stdin')
    code, said = status(
        root, f'echo "{policy}" | sed s/limit/limt/ | iokeel policy check /dev/stdin'
    )
    assert (code, "attribute 'limt' is not known" in said) == (1, True)
    good(root, f"echo '<domain/>' | {HOOK} db1 prepare begin -")
    assert good(root, "/usr/lib/iokeel/setup verify").startswith(f"{iokeel.__version__} ")


def test_the_archive_is_refused_beside_it(root: Namespace) -> None:
    for setup in ("/archive/setup install", "/archive/setup purge", "/usr/lib/iokeel/setup remove"):
        code, said = status(root, setup)
        assert (code, "it is here as a package: dnf remove iokeel first" in said) == (1, True), said


def test_an_upgrade_stops_nothing_and_keeps_the_configuration(root: Namespace) -> None:
    """The Python and the lack of a binding are those of the version before."""
    good(root, "ln -sf python3.11 /usr/bin/python3")
    said = good(root, f"echo '# mine' >{CONFIG}; CC=/bin/false {INSTALL}{NEW}")
    assert "iokeel:" not in said
    assert good(root, "rpm --query --queryformat '%{RELEASE}' iokeel") == "2"
    assert good(root, f"/usr/lib/iokeel/setup verify >/dev/null; cat {CONFIG}") == "# mine\n"
    assert good(root, "head -1 /usr/bin/iokeel") == f"#!{PYTHON} -IS\n"
    assert asked_of_systemd(root) == ["daemon-reload", "try-restart iokeel.service"]


def test_an_agent_that_cant_read_the_configuration_is_not_started(root: Namespace) -> None:
    said = good(root, f"echo '[x]' >{CONFIG}; {INSTALL}{NEW} --replacepkgs")
    assert "the old agent runs on; mend that, then: systemctl restart iokeel" in said
    assert asked_of_systemd(root) == ["daemon-reload"]


def test_a_removal_keeps_a_changed_configuration_and_a_purge_leaves_no_trace(
    root: Namespace, before: set[str]
) -> None:
    good(root, "mkdir -p -m 700 /var/lib/iokeel; rpm --erase iokeel")
    assert asked_of_systemd(root) == ["--quiet disable --now iokeel.service", "daemon-reload"]
    left = {line.split()[-1] for line in there(root) - before}
    assert {path for path in left if path.startswith("/")} == {
        "/etc/iokeel",
        f"{CONFIG}.rpmsave",
        "/var/lib/iokeel",
    }
    # With the distribution's binding
    good(root, "echo >/usr/lib/python3/dist-packages/libvirt.py")
    said = good(root, f"CC=/bin/false {INSTALL}{NEW}")
    assert "iokeel:" not in said
    good(root, f"{SETUP} purge; rpm --erase iokeel")
    assert there(root) == before
