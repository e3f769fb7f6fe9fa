"""Debian 12's package, built and installed in a root that isn't booted: a part of `.ci/run`.

What takes a booted machine, a guest and systemd is in test_packages.py and test_upgrade.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel import __version__
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.lab.roots.namespace import Namespace
from testing.packages.agent import DISTRIBUTIONS, build_root, packages
from testing.packages.folder import LATER, later_folder

CODENAME = "bookworm"
VERSION = f"{__version__}~{DISTRIBUTIONS[CODENAME]}"
HOOK = "/etc/libvirt/hooks/qemu.d/50-iokeel"
LIBRARIES = "/usr/lib/iokeel"
# As the command looks for them (debian/command).
PYTHON = ("/usr/bin/python3", "-IS", "-c")
PATH = f"import sys; sys.path[:0] = ['{LIBRARIES}']; "
# The hash is of "secret", of the least cost.
WEB = """\
basic_auth_users:
  prometheus: $2y$04$QI8x.k6CxTYw88jJT1DVtujWItW9VkX75yT9y9sA.tX9yoNg8el1i
"""

# Its first test builds the packages, unless the cache folder has them.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the packages."""
    return packages(CODENAME)


@pytest.fixture(scope="module")
def folder(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as `old.deb`, and the same with a later version as `new.deb`."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "present").mkdir()
    (deb,) = built.glob("iokeel_*.deb")
    shutil.copy(deb, folder / "present")
    (later,) = later_folder(folder / "later", folder / "present").glob("*.deb")
    shutil.copy(deb, folder / "old.deb")
    shutil.copy(later, folder / "new.deb")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def root(folder: Path) -> Iterator[Namespace]:
    """A Debian on which apt has installed the package."""
    scratch = Path(tempfile.mkdtemp(prefix="lab-"))
    with Namespace(scratch, build_root(CODENAME), {Path("/packages"): (folder, "ro")}) as root:
        install(root, "old.deb")
        yield root


def install(root: Namespace, deb: str) -> None:
    """Install a package by apt, without any source of others."""
    root.run(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--quiet=2", "--yes",
         "--no-install-recommends", "--allow-downgrades", f"/packages/{deb}"],
        timeout=300,
    )  # fmt: skip


def test_names_of_the_packages_have_the_version(built: Path) -> None:
    names = {file.name for file in built.iterdir() if file.suffix in (".deb", ".whl")}
    assert names == {f"iokeel_{VERSION}_amd64.deb", f"iokeel-{__version__}-py3-none-any.whl"}


def test_the_command_says_its_version_and_takes_the_default_configuration(root: Namespace) -> None:
    assert root.run(["iokeel", "--version"]).stdout == f"iokeel {__version__}\n"
    done = root.run(["iokeel", "agent", "--check"])
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("name", ["bcrypt", "yaml", "pydantic", "aiohttp", "lxml.etree"])
def test_libraries_are_the_packages_own(root: Namespace, name: str) -> None:
    done = root.run([*PYTHON, f"{PATH}import {name}; print({name}.__file__)"])
    assert done.stdout.startswith(f"{LIBRARIES}/{name.partition('.')[0]}")


def test_passwords_for_metrics_are_read_by_the_packages_own_libraries(root: Namespace) -> None:
    config = "[agent]\nmetrics_address = '127.0.0.1:9632'\nmetrics_web_config = '/root/web.yml'\n"
    root.run(["tee", "/root/web.yml"], WEB)
    root.run(["chmod", "600", "/root/web.yml"])
    root.run(["tee", "/root/agent.toml"], config)
    done = root.run(["iokeel", "agent", "--check", "--config", "/root/agent.toml"], check=False)
    assert (done.returncode, "can't be" in done.stderr) == (0, False)
    root.run(["tee", "/root/web.yml"], WEB.replace("$2y$", "2y"))
    done = root.run(["iokeel", "agent", "--check", "--config", "/root/agent.toml"], check=False)
    assert done.returncode == 2
    assert "/root/web.yml" in done.stderr


def test_the_law_is_compiled(root: Namespace) -> None:
    done = root.run([*PYTHON, f"{PATH}import iokeel.core.decide as law; print(law.__file__)"])
    assert done.stdout.endswith(".so\n")


def test_the_hook_lets_a_guest_start_without_an_agent(root: Namespace) -> None:
    xml = f"<domain><metadata><policy xmlns='{NAMESPACE}'/></metadata></domain>"
    done = root.run([HOOK, "db1", "prepare", "begin", "-"], xml)
    assert (done.stdout, "it takes over once the guest runs" in done.stderr) == ("", True)


def test_systemd_takes_the_unit(root: Namespace) -> None:
    unit = "/lib/systemd/system/iokeel.service"
    done = root.run(["systemd-analyze", "verify", "--man=no", unit])
    assert (done.stdout, done.stderr) == ("", "")


def test_lintian_and_dpkg_find_nothing(root: Namespace) -> None:
    assert root.run(["lintian", "--fail-on", "error,warning", "/packages/old.deb"]).stdout == ""
    assert root.run(["dpkg", "--verify", "iokeel"]).stdout == ""


def test_an_interrupted_dpkg_is_finished_by_the_next(root: Namespace) -> None:
    kill = """
        dpkg --force-unsafe-io --install /packages/new.deb & dpkg=$!
        until dpkg-query --show --showformat='${db:Status-Status}' iokeel | grep -q half-installed
        do kill -0 $dpkg; done
        kill -KILL $dpkg"""
    root.run(["bash", "-ec", kill])
    status = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", "iokeel"]
    assert root.run(status).stdout == "half-installed"
    root.run(["dpkg", "--install", "/packages/new.deb"], timeout=300)
    assert root.run(["iokeel", "--version"]).stdout == f"iokeel {LATER}\n"
    assert root.run(["dpkg", "--verify", "iokeel"]).stdout == ""
    # Unpacked, but not configured: the other half.
    root.run(["dpkg", "--unpack", "/packages/old.deb"], timeout=300)
    root.run(["dpkg", "--configure", "--pending"], timeout=300)
    assert root.run(["iokeel", "--version"]).stdout == f"iokeel {__version__}\n"
    assert root.run(status).stdout == "installed"


def test_purge_leaves_nothing(root: Namespace) -> None:
    root.run(["apt-get", "purge", "--quiet=2", "--yes", "iokeel"], timeout=300)
    left = root.run(["find", "/etc", "/usr", "/var/lib/iokeel", "-name", "*iokeel*"], check=False)
    assert left.stdout == ""
