"""The archive, built for this machine's Python, and installed into this machine's root.

The root is an overlay that is thrown away. Debian 12's package refuses to be installed beside the
archive. The tests are steps of one story, in this order.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import iokeel
from testing.lab.roots.namespace import Namespace
from testing.packages import archive
from testing.packages.agent import packages

SETUP = "/usr/lib/iokeel/setup"
CONFIG = "/etc/iokeel/agent.toml"
HOOK = "/etc/libvirt/hooks/qemu.d/50-iokeel"
NEW_PAGE = "/usr/share/man/man1/iokeel-new.1"
OLD_PAGE = "/usr/share/man/man1/iokeel-top.1"
# Without building libvirt's binding
QUICKLY = "/archive/setup install --without-libvirt"
ABSENT = "not installed from an archive"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, unpacked."""
    to = tmp_path_factory.mktemp("archive")
    made = archive.archive(to, [("3.11", "x86_64")])
    subprocess.run(["tar", "--extract", f"--file={made}", f"--directory={to}"], check=True)
    return to / f"iokeel-{iokeel.__version__}"


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    # Nothing of this machine's /tmp is there.
    temporary = tmp_path_factory.mktemp("tmp")
    binds = {
        Path("/archive"): (folder, "ro"),
        Path("/packages"): (packages("bookworm"), "ro"),
        Path("/tmp"): (temporary, "rw"),
    }
    with Namespace(tmp_path_factory.mktemp("root"), Path("/"), binds) as running:
        # Whoever uses this machine may have installed the distribution's binding.
        good(running, "rm -rf /usr/lib/python3/dist-packages/libvirt*")
        yield running


@pytest.fixture(scope="module")
def before(root: Namespace) -> set[str]:
    return there(root)


def status(root: Namespace, script: str) -> tuple[int, str]:
    """Run a script in the root; return its status, and what it said."""
    done = root.run(["sh", "-euc", f"{{ {script}\n}} 2>&1"], timeout=300, check=False)
    return done.returncode, done.stdout


def good(root: Namespace, script: str) -> str:
    code, said = status(root, script)
    assert code == 0, said
    return said


def there(root: Namespace) -> set[str]:
    """Return all that an installation could have added: paths, with modes and owners, and groups.

    Other programs may change the machine's root meanwhile.
    """
    where = "find /etc /usr /var -xdev -path /var/cache -prune -o -path '*iokeel*' -printf"
    folders = "cd /archive/files; find . -mindepth 1 -type d -printf '/%P\\n' | xargs ls -d"
    script = f"{where} '%M %U:%G %p\\n'; getent group iokeel || true; {folders} 2>/dev/null || true"
    return {*good(root, script).splitlines()}


def test_a_python_that_is_too_old_or_has_no_libraries_is_refused_with_the_mend(
    root: Namespace, before: set[str]
) -> None:
    for version, why in {
        "3.9": "is Python 3.9, and iokeel needs 3.11: install python3.11 or later, and name it by",
        "3.10": "is Python 3.10, and iokeel needs 3.11",
        "3.99": "no libraries for Python 3.99 on x86_64: name another Python by --python, or",
    }.items():
        good(root, f"printf '#!/bin/sh\\necho {version}\\n' >/tmp/python; chmod +x /tmp/python")
        code, said = status(root, "/archive/setup install --python /tmp/python")
        assert (code, why in said) == (1, True), said
    code, said = status(root, "/archive/setup install --python /nonexistent")
    assert (code, "/nonexistent doesn't run: install Python 3.11" in said) == (1, True), said
    assert there(root) == before


def test_a_python_without_libvirt_is_refused_with_the_mend(
    root: Namespace, before: set[str]
) -> None:
    # Without a compiler, none can be built.
    code, said = status(root, "CC=/bin/false /archive/setup install")
    assert code == 1
    assert "/usr/bin/python3 has no libvirt: install python3-libvirt, or what builds it" in said
    assert said.endswith("iokeel: nothing was changed\n")
    assert there(root) == before


def test_an_installation_that_breaks_off_is_told_and_mended_by_another(
    root: Namespace, before: set[str]
) -> None:
    assert status(root, "sh /archive/setup verify") == (1, f"iokeel: {ABSENT}\n")
    # The program that makes the group fails.
    breaks = "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/bin/systemd-sysusers; "
    breaks += "chmod +x /usr/local/bin/systemd-sysusers"
    code, said = status(root, f"{breaks}; PATH=/usr/local/bin:$PATH {QUICKLY}")
    assert (code, said) == (1, "iokeel: not finished: mend that, and run this again\n")
    code, said = status(root, f"rm /usr/local/bin/systemd-sysusers; {SETUP} verify")
    assert (code, "an installation broke off" in said) == (1, True)
    good(root, "/archive/setup install")
    assert good(root, f"{SETUP} verify").startswith(f"{iokeel.__version__} ")


def test_the_command_the_agents_libraries_and_the_hook_run(root: Namespace) -> None:
    assert good(root, "iokeel --version") == f"iokeel {iokeel.__version__}\n"
    good(root, "iokeel agent --check")
    policy = "<policy xmlns='urn:iokeel:policy:1'><drive target='vda' limt='1'/></policy>"
    code, said = status(root, f'echo "{policy}" | iokeel policy check /dev/stdin')
    assert (code, "attribute 'limt' is not known" in said) == (1, True)
    good(root, "sed 's/^main()/import libvirt, libvirt_qemu/' /usr/bin/iokeel >/tmp/x; sh -c '"
               "exec $(sed -n 1s/^#!//p /tmp/x) /tmp/x'")  # fmt: skip
    good(root, f"echo '<domain/>' | {HOOK} db1 prepare begin -")
    assert "iokeel:" in good(root, "getent group iokeel")


def test_its_files_are_those_of_the_archive(root: Namespace, before: set[str]) -> None:
    files = good(root, "cd /archive/files; find . -type f -printf '/%P\\n'").split()
    moved = {file.replace("zsh/site-functions", "zsh/vendor-completions") for file in files}
    good(root, f"ls {' '.join(moved)}")
    # What has another name than the archive's files is in the agent's own folder.
    new = {line.split()[-1] for line in there(root) - before if "iokeel" in line}
    parents = {str(folder) for file in moved for folder in Path(file).parents}
    rest = {path for path in new - moved - parents if not path.startswith("/usr/lib/iokeel/")}
    assert {path for path in rest if path.startswith("/")} == set()


def test_the_package_is_refused_beside_it(root: Namespace) -> None:
    code, said = status(root, "dpkg --install /packages/iokeel_*.deb")
    assert (code, f"it is here from the archive: {SETUP} remove first" in said) == (1, True), said
    assert good(root, f"{SETUP} verify").startswith(f"{iokeel.__version__} ")
    state = "${db:Status-Status}"
    assert good(root, f"dpkg-query --show --showformat='{state}' iokeel; dpkg --audit") == (
        "not-installed"
    )


def test_what_is_missing_or_changed_is_told_and_mended(root: Namespace) -> None:
    good(root, "rm /usr/lib/iokeel/iokeel/errors.py; echo >>/usr/bin/iokeel")
    code, said = status(root, f"{SETUP} verify")
    assert code == 1
    assert "usr/bin/iokeel: FAILED" in said
    assert "usr/lib/iokeel/iokeel/errors.py: FAILED" in said
    assert "run `setup install` again" in said


def test_an_upgrade_mends_keeps_the_configuration_and_deletes_what_is_gone(
    root: Namespace, folder: Path
) -> None:
    later = folder / "later"
    shutil.copytree(folder, later, ignore=shutil.ignore_patterns("later"))
    (later / "build").write_text("9.9 later\n")
    (later / f"files{OLD_PAGE}").rename(later / f"files{NEW_PAGE}")
    # As on a host with SELinux, whose policy would not let virtqemud run the hook.
    good(root, "ln -s /bin/true /usr/local/bin/selinuxenabled")
    # As on EL 9, whose own Python is too old, with another one beside it.
    good(root, "printf '#!/bin/sh\\necho 3.9\\n' >/tmp/python; chmod +x /tmp/python; "
               "mv /tmp/python /usr/bin/python3")  # fmt: skip
    said = good(
        root,
        f"echo '# mine' >{CONFIG}; "
        "PATH=/usr/local/bin:$PATH /archive/later/setup install --without-libvirt",
    )
    assert "SELinux is on, so libvirt's hook is left out" in said
    good(root, f"rm /usr/local/bin/selinuxenabled; test ! -e {HOOK}")
    assert good(root, f"{SETUP} verify; cat {CONFIG}") == "9.9 later\n# mine\n"
    good(root, f"test ! -e {OLD_PAGE} -a -e {NEW_PAGE}")
    assert good(root, "head -1 /usr/bin/iokeel") == "#!/usr/bin/python3.11 -IS\n"


def test_a_removal_keeps_the_configuration_and_a_purge_leaves_no_trace(
    root: Namespace, before: set[str]
) -> None:
    good(root, f"mkdir -p -m 700 /var/lib/iokeel; cp {SETUP} /tmp/setup; {SETUP} remove")
    left = {line.split()[-1] for line in there(root) - before}
    paths = {path for path in left if path.startswith("/")}
    assert paths == {"/etc/iokeel", CONFIG, "/var/lib/iokeel"}
    good(root, "/tmp/setup purge")
    assert there(root) == before


def test_a_host_with_the_package_is_refused(root: Namespace) -> None:
    """It stays refused until the package is purged, which would delete the state."""
    control = (
        "Package: iokeel",
        "Version: 1",
        "Architecture: all",
        "Maintainer: x",
        "Description: x",
    )
    said = "\n".join((*control, ""))
    good(root, f"mkdir -p /tmp/deb/DEBIAN /tmp/deb/etc; echo '{said}' >/tmp/deb/DEBIAN/control")
    good(root, "echo >/tmp/deb/etc/iokeel-x; echo /etc/iokeel-x >/tmp/deb/DEBIAN/conffiles")
    good(root, "dpkg-deb --build /tmp/deb /tmp/x.deb; dpkg --install /tmp/x.deb")
    why = "it is here as a package: apt-get purge iokeel first"
    for step in ("true", "dpkg --remove iokeel"):
        for action in ("install", "remove", "purge"):
            code, said = status(root, f"{step} >/dev/null; sh /archive/setup {action}")
            assert (code, why in said) == (1, True), said
    good(root, "dpkg --purge iokeel; sh /archive/setup purge")
