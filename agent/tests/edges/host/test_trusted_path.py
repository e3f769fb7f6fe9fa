"""What a path names, and whose links may lead there."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from iokeel.host.foreign_paths import WrongLink, open_trusted

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "its/own/file"
    made.parent.mkdir(parents=True)
    made.touch()
    return made


def found(path: Path) -> int:
    """Return the inode that is found by a path."""
    handle = open_trusted(str(path))
    try:
        return os.fstat(handle).st_ino
    finally:
        os.close(handle)


def test_a_path_names_what_it_does_elsewhere(file: Path, tmp_path: Path) -> None:
    for path in (file, tmp_path / "its/./own//file", tmp_path / "its/own/../own/file", Path("/")):
        assert found(path) == path.stat().st_ino


@pytest.mark.parametrize("target", ["its/own", "./its/../its/own", "{tmp}/its/own"])
def test_folders_may_be_links_of_ones_own(file: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").symlink_to(target.format(tmp=tmp_path))
    assert found(tmp_path / "folder/file") == file.stat().st_ino


@pytest.mark.parametrize("target", ["its/own/file", "{tmp}/its/own/file", "/proc/self/cwd"])
def test_a_path_may_not_end_in_a_link(file: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target.format(tmp=tmp_path))
    (tmp_path / "folder").symlink_to(".")
    for path in (tmp_path / "link", tmp_path / "folder/link"):
        with pytest.raises(WrongLink, match=f"link is a link of user {os.geteuid()}"):
            open_trusted(str(path))


@root_only
@pytest.mark.parametrize("target", ["../its/own", "{tmp}/its/own", "/proc/self/cwd"])
@pytest.mark.parametrize("through", ["evil/link/file", "evil/link", "link/link/file"])
def test_links_of_another_user_are_refused_wherever_on_the_path(
    file: Path, tmp_path: Path, target: str, through: str
) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "link").symlink_to("evil")  # root's own
    (tmp_path / "evil/link").symlink_to(target.format(tmp=tmp_path))
    os.chown(tmp_path / "evil/link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(WrongLink, match="link is a link of user 65534"):
        open_trusted(str(tmp_path / through))


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("missing", errno.ENOENT),
        ("its/own/file/x", errno.ENOTDIR),
        ("round/x", errno.ELOOP),
        ("n" * 300, errno.ENAMETOOLONG),
    ],
)
def test_what_is_not_there_is_the_systems_error_and_leaves_nothing_open(
    file: Path, tmp_path: Path, path: str, number: int
) -> None:
    (tmp_path / "round").symlink_to("round")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        open_trusted(str(tmp_path / path))
    assert len(os.listdir("/proc/self/fd")) == before
