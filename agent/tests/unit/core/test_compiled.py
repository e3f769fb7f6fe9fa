"""The control law is tested as it is installed: compiled."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import iokeel
from compile_law import modules

PACKAGE = Path(iokeel.__file__).parent


@pytest.mark.parametrize("source", modules(PACKAGE), ids=lambda file: file.stem)
def test_a_module_of_the_law_is_compiled(source: Path) -> None:
    name = ".".join(source.with_suffix("").relative_to(PACKAGE.parent).parts)
    assert str(import_module(name).__file__).endswith(".so"), "run make setup"
