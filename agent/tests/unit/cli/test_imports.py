"""What the command imports before it does something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from iokeel.config.paths import DEFAULT_CONFIG, DEFAULT_SOCKET

HOOK = Path(__file__).parents[4] / "libvirt-hooks" / "qemu.d" / "50-iokeel"
# Prints the modules that a command has imported when it finds that there is no agent.
RUN = """
import sys
from iokeel.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 1, end.code
print(*sys.modules)
"""
SLOW = re.compile(
    r"iokeel\.(core|calibrate|hypervisors|host|libvirt_xml|running|daemon)\b"
    r"|iokeel\.report\.(?!records$)|lxml|libvirt|prometheus_client|numpy|matplotlib|textual"
)


def imported(words: list[str], socket: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--socket", str(socket)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is not there" in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "words",
    [
        ["stats"],
        ["stats", "--storage"],
        ["top"],
        ["why", "db1"],
        ["history", "db1", "vda"],
        ["recommend"],
        ["report"],
    ],
)
def test_what_asks_the_agent_imports_nothing_of_the_law(words: list[str], tmp_path: Path) -> None:
    modules = imported(words, tmp_path / "none.sock")
    assert "iokeel.report.records" in modules
    assert [module for module in modules if SLOW.match(module)] == []


def test_the_hook_looks_where_the_agent_is() -> None:
    text = HOOK.read_text()
    assert f'DEFAULT_CONFIG = "{DEFAULT_CONFIG}"' in text
    assert f'DEFAULT_SOCKET = "{DEFAULT_SOCKET}"' in text
