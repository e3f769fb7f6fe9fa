"""How long to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Iterator


def delays(first_s: float = 0.5, most_s: float = 5.0) -> Iterator[float]:
    """Yield waits in seconds, doubling up to a most, each with a jitter of half of it.

    The most is what a restarted libvirtd, or a VM outside libvirt that has started, may wait for
    its limits. The jitter keeps the agents of many hosts from coming back all at once.
    """
    wait_s = first_s
    while True:
        yield wait_s * random.uniform(0.5, 1.0)
        wait_s = min(2 * wait_s, most_s)
