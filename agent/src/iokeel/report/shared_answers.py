"""The API's answers about the whole host: each is made once for all who ask after the same look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

Answer: TypeAlias = "msgspec.Struct | Sequence[msgspec.Struct]"


class SharedAnswers:
    """Answers as JSON, kept until the agent has looked at its drives again.

    With five pages in Cockpit, most questions find an answer that was made for another one.
    """

    def __init__(self, looks: Callable[[], int]) -> None:
        """looks: returns how often the agent has looked so far."""
        self._looks = looks
        self._at = -1
        self._made: dict[str, bytes] = {}

    def get(self, name: str, make: Callable[[], Answer]) -> bytes:
        """Return the answer of a name, which `make` makes if there is none since the last look."""
        if (looks := self._looks()) != self._at:
            self._at = looks
            self._made.clear()
        if name not in self._made:
            self._made[name] = msgspec.json.encode(make())
        return self._made[name]
