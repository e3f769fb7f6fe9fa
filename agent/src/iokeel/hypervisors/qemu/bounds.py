"""The bounds of what a QEMU may tell.

A QEMU that its guest has taken over tells anything. So whatever comes from one is decoded by these
types, and within these bounds. They are far beyond what any QEMU has.
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

#: A larger reply is refused. A schema takes 250 kB.
MOST_REPLY_BYTES = 2 << 20
#: The same of query-block and query-blockstats, which tell of each backing file, too. A drive takes
#: 2 kB, and a backing file 1.5 kB more, but little of that is decoded.
MOST_DRIVES_BYTES = 32 << 20
#: A reply with more objects and lists is refused before it is decoded: each takes 100 to 300 bytes.
MOST_OBJECTS = 100_000
#: A longer list is refused.
MOST_LISTED = 2000
#: QEMU 10 tells of 2,000 commands, events and types.
MOST_SCHEMA = 10_000
#: So many drives of a VM are followed.
MOST_DRIVES = 256
_MOST_NAME = 128
_HASHED = "unnamed-"

LISTED = Meta(max_length=MOST_LISTED)
#: Controllers and ports are listed with drives; a drive has two nodes or more.
LISTED_TOO = Meta(max_length=2 * MOST_LISTED)

#: A number of requests, bytes or nanoseconds.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: One of QEMU's own, such as a limit: the agent takes a negative one for nonsense.
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: A sum of normalized I/O operations.
Cost = Annotated[float, Meta(ge=0, le=1e18)]
#: A file, a URL, or QEMU's json: name of one, which it cuts at PATH_MAX itself.
Path = Annotated[str, Meta(max_length=4096)]
#: QEMU's name of a device, a node, a group or a job.
Name = Annotated[str, Meta(max_length=1024)]

T = TypeVar("T")


def target(name: str) -> str:
    """Return a drive's name for operators: QEMU's own, if it is one."""
    if len(name) <= _MOST_NAME and name.isascii() and name.isprintable():
        return name
    return _HASHED + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


def is_hashed(name: str) -> bool:
    """Return whether a drive goes by another name than QEMU's own."""
    return name.startswith(_HASHED)


class Decoder(Generic[T]):
    """Decodes replies into a type, and refuses those that would take much memory.

    most: the length of the longest one, in bytes or characters.
    """

    __slots__ = ("_decoder", "_most")

    def __init__(self, of: type[T], most: int = MOST_REPLY_BYTES) -> None:
        self._decoder = msgspec.json.Decoder(of)
        self._most = most

    def decode(self, reply: bytes | str | memoryview) -> T:
        """Return a reply. Raises ValueError or RecursionError."""
        if len(reply) > self._most:
            raise ValueError(f"it is longer than {self._most >> 20} MiB")
        if isinstance(reply, str):
            objects = reply.count("{") + reply.count("[")
        elif isinstance(reply, bytes):
            objects = reply.count(b"{") + reply.count(b"[")
        else:
            objects = 0  # it is in a small buffer
        if objects > MOST_OBJECTS:
            raise ValueError(f"it has {objects} objects and lists")
        return self._decoder.decode(reply)


class Budget:
    """The bytes and events that a QEMU may send, over all its connections.

    150 drives with 13 backing files each have 2.7 MB of counters a second. Most events come by the
    dozen, but a disk that fails has one for each request.
    """

    BYTES_A_S, MOST_BYTES = 8 << 20, 64 << 20
    EVENTS_A_S, MOST_EVENTS = 1000, 10_000
    #: Drives that are new, or have another file.
    NAMES_A_S, MOST_NAMES = 1, 4 * MOST_DRIVES
    #: A QEMU over its budget is left alone for so long.
    PAUSE_S = 60.0

    def __init__(self) -> None:
        self._bytes = self._events = self._names = 0.0
        self._at = time.monotonic()

    def spend(self, nbytes: int = 0, events: int = 0, names: int = 0) -> str | None:
        """Count what has come, and return what is too much; None if nothing is."""
        self._bytes += nbytes
        self._events += events
        self._names += names
        over = self._over()
        if over is not None:  # most often it isn't, and the time needn't be asked for
            now = time.monotonic()
            passed_s, self._at = now - self._at, now
            self._bytes = max(0.0, self._bytes - passed_s * self.BYTES_A_S)
            self._events = max(0.0, self._events - passed_s * self.EVENTS_A_S)
            self._names = max(0.0, self._names - passed_s * self.NAMES_A_S)
            over = self._over()
        return over

    def _over(self) -> str | None:
        if self._bytes > self.MOST_BYTES:
            return f"more than {self.BYTES_A_S >> 20} MiB a second"
        if self._events > self.MOST_EVENTS:
            return f"more than {self.EVENTS_A_S} events a second"
        if self._names > self.MOST_NAMES:
            return f"more than {self.MOST_NAMES} new drives or files"
        return None
