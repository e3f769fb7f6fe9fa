"""fio's own log of every request: how it is asked for, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A job's options; write_lat_log has to name the file. Every request has a line of its own, by the
#: wall clock: by default each job counts from its own start. fio 3.33 loses the last requests if
#: its log has to grow for them, hence the entries.
EVERY_REQUEST: Mapping[str, int] = {
    "log_avg_msec": 0,
    "log_unix_epoch": 1,
    "log_entries": 1 << 20,
    "disable_slat": 1,
    "disable_clat": 1,
}


@dataclass(frozen=True)
class Requests:
    """Reads and writes in the order of completion.

    at_ms: completion, in whole milliseconds of the Unix epoch unless counted from another time.
    """

    at_ms: Ints
    latency_ns: Ints
    size_bytes: Ints
    is_write: NDArray[np.bool_]

    @classmethod
    def read(cls, log: Path) -> Self:
        """Read a log: "milliseconds, nanoseconds, direction, bytes" a line. Skips flushes."""
        table = np.loadtxt(log, np.int64, delimiter=",", usecols=(0, 1, 2, 3), ndmin=2)
        table = table[table[:, 2] < 2]
        table = table[np.argsort(table[:, 0], kind="stable")]
        return cls(table[:, 0], table[:, 1], table[:, 3], table[:, 2] == 1)

    def costs(self, read: Callable[[int], float], write: Callable[[int], float]) -> Floats:
        """Return each request's cost. read, write: the cost of a size in bytes."""
        return costs(self.size_bytes, self.is_write, read, write)


def costs(
    size_bytes: Ints,
    is_write: NDArray[np.bool_],
    read: Callable[[int], float],
    write: Callable[[int], float],
) -> Floats:
    """Return the cost of each of some requests. read, write: the cost of a size in bytes."""
    sizes, index = np.unique(size_bytes, return_inverse=True)
    reads, writes = (np.array([of(int(size)) for size in sizes]) for of in (read, write))
    return np.where(is_write, writes[index], reads[index])
