"""Benchmarks that are programs of their own, because they measure something else than drives."""

from __future__ import annotations

import msgspec

from benchmarks.result_file import BENCHMARKS

FILE = BENCHMARKS / "programs.toml"


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program. command: a module and its options. result: its file in results/."""

    question: str
    command: list[str]
    result: str
    minutes: int


def read() -> dict[str, Program]:
    """Return all programs by name."""
    return msgspec.toml.decode(FILE.read_bytes(), type=dict[str, Program])
