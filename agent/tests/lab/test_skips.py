"""Before a change lands, no test is skipped for want of something that could be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.lab.host import PROJECT

MODULE = "import pytest\npytest.skip('a package is missing', allow_module_level=True)\n"
TEST = "import pytest\ndef test_it():\n    pytest.skip({!r})\n"


def passes(folder: Path, skips: str) -> bool:
    """Run a folder's tests in a worker, and return whether that succeeds."""
    command = [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "testing.skips", str(folder)]
    environment = {**os.environ, "IOKEEL_SKIPS": skips, "PYTHONPATH": str(PROJECT / "agent")}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("test_a.py", TEST.format("this kernel has no BFQ"), True),
        ("test_a.py", TEST.format("only root can make devices"), False),
        ("test_a.py", MODULE, False),
        ("folder/conftest.py", MODULE, False),
    ],
    ids=["kernel", "right", "module", "folder"],
)
def test_a_skip_fails_unless_it_is_for_the_machine(
    tmp_path: Path, name: str, text: str, good: bool
) -> None:
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/test_other.py").write_text("def test_other():\n    pass\n")
    (tmp_path / name).write_text(text)
    assert passes(tmp_path, "few") == good
    assert passes(tmp_path, "")


@pytest.mark.parametrize(
    ("uid", "made"), [(0, ["check ", "test few", "test-rest few"]), (1000, [])]
)
def test_what_has_to_pass_is_run_by_root_only_and_with_few_skips(
    tmp_path: Path, uid: int, made: list[str]
) -> None:
    log = tmp_path / "made"
    log.touch()
    for name, body in (("id", f"echo {uid}"), ("make", f'echo "$1 $IOKEEL_SKIPS" >>{log}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [PROJECT / ".ci/run"], env=environment, capture_output=True, text=True, check=False
    )
    assert log.read_text().splitlines() == made
    assert (done.returncode, "as root" in done.stderr) == ((0, False) if made else (1, True))
