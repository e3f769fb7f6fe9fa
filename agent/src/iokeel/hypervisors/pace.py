"""How often what others ask for is done: a few times at once, and then once a second."""

from __future__ import annotations

import time

_EVERY_S = 1.0
# A guest that starts is told of some times in a second, by the hook and by events.
_AT_ONCE = 3


class Pace:
    """Counts how often something is done for each name."""

    def __init__(self) -> None:
        self._paid_until: dict[str, float] = {}  # by the monotonic clock

    def wait_s(self, name: str) -> float:
        """Count one more time, and return how long to wait before it, in seconds."""
        now = time.monotonic()
        paid_until = max(self._paid_until.get(name, 0.0), now - _AT_ONCE) + _EVERY_S
        self._paid_until[name] = paid_until
        return max(0.0, paid_until - now)

    def forget(self, name: str) -> None:
        """Forget what was done for a name."""
        self._paid_until.pop(name, None)
