"""How often things are done: again after a failure, and what others ask for."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

_FIRST_S, _MOST_S = 0.5, 5.0
_EVERY_S = 1.0
# A guest that starts is told of some times in a second, by the hook and by events.
_AT_ONCE = 3


def delays() -> Iterator[float]:
    """Yield waits in seconds. They double up to a most; a random part of up to half is taken off.

    The most is how long the drives of a libvirtd that was restarted, or of a VM outside libvirt
    that has just started, may go without limits. The random part keeps the agents of many hosts
    from coming back all at once.
    """
    wait_s = _FIRST_S
    while True:
        yield wait_s * random.uniform(0.5, 1.0)
        wait_s = min(2 * wait_s, _MOST_S)


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
