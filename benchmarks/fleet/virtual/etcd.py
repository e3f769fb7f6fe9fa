"""A simulated etcd: one history of writes, and answers that take as long as a quorum does.

A question is answered as of one moment between it and its answer. A write is made there at once or
not at all. Who watches is told of each write a moment later, in order. Nothing fails here: faults
are the model's matter (agent/tests/unit/core/fleet/model.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.fleet.virtual.time import VirtualLoop
from iokeel.config.etcd_access import Access
from iokeel.fleet.etcd import Etcd, Found
from iokeel.fleet.messages import Delete, Is, Put, reading, transaction

# What a quorum read and a write with its flush take at least, between machines of one site with
# SSDs. Each takes up to twice that, and one half of an answer in a hundred takes ten times as long
# (etcd's own recommendations: 10 ms for the 99th percentile of a flush).
READ_S = 0.002
WRITE_S = 0.004
_TAIL_RATIO = 0.01
# What HTTP, etcd's own fields and base64 add.
_HEADERS_BYTES = 250
_FIELDS_BYTES = 90


class Keys:
    """The keys and their history's counts, for any number of clients.

    counts: by what was counted: questions, bytes, and so on.
    """

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.values: dict[str, bytes] = {}
        self.leases: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.watchers: dict[str, list[Callable[[str], None]]] = {}
        self._loop = loop
        self._random = random

    async def delay(self, typical_s: float) -> None:
        """Wait as long as half of an answer takes."""
        tail = 10 if self._random.random() < _TAIL_RATIO else 1
        await asyncio.sleep(tail * typical_s * self._random.uniform(0.5, 1.0))

    def told(self, key: str) -> None:
        """Tell who watches a key, or all of its folder."""
        for watcher in (*self.watchers.get(key, ()), *self.watchers.get(_folder(key), ())):
            self.counts["watch events"] += 1
            self.counts["watch bytes"] += _FIELDS_BYTES + 4 * len(self.values.get(key, b"")) // 3
            self._loop.call_later(WRITE_S, watcher, key)

    def watch(self, key: str, watcher: Callable[[str], None]) -> None:
        """Call it with each key that changes: this one, or one of this folder."""
        self.watchers.setdefault(key, []).append(watcher)

    def below(self, folder: str) -> list[str]:
        """Return the keys of a folder."""
        return [key for key in self.values if key.startswith(folder)]


def _folder(key: str) -> str:
    return key[: key.rindex("/") + 1]


class VirtualEtcd(Etcd):
    """A host's connection to it."""

    def __init__(self, keys: Keys, loop: VirtualLoop) -> None:
        super().__init__(Access(("http://virtual:2379",)), loop.time_ns)
        self._keys = keys
        self._loop = loop
        self._lease = 0

    async def read(
        self, keys: Sequence[str], prefixes: Sequence[str] = (), unless: Sequence[Is] = ()
    ) -> Found:
        asked_ns = self._loop.time_ns()
        await self._keys.delay(READ_S)
        values = self._keys.values
        met = bool(unless) and all(values.get(demand.key) == demand.value for demand in unless)
        found = {} if met else {key: values[key] for key in keys if key in values}
        for prefix in prefixes:
            names = self._keys.below(prefix)
            found.update({key: values[key] for key in names})
            self._keys.counts["claims read"] += len(names) if "/claims/" in prefix else 0
        self._count("reads", str(reading(keys, prefixes, unless)), found)
        await self._keys.delay(READ_S)
        leases = {key: lease for key in found if (lease := self._keys.leases.get(key))}
        return Found(found, asked_ns, met, leases)

    async def write(self, demands: Sequence[Is], changes: Sequence[Put | Delete]) -> bool:
        await self._keys.delay(WRITE_S)
        values = self._keys.values
        done = all(values.get(demand.key) == demand.value for demand in demands)
        for change in changes if done else ():
            if isinstance(change, Put):
                values[change.key] = change.value
                self._keys.leases[change.key] = change.lease
                self._keys.counts["bytes written"] += len(change.key) + len(change.value)
            else:
                values.pop(change.key, None)
            self._keys.told(change.key)
        self._count("writes", str(transaction(demands, changes)), {})
        self._keys.counts["writes refused"] += not done
        await self._keys.delay(WRITE_S)
        return done

    def _count(self, what: str, question: str, found: dict[str, bytes]) -> None:
        counts = self._keys.counts
        counts[what] += 1
        counts["bytes"] += 2 * _HEADERS_BYTES + len(question)
        counts["bytes"] += sum(
            _FIELDS_BYTES + 4 * (len(key) + len(value)) // 3 for key, value in found.items()
        )

    async def grant_lease(self, ttl_s: int) -> int:
        self._lease += 1
        return self._lease

    async def keep_lease(self, lease: int) -> bool:
        return True
