"""A hypervisor's worth of QMP monitors without the VMs, to measure the agent against.

    python -m benchmarks.agent_cost.synthetic.serve /tmp/vms --vms 100 --drives 1

makes /tmp/vms/vm00000.qmp and so on, prints one line of JSON when all of them listen, and serves
until its standard input ends or it gets SIGTERM. Each socket speaks QMP as QEMU 7.2.22 does for
virtio-blk drives on raw files: the greeting, qmp_capabilities, query-block, query-blockstats,
query-named-block-nodes, query-block-jobs, qom-list, query-status, block_set_io_throttle, and an
event now and then.
The load of a drive shifts about once a minute and keeps to the limits in force, so that the agent
has something to retune. Nothing is a real disk: this measures the agent, not a guest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.agent_cost.synthetic.monitor import Client, Vm
from benchmarks.result_file import question


async def serve(vms: dict[Path, Vm], events_a_minute: float, ready: Connection) -> None:
    """Serve VMs' monitors until cancelled. Sends True over `ready` when all of them listen."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
    for path, vm in vms.items():
        path.unlink(missing_ok=True)
        await loop.create_unix_server(partial(Client, vm), str(path), backlog=1)
    ready.send(True)
    rng = random.Random(min(path.name for path in vms))  # or all processes do the same
    while True:
        await asyncio.sleep(rng.expovariate(max(1e-9, events_a_minute * len(vms) / 60)))
        vm = rng.choice(list(vms.values()))
        if vm.clients:
            seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
            vm.clients[0].write(
                b'{"timestamp": {"seconds": %d, "microseconds": %d}, "event": "RTC_CHANGE", '
                b'"data": {"offset": 0, "qom-path": "/machine/unattached/device[8]"}}\r\n'
                % (seconds, microseconds)
            )


def run_worker(vms: dict[Path, Vm], events_a_minute: float, ready: Connection) -> None:
    """Serve some of the VMs in this process."""
    asyncio.run(serve(vms, events_a_minute, ready))


def raise_file_limit(wanted: int) -> None:
    """Raise RLIMIT_NOFILE to `wanted` descriptors. Exits, and says how to, if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, PermissionError):
        sys.exit(f"{wanted} open files needed, {hard} allowed: raise the limit (ulimit -n)")


def main() -> None:
    """Serve until standard input ends or SIGTERM comes."""
    parser = argparse.ArgumentParser(description=question(__doc__))
    parser.add_argument("directory", type=Path, help="folder for the sockets")
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--drives", type=int, default=1, help="drives a VM (at most 26)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--hung", type=int, default=0, help="VMs that never answer for counters")
    parser.add_argument("--idle", type=int, default=0, help="VMs that do nothing, the last ones")
    parser.add_argument("--exact", action="store_true", help="with cost curves, as patched")
    parser.add_argument("--events", type=float, default=0.1, help="events a VM and minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    raise_file_limit(2 * options.vms // options.processes + 200)
    options.directory.mkdir(parents=True, exist_ok=True)
    workers = []
    for worker in range(options.processes):
        vms = {
            options.directory / f"vm{number:05}.qmp": Vm(
                f"vm{number:05}", options.drives, options.seed * 100_003 + number,
                hung=number < options.hung, exact=options.exact,
                idle=number >= options.vms - options.idle,
            )
            for number in range(worker, options.vms, options.processes)
        }  # fmt: skip
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=run_worker, args=(vms, options.events, there), daemon=True
        )
        process.start()
        workers.append((process, here))
    for process, here in workers:
        if not here.poll(60):
            sys.exit(f"process {process.pid} does not listen after 60 s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(
        json.dumps(
            {"vms": options.vms, "drives": options.drives, "pids": [p.pid for p, _ in workers]}
        ),
        flush=True,
    )
    while sys.stdin.buffer.read(4096):
        pass


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
