"""A wall clock of a program's own, which can be set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from testing.lab import apt
from testing.lab.cache import cached

_HOUR_S = 3600
_YEAR_S = 365 * 24 * _HOUR_S
#: How far faults set it.
STEPS_S = (-_YEAR_S, -_HOUR_S, 30, _HOUR_S, _YEAR_S)


class Clock:
    """A clock by libfaketime. The monotonic clock stays the machine's."""

    def __init__(self, file: Path) -> None:
        """Be right at first. file: where programs read how far it is off."""
        self._file = file
        self._library = _faketime()
        self.step(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a program that has this clock."""
        return {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, ahead_s: int) -> None:
        """Have it differ from the machine's."""
        self._file.write_text(f"{ahead_s:+d}\n")


def _faketime() -> Path:
    (package,) = apt.candidates("libfaketime")
    folder = cached("faketime", [package.sha256], package.unpack)
    (library,) = folder.rglob("libfaketime.so.1")
    return library
