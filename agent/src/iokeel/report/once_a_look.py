"""An answer of the API that is made once for all who ask after the same look."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class OnceALook:
    """An answer as JSON, kept until the agent has looked at its drives again.

    Pages in Cockpit ask for the host every two seconds: if five are open, four find it made.
    """

    def __init__(self, looks: Callable[[], int], make: Callable[[], msgspec.Struct]) -> None:
        """looks: returns how often the agent has looked so far. make: makes the answer."""
        self._looks, self._make = looks, make
        self._at = -1
        self._made = b""

    def get(self) -> bytes:
        """Return the answer, made now if there is none since the last look."""
        if (looks := self._looks()) != self._at:
            self._at, self._made = looks, msgspec.json.encode(self._make())
        return self._made
