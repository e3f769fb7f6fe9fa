"""What the command prints, whatever others say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import iokeel
from iokeel.cli.output import complain, say, say_json

NASTY = "\x1b]0;owned\x07\n\x85\x9b31m\u2028\u202e\u2066"
SHOWN = r"\x1b]0;owned\x07\n\x85\x9b31m\u2028\u202e\u2066"


def test_lines_and_complaints_are_shown_and_never_run(capsys: pytest.CaptureFixture[str]) -> None:
    say(NASTY, "b")
    complain(NASTY)
    assert capsys.readouterr() == (f"{SHOWN}\nb\n", f"iokeel: {SHOWN}\n")


def test_json_has_every_character_and_is_never_run(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"name": NASTY}, indent=None)
    out = capsys.readouterr().out
    assert out.rstrip("\n").isprintable()
    assert json.loads(out) == {"name": NASTY}


def test_nothing_is_printed_or_logged_by_another_way() -> None:
    root = Path(iokeel.__file__).parent
    ways = {
        str(file.relative_to(root)): _calls(ast.parse(file.read_text()))
        for file in root.rglob("*.py")
    }
    assert {file for file, calls in ways.items() if "print" in calls} == {"cli/output.py"}
    logging = {file for file, calls in ways.items() if "basicConfig" in calls}
    assert logging == {"words/log_lines.py"}


def _calls(tree: ast.Module) -> set[str]:
    """Return the names of functions that a file calls: `print(...)`, `logging.basicConfig(...)`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        call.id if isinstance(call, ast.Name) else call.attr
        for call in calls
        if isinstance(call, ast.Name) or (isinstance(call, ast.Attribute) and call.attr != "print")
    }
