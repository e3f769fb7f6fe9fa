"""An installation that has lost its schema: said at once, and not taken for something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import iokeel


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """Return the schema's place in an installation that lacks it."""
    folder = shutil.copytree(Path(iokeel.__file__).parent, tmp_path / "lib" / "iokeel")
    return folder / "libvirt_xml" / "policy.rng"


def run(schema: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installation's command, with a configuration that has no guest."""
    config = schema.parents[3] / "agent.toml"
    folder = schema.parents[3]
    config.write_text(
        f'[agent]\nsocket = "{folder}/sock"\nstate_dir = "{folder}/state"\n'
        "[libvirt]\nenabled = false\n[cgroup]\nenabled = false\n"
    )
    command = [sys.executable, "-m", "iokeel", *words, "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": str(schema.parents[2])}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )


@pytest.mark.parametrize("words", [("agent",), ("agent", "--check")])
def test_an_agent_without_its_schema_does_not_start(schema: Path, words: tuple[str, ...]) -> None:
    done = run(schema, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"iokeel: {schema}: is missing; install iokeel again\n"


def test_a_schema_that_is_cut_is_no_schema(schema: Path) -> None:
    schema.write_text("<grammar")
    done = run(schema, "agent", "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"iokeel: {schema}: not a schema, ")
    assert done.stderr.endswith("; install iokeel again\n")


def test_limits_are_given_back_without_the_schema(schema: Path) -> None:
    done = run(schema, "agent", "--release")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 drives ")
