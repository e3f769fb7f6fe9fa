"""One run of a scenario in virtual time."""

from __future__ import annotations

import random

from benchmarks.bench.records import DriveRun, Run
from benchmarks.bench.running.requests import Done, drive_run
from benchmarks.bench.scenario import Drive, Scenario
from benchmarks.bench.virtual.controllers import Virtual
from benchmarks.bench.virtual.host import Host
from benchmarks.bench.virtual.load import loads
from benchmarks.bench.virtual.stage import NS_PER_S, Place, Stage
from benchmarks.fio_log import costs
from testing.lab.disks.disksim import params

#: How long a controller holds the drives before their loads begin, and within which time these do:
#: fio starts its jobs one after the other.
_AHEAD_S, _SPREAD_NS = 4, 200_000_000
_LONGER_S = 1  # requests that end after the measured time belong to nothing


def run(scenario: Scenario, controller: Virtual, seed: int) -> Run:
    """Return what all drives' jobs do under a controller. The same input gives the same output."""
    with Host(scenario.device, scenario.slowdown, seed, scenario.disk) as host:
        stage = _staged(scenario, controller, host, seed)
        controller.begin(stage)
        stage.run(stage.begin_ns + round((scenario.seconds + _LONGER_S) * NS_PER_S))
        done = {place.drive.name: _done(stage, place) for place in stage.places}
    began_s = min((float(one.at_s[0]) for one in done.values() if len(one.at_s)), default=0.0)
    drives: dict[str, DriveRun] = {
        drive.name: drive_run(scenario, drive, done[drive.name], began_s, None)
        for drive in scenario.drives
    }
    return Run(drives)


def _staged(scenario: Scenario, controller: Virtual, host: Host, seed: int) -> Stage:
    """Put all drives in their places: a guest's is the whole disk, others have equal parts."""
    whole = int(params(scenario.device)["capacity"])
    exports = [drive for drive in scenario.drives if not drive.guest]
    part = whole // max(1, len(exports)) >> 20 << 20
    numbers: dict[str, int] = {}
    places = []
    begin_ns = _AHEAD_S * NS_PER_S
    for drive, name in zip(scenario.drives, controller.groups(scenario), strict=True):
        if name not in numbers:
            numbers[name] = host.group(keeps_levels=controller.keeps_levels)
        offset = 0 if drive.guest else exports.index(drive) * part
        place = Place(drive, host.drive(numbers[name], offset, guest=drive.guest), numbers[name])
        places.append(place)
        for load in loads(scenario, drive, whole if drive.guest else part):
            host.load(place.number, load, begin_ns, _SPREAD_NS)
    chance = random.Random(f"{scenario.name} {scenario.case} {seed}")
    return Stage(scenario, host, tuple(places), begin_ns, chance)


def _done(stage: Stage, place: Place) -> Done:
    ended, model = stage.host.ended(place.number), stage.scenario.model
    at_s = (ended.at_ns - stage.begin_ns) / NS_PER_S
    cost = costs(ended.size_bytes, ended.is_write, model.read.cost, model.write.cost)
    return Done(at_s, ended.latency_ns / 1e6, ended.size_bytes, cost)


def alone(scenario: Scenario) -> tuple[Drive, ...]:
    """Return the drives that run alone, too."""
    return tuple(drive for drive in scenario.drives if drive.alone)
