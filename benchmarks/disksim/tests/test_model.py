"""The model does what README.md says, to the nanosecond."""

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.disksim.twin import Command, serve
from iokeel.core.values.curve import KIB
from testing.lab.disks.disksim import DEVICES, built, params

MIB = 1024 * KIB
NEVER = 2**63 - 1
GAP_NS = {"hdd-hts72755": 5e6, "nvme-970-pro": 2e4}
"""Between commands, on average: so that queues build up and drain again. 1e5 for all others."""


def replay(
    device: str, commands: Sequence[Command], sanitize: bool = False, **changed: float
) -> None:
    """Fill in the times of commands by the C model."""
    lines = "".join(
        f"{i},{c.op},{int(c.fua)},{c.offset},{c.length},{c.arrival}\n"
        for i, c in enumerate(commands)
    )
    argv = [
        str(built(sanitize) / "replay"),
        str(DEVICES[device]),
        *(f"{k}={v}" for k, v in changed.items()),
    ]
    run = subprocess.run(argv, input=lines, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    rows = [line.split(",") for line in run.stdout.splitlines()[1:]]
    assert sorted(int(row[0]) for row in rows) == list(range(len(commands)))
    done = [int(row[9]) for row in rows]
    assert done == sorted(done)
    for row in rows:
        command = commands[int(row[0])]
        command.entered, command.start, command.unit, command.done = map(int, row[6:10])


def reads(*offsets: int, length: int = 4 * KIB, every_ns: int = 0) -> list[Command]:
    return [Command("read", False, o, length, i * every_ns) for i, o in enumerate(offsets)]


def mixed(seed: int, device: str, count: int) -> list[Command]:
    """Return reads, writes, some with FUA, and flushes, of all sizes, in streams and strewn.

    Some begin where the one before began, and may lie in it.
    """
    draw = random.Random(seed)
    end = int(params(device)["capacity"]) // 512 - 1024
    heads = [draw.randrange(end - count * 512) * 512 for _ in range(4)]
    gap, now, commands = GAP_NS.get(device, 1e5) * draw.choice([0.1, 1, 3]), 0, []
    for _ in range(count):
        now += int(draw.expovariate(1 / gap)) if draw.random() < 0.8 else 0
        op = draw.choices(["read", "write", "flush"], [60, 40, 2])[0]
        if op == "flush":
            commands.append(Command(op, False, 0, 0, now))
            continue
        length, stream = draw.choice([512, 4096, 5000, 16384, 65536, 262144]), draw.randrange(10)
        offset = heads[stream] if stream < 4 else draw.randrange(end) * 512
        if stream == 4 and commands:
            offset = commands[-1].offset
        if stream < 4:
            heads[stream] += length
        fua = op == "write" and draw.random() < 0.05
        commands.append(Command(op, fua, offset, length, now))
    return commands


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"buffer_bytes": 65536.0, "queue_depth": 4.0},
        {"flush_exclusive": 0.0, "queue_depth": 500.0},
    ],
    ids=["as it is", "small", "flushes in the queue"],
)
@pytest.mark.parametrize("seed", range(4))
def test_every_time_is_what_the_rules_say(
    device: str, changed: dict[str, float], seed: int
) -> None:
    expected, commands = mixed(seed, device, 500), mixed(seed, device, 500)
    if "hdd" in device:
        changed = changed | {"aging_ms": [2400.0, 50.0][seed % 2]}
    serve(params(device) | changed, expected)
    replay(device, commands, sanitize=seed == 0, **changed)
    for got, wanted in zip(commands, expected, strict=True):
        assert vars(got) | {"mark": 0} == vars(wanted) | {"mark": 0}


@pytest.mark.parametrize("device", ["sata-ssd-px-256m5s", "nvme-970-pro"])
def test_lone_flash_read_takes_the_sum_of_its_parts(device: str) -> None:
    p = params(device)
    [command] = commands = reads(7 * int(p["page_bytes"]))
    replay(device, commands)
    link_us = 4 * KIB / p["link_mb_s"]
    parts_us = p["read_command_us"] + p["read_us"] + link_us + p["latency_us"]
    assert command.done == pytest.approx(1000 * parts_us, abs=2)
    assert command.unit == 7


def test_reads_on_one_unit_wait_for_each_other_and_others_do_not() -> None:
    p = params("nvme-970-pro")
    stripe = int(p["page_bytes"] * p["units"])
    same, other = reads(0, stripe, 2 * stripe), reads(0, 16 * KIB, 32 * KIB)
    replay("nvme-970-pro", same)
    replay("nvme-970-pro", other)
    assert [c.unit for c in same + other] == [0, 0, 0, 0, 1, 2]
    assert same[2].done - same[0].done == pytest.approx(2000 * p["read_us"], abs=2)
    assert other[2].done - other[0].done == pytest.approx(2000 * p["read_command_us"], abs=2)


@pytest.mark.parametrize("device", ["sata-ssd-px-256m5s", "nvme-970-pro"])
def test_flash_writes_run_at_the_link_until_the_buffer_is_full_then_at_the_units(
    device: str,
) -> None:
    p = params(device)
    commands = [Command("write", False, i * MIB, MIB, 0) for i in range(1000)]
    replay(device, commands, queue_depth=2000)
    first = int(p["buffer_bytes"]) // MIB // 2
    assert commands[first].done == pytest.approx((first + 1) * MIB * 1e3 / p["link_mb_s"], rel=0.02)
    units_mb_s = p["units"] * p["program_bytes"] / p["program_us"]
    late = commands[999].done - commands[499].done
    assert 500 * MIB * 1e3 / late == pytest.approx(min(units_mb_s, p["link_mb_s"]), rel=0.01)
    assert units_mb_s < p["link_mb_s"]


@pytest.mark.parametrize("device", ["sata-ssd-px-256m5s", "nvme-970-pro"])
def test_flash_flush_is_done_when_what_was_buffered_is_programmed(device: str) -> None:
    p = params(device)
    commands = [Command("write", False, 0, 4 * KIB, 0), Command("flush", False, 0, 0, 10**6)]
    commands += [Command("flush", False, 0, 0, 10**8)]
    replay(device, commands)
    took = [c.done - c.arrival for c in commands]
    parts = 1000 * (p["write_command_us"] + p["latency_us"])
    assert took[1] == pytest.approx(parts + 1000 * p["program_us"], abs=2)
    assert took[2] == pytest.approx(parts, abs=2)


def test_fua_write_waits_for_the_medium_and_another_does_not() -> None:
    for device in DEVICES.keys() - {"network-ceph-rbd"}:
        commands = [Command("write", False, 0, 4 * KIB, 0)]
        commands += [Command("write", True, 10**9, 4 * KIB, 10**9)]
        replay(device, commands)
        buffered, on_medium = (c.done - c.arrival for c in commands)
        assert on_medium > 4 * buffered


def _hdd_revolution_ns() -> float:
    return 60e9 / params("hdd-hts72755")["rpm"]


def test_hdd_reads_on_at_the_rate_of_its_zone() -> None:
    p = params("hdd-hts72755")
    end = int(p["capacity"])
    for begin, rate in ((0, "rate_outer_mb_s"), (end - 100 * MIB, "rate_inner_mb_s")):
        commands = reads(*(begin + i * MIB for i in range(100)), length=MIB)
        replay("hdd-hts72755", commands)
        took = commands[-1].done - commands[0].done
        assert 99 * MIB * 1e3 / took == pytest.approx(p[rate], rel=0.001)


def test_hdd_seek_and_rotation_are_within_their_bounds() -> None:
    p = params("hdd-hts72755")
    draw = random.Random(1)
    blocks = int(p["capacity"]) // 4096
    commands = reads(*(draw.randrange(blocks) * 4096 for _ in range(2000)), every_ns=10**8)
    replay("hdd-hts72755", commands)
    took = [c.done - c.start for c in commands]
    fastest = 1000 * p["seek_min_us"]
    slowest = 1000 * p["seek_max_us"] + _hdd_revolution_ns() + 4096e3 / p["rate_inner_mb_s"]
    assert fastest < min(took)
    assert max(took) < slowest
    # Between two places at random, E sqrt(d) along the radius is 8/15 where tracks are alike.
    seek = p["seek_min_us"] + 8 / 15 * (p["seek_max_us"] - p["seek_min_us"])
    mean = 1000 * seek + _hdd_revolution_ns() / 2
    assert sum(took) / len(took) == pytest.approx(mean, rel=0.04)


def test_hdd_queue_gains_by_reordering_and_serves_each_once() -> None:
    draw = random.Random(2)
    offsets = [draw.randrange(10**8) * 4096 for _ in range(400)]
    alone, queued = reads(*offsets, every_ns=10**8), reads(*offsets)
    replay("hdd-hts72755", alone)
    replay("hdd-hts72755", queued)
    one_by_one = sum(c.done - c.start for c in alone)
    assert queued[-1].arrival == 0
    assert max(c.done for c in queued) < 0.5 * one_by_one
    starts = sorted(c.start for c in queued)
    assert len(set(starts)) == len(queued)
    assert all(c.entered == 0 for c in queued[:32])
    assert [c.entered for c in queued[32:]] == sorted(c.done for c in queued)[:368]


def test_hdd_starves_a_distant_read_until_it_ages_and_no_longer() -> None:
    stream = [Command("read", False, i * 128 * KIB, 128 * KIB, i * 10**6) for i in range(5000)]
    victim = Command("read", False, 400 * 10**9, 4 * KIB, 50 * 10**6)
    commands = sorted([*stream, victim], key=lambda c: c.arrival)
    for aging_ms in (300, 2400):
        replay("hdd-hts72755", commands, aging_ms=aging_ms)
        waited_ms = (victim.done - victim.arrival) / 1e6
        assert aging_ms < waited_ms < aging_ms + 50


def test_hdd_reads_ahead_while_idle() -> None:
    p = params("hdd-hts72755")
    commands = reads(0, 64 * KIB, 10**9, length=64 * KIB, every_ns=10**8)
    replay("hdd-hts72755", commands)
    _, second, third = commands
    hit_us = p["command_us"] + 64 * KIB / p["link_mb_s"]
    assert second.done - second.arrival == pytest.approx(1000 * hit_us, abs=2)
    assert [c.unit for c in commands] == [0, -1, 0]
    assert third.done - third.arrival > 1000 * p["seek_min_us"]


def test_hdd_write_buffer_fills_and_flush_drains_it() -> None:
    p = params("hdd-hts72755")
    draw = random.Random(3)
    blocks = [draw.randrange(10**8) * 4096 for _ in range(100)]
    room = 4 * KIB * 50
    commands = [Command("write", False, block, 4 * KIB, 0) for block in blocks]
    commands.append(Command("flush", False, 0, 0, 1))
    replay("hdd-hts72755", commands, buffer_bytes=room, queue_depth=1000)
    quick = [c for c in commands[:-1] if c.done <= 1000 * (p["command_us"] + 50)]
    assert len(quick) == 50
    last = max(c.done for c in commands[:-1])
    # What came last is still in the buffer then: at least the transfers of 50 blocks.
    assert commands[-1].done > last + 49 * 1000 * p["seek_min_us"] / 2
    assert commands[-1].entered == last


def test_nothing_is_lost_when_everything_comes_at_once() -> None:
    for device in DEVICES:
        commands = mixed(99, device, 3000)
        for command in commands:
            command.arrival = 0
        replay(device, commands, sanitize=True)
        assert all(0 <= c.entered <= c.start <= c.done < NEVER for c in commands)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rpm = fast", "rpm is a number"),
        ("rpm = 0", "rpm is from 100"),
        ("spin = 1", "spin is not a parameter"),
        ("units = 3", "units is of another kind"),
        ("nonsense", "a line is"),
        ("rate_inner_mb_s = 500", "not above"),
    ],
)
def test_wrong_parameter_is_named_with_the_mend(line: str, words: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.conf"
    wrong.write_text(DEVICES["hdd-hts72755"].read_text() + line + "\n")
    run = subprocess.run([built() / "replay", wrong], input="", capture_output=True, text=True)
    assert run.returncode == 2
    assert words in run.stderr


def test_missing_parameter_is_named(tmp_path: Path) -> None:
    short = tmp_path / "short.conf"
    short.write_text("kind = hdd\n")
    run = subprocess.run([built() / "replay", short], input="", capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (2, "replay: capacity is missing\n")
