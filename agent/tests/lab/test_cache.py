"""The cache: a build counts once, whole, and for one key."""

import threading
import time
from pathlib import Path

import pytest

from testing.lab.cache import cache_dir, cached


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOKEEL_CACHE", str(tmp_path))


def test_same_key_is_built_once() -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "content").write_text("whole")

    first, second = cached("thing", ["a", b"b"], build), cached("thing", ["a", b"b"], build)
    assert first == second
    assert (first / "content").read_text() == "whole"
    assert len(builds) == 1


def test_parts_of_a_key_do_not_run_together() -> None:
    folders = {cached("thing", key, lambda _: None) for key in (["ab", "c"], ["a", "bc"], ["abc"])}
    assert len(folders) == 3


def test_failed_build_leaves_nothing_and_can_be_repeated() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached("thing", ["a"], fail)
    assert not [path for path in cache_dir().rglob("*") if path.name == "half"]
    again = cached("thing", ["a"], lambda folder: (folder / "whole").touch())
    assert [path.name for path in again.iterdir()] == ["whole"]


def test_what_a_killed_build_left_never_counts() -> None:
    final = cached("thing", ["a"], lambda _: None)
    (final / "half").touch()
    final.rename(final.with_name(f".{final.name}.building"))
    assert not list(cached("thing", ["a"], lambda _: None).iterdir())


def test_two_at_once_build_once() -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        time.sleep(0.2)

    threads = [threading.Thread(target=cached, args=("thing", ["a"], build)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_folder_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IOKEEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/iokeel"
