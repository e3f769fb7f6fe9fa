"""A parser with what it takes to fuzz it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A parser.

    run: has it parse an input, and checks what comes of it. most_bytes: the longest input to try.
    words: those of its format.
    """

    name: str
    run: Callable[[bytes], None]
    most_bytes: int
    words: Sequence[bytes] = ()
