"""Statistics of running domains, from a libvirt that is made up."""

from __future__ import annotations

from typing import Any

import libvirt
import pytest

from iokeel.hypervisors.libvirt.readings import Reading, counters_of, read_all

COUNTERS = {f"rd.{name}": 1 for name in ("reqs", "bytes")} | {"wr.reqs": 1, "wr.bytes": 1}


class Libvirt:
    """A connection with one domain, of which some disks have counters."""

    def __init__(self, disks: dict[str, bool]) -> None:
        self.values: dict[str, Any] = {"block.count": len(disks)}
        for i, (target, counts) in enumerate(disks.items()):
            self.values[f"block.{i}.name"] = target
            if counts:
                self.values |= {f"block.{i}.{name}": value for name, value in COUNTERS.items()}

    def name(self) -> str:
        return "db1"

    def getAllDomainStats(self, kind: int, _flags: int) -> list[tuple[Libvirt, dict[str, Any]]]:
        asked = {libvirt.VIR_DOMAIN_STATS_STATE: "state.", libvirt.VIR_DOMAIN_STATS_BLOCK: "block."}
        begins = tuple(name for bit, name in asked.items() if kind & bit)
        return [(self, {k: value for k, value in self.values.items() if k.startswith(begins)})]

    def read(self) -> Reading:
        return read_all(self, None, {})["db1"]


@pytest.mark.parametrize("disks", [{}, {"vda": False, "vdb": False}])
def test_a_domain_without_counters_is_busy(disks: dict[str, bool]) -> None:
    reading = Libvirt(disks).read()
    assert reading.is_busy
    assert counters_of(reading) == []


def test_a_domain_answers_if_any_disk_has_counters() -> None:
    """A vhost-user disk never has any."""
    reading = Libvirt({"vda": False, "vdb": True}).read()
    assert not reading.is_busy
    assert [target for target, _ in counters_of(reading)] == ["vdb"]


@pytest.mark.parametrize(
    ("state", "reason", "saving"),
    [
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SAVE, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_DUMP, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER, False),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, False),
        # The same number means something else of another state.
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_PAUSED_SAVE, False),
    ],
)
def test_a_guest_whose_memory_is_written_or_read_is_told_while_it_is_busy(
    state: int, reason: int, saving: bool
) -> None:
    host = Libvirt({"vda": False})
    assert not host.read().is_saving
    host.values |= {"state.state": state, "state.reason": reason}
    reading = host.read()
    assert reading.is_busy
    assert reading.is_saving == saving


@pytest.mark.parametrize(
    ("state", "reason", "counts"),
    [
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, False),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER, True),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SAVE, True),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY, True),
        # The same numbers mean something else of another state.
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, True),
    ],
)
def test_a_guest_that_runs_on_another_host_answers_and_is_not_read(
    state: int, reason: int, counts: bool
) -> None:
    host = Libvirt({"vda": True})
    host.values |= {"state.state": state, "state.reason": reason}
    reading = host.read()
    assert not reading.is_busy
    assert bool(counters_of(reading)) == counts
