"""Two hypervisors for a Prometheus: one where all is well, and one where much is wrong."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TypeVar

from testing.agents import QEMU, Agent, free_port, http
from testing.host.storage import MIB, loop_device
from testing.hypervisors.monitored import Monitored
from testing.hypervisors.qmp_server import qdev
from testing.processes import end
from testing.waiting import eventually
from tests.monitoring.prometheus import Alert, Prometheus

T = TypeVar("T")
_DRIVE_BYTES = 4 * MIB
# A storage divides among its drives only once it is full.
_SLOW_NS = 50_000_000
_BY_HAND = 77777  # requests a second

HEALTHY = """
[[vm]]
name = "db1"
socket = "{folder}/db1.qmp"
tenant = "acme"
limit = 900
burst = 1200
[vm.drives.vda]
limit = 300
reservation = 100
[vm.drives.vdb]
limit = 800
burst = 1000
latency_target_ms = 1000
[[vm]]
name = "sd1"
socket = "{folder}/sd1.qmp"
[vm.drives.alice]
limit = 2000
[tenants.acme]
limit = 5000
reservation = 200
[storage.fast]
device = "{device}"
drives = ["db1/*"]
capacity = 5000
latency_target_ms = 1000
"""
BROKEN = """
[[vm]]
name = "bad"
socket = "{folder}/bad.qmp"
[vm.drives.vda]
reservation = 300                 # with vdc's, nine times its storage
[vm.drives.vdb]
reservation = 100
latency_target_ms = 0.001         # nothing is that fast
[vm.drives.vdc]
reservation = 150                 # beside vda: a drive alone is held back for nobody
[vm.drives.vdd]
reservation = 100                 # on a storage without a capacity
[vm.drives.vdz]                   # isn't there
limit = 100
[storage.small]
drives = ["bad/vda", "bad/vdc"]
capacity = 50
[storage.slow]
drives = ["bad/vdb"]
capacity = 250
[storage.unknown]
drives = ["bad/vdd"]
"""
WRONG = {
    ("broken", "IokeelPolicyInvalid"),
    ("broken", "IokeelLimitsOverwritten"),
    ("broken", "IokeelReservationMissed"),
    ("broken", "IokeelStorageOversold"),
    ("broken", "IokeelCapacityUnknown"),
    ("broken", "IokeelLatencyTargetExhausted"),
    ("gone", "IokeelAgentDown"),
}
"""The alerts that there are. The others take an hour, or faults that nobody makes on purpose."""
LASTING = {("broken", "IokeelReservationBurn"), ("broken", "IokeelLatencyBurn")}
"""Those that there are as well once what is wrong has lasted for a minute."""
PENDING = {"IokeelAgentDown", "IokeelAgentsMissing", "IokeelAgentStale", "IokeelRetuneStorm"}
"""Those that may be pending beside them: the first evaluation may come before the first scrape, or
after two scrapes of one text, which is made once a second; and a busy machine misses scrapes and
moves shares to and fro."""
CHOSEN = {
    "instance": "healthy", "storage": "fast", "tenant": "acme", "domain": "db1", "drive": "vda",
}  # fmt: skip
"""A value for each of the dashboard's variables: a drive that has everything."""


class Busy(Monitored):
    """A QEMU without a guest.

    device: its drives' disk; None: one that takes _SLOW_NS for a request. depths: the requests that
    each of its drives has at once.
    """

    def __init__(
        self,
        folder: Path,
        qemu: Sequence[str | Path],
        name: str,
        device: Path | None,
        depths: Mapping[str, int],
    ) -> None:
        disk = f"null-co,node-name=disk,size={16 * MIB},latency-ns={_SLOW_NS}"
        if device is not None:
            disk = f"host_device,node-name=disk,filename={device},cache.direct=on,locking=off"
        words: list[str | Path] = [*qemu, *"-M q35,accel=tcg -m 32 -S -display none".split()]
        words += ["-nodefaults", "-blockdev", disk]
        for number, drive in enumerate(depths):
            part = f"offset={number * _DRIVE_BYTES},size={_DRIVE_BYTES}"
            words += ["-blockdev", f"raw,node-name=n-{drive},file=disk,{part}"]
            words += ["-device", f"virtio-blk-pci,drive=n-{drive},id={drive},share-rw=on"]
        super().__init__(folder, words, name)
        self._depths = depths
        self._sent = dict.fromkeys(depths, 0)

    def work(self) -> None:
        """Send each drive as many requests as have ended. They count as a guest's."""
        stats = {block["qdev"]: block["stats"] for block in self.ask("query-blockstats")}
        for drive, depth in self._depths.items():
            of_it = stats[qdev(drive)]
            ended = of_it["rd_operations"] + of_it["wr_operations"]
            for number in range(self._sent[drive], ended + depth):
                what = f"aio_{('read', 'write')[number % 2]} -q {number % 32 * 64}k"
                size = ("4k", "16k")[number // 2 % 2]
                line = f'qemu-io -d {qdev(drive)} "{what} {size}"'
                self.ask("human-monitor-command", **{"command-line": line})
                self._sent[drive] += 1


@dataclass(frozen=True, slots=True)
class Watched:
    """The hypervisors "healthy" and "broken", and "gone", which doesn't answer."""

    prometheus: Prometheus
    busy: tuple[Busy, ...]

    def eventually(self, ask: Callable[[], T]) -> T:
        """Return the answer of `ask` once it is true; meanwhile all drives have work."""

        def worked() -> T:
            for qemu in self.busy:
                qemu.work()
            return ask()

        return eventually(worked)

    def wait_for_data(self, query: str) -> None:
        """Wait until a query has a figure."""
        self.eventually(lambda: any(map(isfinite, self.prometheus.values(query))))

    def has_alerts_of_what_is_wrong_only(self) -> bool:
        """Wait until all alerts that are WRONG have been there. Return whether no other ever was.

        Not all are at once: drives are idle between two waits, and then reach what they are owed.
        """

        def were_there() -> bool:
            seen = self.prometheus.alerts_since_the_start()
            missing = WRONG - {(alert.instance, alert.name) for alert in seen}
            assert not missing, f"not there yet: {missing}"
            return True

        self.eventually(were_there)
        self.wait_for_data('count_over_time(up{instance="healthy"}[1h]) > 15')
        return unwanted(self.prometheus.alerts_since_the_start()) == set()


def unwanted(alerts: Iterable[Alert]) -> set[Alert]:
    """Return the alerts that aren't of what is WRONG, without those that are pending and may be."""
    return {
        alert
        for alert in alerts
        if (alert.instance, alert.name) not in WRONG | LASTING
        if alert.state != "pending" or alert.name not in PENDING
    }


@contextmanager
def watched(
    qemu: Sequence[str | Path] = (QEMU,), storage_daemon: str | Path = "qemu-storage-daemon"
) -> Iterator[Watched]:
    """Start all, with a Prometheus. qemu, storage_daemon: how to run them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iokeel-")))
        device = stack.enter_context(loop_device(folder, 16 * MIB))
        good = Busy(folder, qemu, "db1", device, {"vda": 32, "vdb": 32})
        stack.callback(good.end)
        bad = Busy(folder, qemu, "bad", None, {"vda": 16, "vdb": 1, "vdc": 32, "vdd": 4})
        stack.callback(bad.end)
        stack.enter_context(_loaded(folder, storage_daemon))
        ports = {name: free_port() for name in ("healthy", "broken", "gone")}
        agents = {}
        for name, tables in (("healthy", HEALTHY), ("broken", BROKEN)):
            (folder / name).mkdir()
            agents[name] = Agent(
                folder / name,
                tables.format(folder=folder, device=device),
                f'metrics_address = "127.0.0.1:{ports[name]}"',
            )
            stack.enter_context(agents[name])
        prometheus = Prometheus(folder, ports)
        stack.callback(prometheus.end)
        all_of_it = Watched(prometheus, (good, bad))
        overwrite(all_of_it, bad, agents["broken"])
        yield all_of_it


def overwrite(all_of_it: Watched, qemu: Busy, agent: Agent) -> None:
    """Change a drive's limits three times, each time when the agent has put them back."""
    zeros = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
    announced = json.dumps({"domain": "bad", "operation": "started"}).encode()

    def is_seen(times: int) -> bool:
        if agent.drive("bad")["overwritten"] >= times:
            return True
        # Not only once: the agent may set limits of its own before it has seen these.
        if _iops(qemu, "vda") != _BY_HAND:
            qemu.ask("block_set_io_throttle", id=qdev("vda"), iops=_BY_HAND, **zeros)
            # The agent looks for such changes once a minute, and when somebody announces one.
            http(agent.socket, "POST", "/v1/hook", announced)
        return False

    all_of_it.eventually(lambda: agent.drive("bad")["limits_in_force"])
    all_of_it.wait_for_data('iokeel_drive_limits_overwritten_total{domain="bad"} == 0')
    for times in (1, 2, 3):
        all_of_it.eventually(partial(is_seen, times))


def _iops(qemu: Busy, drive: str) -> int:
    """Return the limit of requests a second that is in force."""
    blocks = qemu.ask("query-block")
    (found,) = (block["inserted"]["iops"] for block in blocks if block["qdev"] == qdev(drive))
    return int(found)


@contextmanager
def _loaded(folder: Path, program: str | Path) -> Iterator[None]:
    """Run a storage daemon with the throttle group alice, and fio on what it exports."""
    (folder / "disk").write_bytes(b"x" * _DRIVE_BYTES)
    words: list[str | Path] = [
        *(program, "--object", "throttle-group,id=alice"),
        *("--blockdev", f"file,node-name=disk,filename={folder}/disk"),
        *("--blockdev", "throttle,node-name=t0,file=disk,throttle-group=alice"),
        *("--nbd-server", f"addr.type=unix,addr.path={folder}/nbd"),
        *("--export", "nbd,id=e0,node-name=t0,name=disk,writable=on"),
    ]
    job = "--name=a --ioengine=nbd --rw=randrw --bs=4k --iodepth=16 --time_based --runtime=600"
    daemon = Monitored(folder, words, "sd1")
    try:
        fio = subprocess.Popen(
            ["fio", *job.split(), f"--uri=nbd+unix:///disk?socket={folder}/nbd", "--thread"],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            end(fio)
    finally:
        daemon.end()
