"""The folder for a benchmark's cgroups, on hosts with either version."""

from __future__ import annotations

from pathlib import Path

from testing.lab.blkio import root


def test_groups_are_blkios_where_it_is_and_else_of_version_2(tmp_path: Path) -> None:
    assert root(tmp_path) == tmp_path
    blkio = tmp_path / "blkio"
    blkio.mkdir()
    assert root(tmp_path) == tmp_path  # a folder that somebody made
    (blkio / "blkio.throttle.io_serviced").touch()
    assert root(tmp_path) == blkio
