"""How long to wait before another try."""

from __future__ import annotations

import random
from collections.abc import Iterator

_FIRST_S, _MOST_S = 0.5, 5.0


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
