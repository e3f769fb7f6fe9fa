"""Samples the limits in force and the counters of every disk in a machine, by libvirt alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from testing.hypervisors.iotune import cost, highest_rate
from testing.machines.host import Host

START_S = 2.0
"""From libvirt's first answer for a disk of a guest that has started until the disk is held."""
_PAUSE_S = 0.2
_FILE = "/tmp/watch.json"
# A disk's time counts from the last look that did not find it: it is younger than that.
_SCRIPT = """
import json, sys, time, libvirt
from xml.etree import ElementTree
libvirt.registerErrorHandler(lambda *_: None, None)
connection = libvirt.openReadOnly("qemu:///system")
pause, looked, found = float(sys.argv[2]), time.monotonic(), {}
with open(sys.argv[1], "w") as out:
    while True:
        now, there = time.monotonic(), {}
        for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_RUNNING):
            try:
                for disk in ElementTree.fromstring(domain.XMLDesc()).iter("disk"):
                    target = disk.find("target").get("dev")
                    key = domain.UUIDString(), domain.ID(), target
                    there[key] = found.get(key, looked)
                    limits = {k: v for k, v in domain.blockIoTune(target).items() if v}
                    at = time.monotonic()
                    counts = domain.blockStats(target)[:4]
                    sample = [*key, there[key], at, time.monotonic(), limits, counts]
                    print(json.dumps(sample), file=out, flush=True)
            except libvirt.libvirtError:
                there = {key: since for key, since in there.items() if key[1] != domain.ID()}
        looked, found = now, there
        time.sleep(pause)
"""


@dataclass(frozen=True)
class Sample:
    """A disk at one moment: its age, the limits in force, and what it had done by then.

    The age counts anew if libvirt gave no answer for the guest meanwhile. asked_s, came_s: by the
    monotonic clock, when its counters were asked for, and when they came. That may be long after,
    while libvirt does something else with the guest. requests, size_bytes: since its QEMU's start,
    reads and writes together.
    """

    age_s: float
    asked_s: float
    came_s: float
    limits: dict[str, int | str]
    requests: int
    size_bytes: int

    @property
    def allowed(self) -> float:
        """The highest normalized rate that its limits let through."""
        return highest_rate({k: v for k, v in self.limits.items() if isinstance(v, int)})


@dataclass
class Disk:
    """A disk of a guest in one run of its QEMU."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def answered_s(self) -> float:
        """Its age when libvirt first answered for it.

        While a guest starts on a busy machine, libvirt keeps everybody waiting who asks for it.
        """
        return self.samples[0].age_s

    def held_after_s(self, most: float) -> float:
        """Return its age at the first sample from which on it was always held; or infinity."""
        held = float("inf")
        for sample in reversed(self.samples):
            if sample.allowed > most:
                break
            held = sample.age_s
        return held

    @property
    def highest_allowed(self) -> float:
        """The highest rate that was allowed once it had to be held."""
        return max((sample.allowed for sample in self._later()), default=0.0)

    @property
    def highest_rate(self) -> float:
        """The highest normalized rate that it surely did over a second, once it had to be held."""
        highest, begun, samples = 0.0, 0, self._later()
        for number, now in enumerate(samples):
            while begun + 1 < number and now.came_s - samples[begun + 1].asked_s >= 1:
                begun += 1
            then = samples[begun]
            if begun < number and (passed_s := now.came_s - then.asked_s) >= 1:
                requests = now.requests - then.requests
                kib = (now.size_bytes - then.size_bytes) / 1024
                highest = max(highest, (requests and requests * cost(kib / requests)) / passed_s)
        return highest

    def _later(self) -> list[Sample]:
        return [s for s in self.samples if s.age_s > self.answered_s + START_S]


class Watch:
    """What was seen so far."""

    def __init__(self, machine: Host) -> None:
        self._machine = machine

    def runs(self, uuid: str) -> list[dict[str, Disk]]:
        """Return each run of a guest's QEMU, the last one last, with its disks by target."""
        runs: dict[int, dict[str, Disk]] = {}
        lines = self._machine.run("grep", "--no-messages", uuid, _FILE, check=False).splitlines()
        for line in lines:
            _, number, target, since, at, came, limits, counts = json.loads(line)
            read, read_bytes, written, written_bytes = counts
            sizes = read_bytes + written_bytes
            sample = Sample(at - since, at, came, limits, read + written, sizes)
            runs.setdefault(number, {}).setdefault(target, Disk()).samples.append(sample)
        return list(runs.values())


@contextmanager
def watch(machine: Host) -> Iterator[Watch]:
    """Watch a machine's guests, five times a second."""
    machine.run("systemd-run", "--quiet", "--collect", "--unit=watch", "/usr/bin/python3", "-c",
                _SCRIPT, _FILE, str(_PAUSE_S))  # fmt: skip
    try:
        yield Watch(machine)
    finally:
        machine.run("systemctl", "stop", "watch")
