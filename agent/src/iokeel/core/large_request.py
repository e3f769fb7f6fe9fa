"""Tells how long one large request waits at a limit.

A request passes whole, and the next one waits until it is paid. So a limit of 1 makes a guest that
reads 1 MiB wait for minutes, and its driver may give up before.
"""

from __future__ import annotations

from iokeel.core.curve import CostModel

LARGE_BYTES = 1 << 20
#: From here on an operator is warned: SCSI gives up after 30 s, and some guests sooner.
LONG_S = 5.0


def large_wait_s(model: CostModel, *limits: int | None) -> float | None:
    """Return the time that one request of 1 MiB takes at the lowest of some limits, in seconds.

    The dearer one of a read and a write counts. None if there is no limit.
    """
    given = [limit for limit in limits if limit is not None]
    return _cost(model) / min(given) if given else None


def least_limit(model: CostModel) -> int:
    """Return the least limit at which one request of 1 MiB takes less than LONG_S."""
    return int(_cost(model) / LONG_S) + 1


def _cost(model: CostModel) -> float:
    return max(model.read.cost(LARGE_BYTES), model.write.cost(LARGE_BYTES))
