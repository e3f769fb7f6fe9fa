"""Tests run the control law's sources; `make test-all` runs these again with it compiled."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

import iokeel
from compile_law import modules

PACKAGE = Path(iokeel.__file__).parent
COMPILED = "build/law" in os.environ.get("PYTHONPATH", "")


@pytest.mark.parametrize("source", modules(PACKAGE), ids=lambda file: file.stem)
def test_the_law_that_is_tested_is_the_one_that_is_asked_for(source: Path) -> None:
    name = ".".join(source.with_suffix("").relative_to(PACKAGE.parent).parts)
    assert str(import_module(name).__file__).endswith(".so" if COMPILED else ".py")
