"""A VM of the run in a process of its own, so that the agent knows it by its process as any QEMU.

An honest one serves its guest's reads within the limits that it is told. It notes in its journal, a
line of JSON each, when it is read and what its limits are. A hostile one changes its trick now and
then, and notes which.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.hostile.tricks import TRICKS
from testing.hypervisors.qmp_server import QmpServer

FILE = "nbd://filer/x"
TARGET = "disk0"
_BLOCK_BYTES = 4096
_LATENCY_NS = 300_000
_TRICK_S = (0.5, 8.0)


class Honest:
    """Serves `demand` reads of 4 KiB a second, as far as its limits let it."""

    def __init__(self, server: QmpServer, demand: float, journal: TextIO) -> None:
        self._server, self._demand, self._journal = server, demand, journal
        self._did, self._at_s = 0.0, time.monotonic()
        server.plug(TARGET, FILE)
        server.answers["query-blockstats"] = self._stats
        server.answers["block_set_io_throttle"] = self._limits

    def _stats(self, request: dict[str, Any]) -> bytes:
        now_s = time.monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._did += passed_s * min(self._demand, self._allowed())
        counters = self._server.counters[TARGET]
        done = int(self._did)
        counters |= {"rd_operations": done, "rd_bytes": done * _BLOCK_BYTES}
        # A guest beyond its limit waits in the throttle, which stock QEMU counts as its time.
        waits_ns = 0 if self._demand < self._allowed() else 30_000_000
        counters["rd_total_time_ns"] = done * (_LATENCY_NS + waits_ns)
        self._note(read=True)
        return self._server.reply(request)

    def _limits(self, request: dict[str, Any]) -> bytes:
        reply = self._server.reply(request)
        self._note(allowed=self._allowed())
        return reply

    def _allowed(self) -> float:
        """Return the reads a second that its limits allow."""
        limits = self._server.drives[TARGET]["inserted"]
        rates = [limits[name] for name in ("iops", "iops_rd") if limits.get(name)]
        rates += [limits[n] / _BLOCK_BYTES for n in ("bps", "bps_rd") if limits.get(n)]
        return min(rates, default=float("inf"))

    def _note(self, **said: object) -> None:
        self._journal.write(json.dumps({"at_s": time.monotonic(), **said}) + "\n")


async def _be_honest(path: Path, demand: float, journal: TextIO) -> None:
    server = QmpServer(path, [])
    Honest(server, demand, journal)
    await server.start()
    await asyncio.Event().wait()


async def _be_hostile(path: Path, seed: int, journal: TextIO) -> None:
    plan = random.Random(seed)
    while True:
        name, chance = plan.choice([*TRICKS]), random.Random(plan.random())
        journal.write(json.dumps({"at_s": time.monotonic(), "trick": name}) + "\n")
        path.unlink(missing_ok=True)
        server = QmpServer(path, [])
        server.plug(TARGET, FILE)
        await server.start()
        playing = asyncio.create_task(TRICKS[name](server, chance))
        await asyncio.sleep(plan.uniform(*_TRICK_S))
        if not playing.cancel() and (error := playing.exception()):
            raise error
        await server.stop()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks.hostile.vm", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--demand", type=float)
    parser.add_argument("--seed", type=int)
    found = parser.parse_args(words)
    with found.journal.open("w", buffering=1) as journal:
        if found.demand is not None:
            asyncio.run(_be_honest(found.path, found.demand, journal))
        else:
            asyncio.run(_be_hostile(found.path, found.seed, journal))


if __name__ == "__main__":
    main(sys.argv[1:])
