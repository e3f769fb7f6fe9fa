"""Pauses, the write cliff, latency that moves and discards: by hand, and equal in both models."""

import random
import subprocess

import pytest

from benchmarks.disksim.params import check
from benchmarks.disksim.tests.test_model import MIB, mixed, reads, replay
from benchmarks.disksim.twin import Command, Params, serve
from iokeel.core.values.curve import KIB
from testing.lab.disks.disksim import DEVICES, built, params

SATA, NVME = "sata-ssd-px-256m5s", "nvme-970-pro"
MS, S = 10**6, 10**9
BY_TIME: Params = {"pause_every_s": 0.002, "pause_ms": 0.7, "pause_factor": 2.5}
BY_BYTES: Params = {"pause_every_bytes": 1e6, "pause_ms": 1, "pause_factor": 2.3}
CLIFF: Params = {"slc_bytes": 2e6, "slc_factor": 3.7, "slc_empty_mb_s": 50}
EXTRA: Params = {"extra_us": 300, "extra_from_s": 0.001, "extra_to_s": 0.004}
DISCARDS: Params = {"discard_mb_s": 50_000}


def aging(seed: int, device: str) -> list[Command]:
    """Return 400 commands of all kinds, one in twenty a discard."""
    draw, commands = random.Random(seed), mixed(seed, device, 400)
    for command in commands:
        if command.op == "write" and draw.random() < 0.12:
            command.op, command.fua = "discard", False
            command.length *= 64
    return commands


@pytest.mark.parametrize("device", [SATA, NVME])
@pytest.mark.parametrize(
    "changed",
    [
        BY_TIME,
        BY_BYTES,
        CLIFF,
        EXTRA,
        BY_TIME | CLIFF | EXTRA,
        BY_BYTES | CLIFF | EXTRA | {"queue_depth": 4, "buffer_bytes": 65536},
    ],
    ids=["by time", "by bytes", "cliff", "latency", "by time and all", "by bytes and all"],
)
@pytest.mark.parametrize("seed", range(3))
def test_both_models_agree_on_every_time(device: str, changed: Params, seed: int) -> None:
    expected, commands, new = (aging(seed, device) for _ in range(3))
    serve(params(device) | DISCARDS | changed, expected)
    serve(params(device) | DISCARDS, new)
    replay(device, commands, sanitize=seed == 0, **DISCARDS, **changed)
    for got, wanted in zip(commands, expected, strict=True):
        assert vars(got) | {"mark": 0} == vars(wanted) | {"mark": 0}
    assert [c.done for c in commands] != [c.done for c in new]


def took_ns(device: str, commands: list[Command], **changed: float) -> list[int]:
    replay(device, commands, sanitize=False, **changed)
    return [command.done - command.arrival for command in commands]


def at(*moments_ns: int, op: str = "read", length: int = 4 * KIB) -> list[Command]:
    """Return commands at these moments, each on another unit of a flash disk: 5, 12, 19, ..."""
    pages = (5 + 7 * i for i in range(len(moments_ns)))
    return [
        Command(op, False, page * 16 * KIB, length, moment)
        for page, moment in zip(pages, moments_ns, strict=True)
    ]


def read_ns(device: str, factor: float = 1) -> float:
    """Return what a lone read of 4 KiB takes, all of it but the latency `factor` times as long."""
    p = params(device)
    work_us = p["read_command_us"] + p["read_us"] + 4 * KIB / p["link_mb_s"]
    return 1000 * (factor * work_us + p["latency_us"])


def test_pause_by_time_is_the_end_of_each_period() -> None:
    inside = (950 * MS, 1900 * MS, 2999 * MS)
    outside = (0, 899 * MS, 1000 * MS, 1899 * MS, 2000 * MS)
    rule: Params = {"pause_every_s": 1, "pause_ms": 100, "pause_factor": 3}
    assert took_ns(NVME, at(*inside), **rule) == pytest.approx([read_ns(NVME, 3)] * 3, abs=3)
    assert took_ns(NVME, at(*outside), **rule) == pytest.approx([read_ns(NVME)] * 5, abs=3)


def test_pause_by_bytes_begins_when_they_are_programmed() -> None:
    p = params(SATA)
    link_us = 32 * KIB / p["link_mb_s"]
    programmed = round(1000 * (p["write_command_us"] + link_us + p["program_us"]))
    write = Command("write", False, 0, 32 * KIB, 0)  # on two units at once
    later = at(MS, programmed + MS, programmed + 9 * MS, programmed + 11 * MS)
    rule: Params = {"pause_every_bytes": 32 * KIB, "pause_ms": 10, "pause_factor": 3}
    took = took_ns(SATA, [write, *later], **rule)[1:]
    factors = (1, 3, 3, 1)
    assert took == pytest.approx([read_ns(SATA, factor) for factor in factors], abs=3)


def test_programs_that_find_the_slc_cache_full_take_longer_until_it_has_emptied() -> None:
    p = params(SATA)
    rule: Params = {"slc_bytes": 64 * KIB, "slc_factor": 4, "slc_empty_mb_s": 1}
    commands = []
    for moment, length in ((0, 64 * KIB), (10 * MS, 16 * KIB), (40 * MS, 16 * KIB)):
        commands += [Command("write", False, 0, length, moment)]
        commands += [Command("flush", False, 0, 0, moment)]
    took = took_ns(SATA, commands, **rule)[1::2]
    # 8.6 KB are out after 10 ms: no room for 16 KiB. 24 KB more are at 40 ms.
    for flush_ns, length, factor in zip(took, (64, 16, 16), (1, 4, 1), strict=True):
        us = p["write_command_us"] + length * KIB / p["link_mb_s"] + factor * p["program_us"]
        assert flush_ns == pytest.approx(1000 * (us + p["latency_us"]), abs=3)


def test_latency_that_moves_holds_up_no_other() -> None:
    rule: Params = {"extra_us": 1000, "extra_from_s": 0.01, "extra_to_s": 0.02}
    lone = took_ns(NVME, at(5 * MS, 15 * MS, 25 * MS), **rule)
    alone = read_ns(NVME)
    assert lone == pytest.approx([alone, alone + MS, alone], abs=3)
    writes = took_ns(NVME, at(5 * MS, 15 * MS, 25 * MS, op="write"), **rule)
    assert [ns - writes[0] for ns in writes] == [0, MS, 0]
    many = [at(*[moment] * 1000) for moment in (5 * MS, 15 * MS)]
    before, during = (took_ns(NVME, commands, **rule) for commands in many)
    assert [ns - MS for ns in during] == before


def test_discard_takes_the_controller_as_long_as_its_bytes() -> None:
    p = params(NVME)
    discard = Command("discard", False, 0, MIB, 0)
    first, second = took_ns(NVME, [discard, *reads(0)], discard_mb_s=1000)
    takes_us = p["write_command_us"] + MIB / 1000
    assert first == pytest.approx(1000 * (takes_us + p["latency_us"]), abs=3)
    assert second == pytest.approx(1000 * takes_us + read_ns(NVME), abs=3)


def test_sata_discard_is_alone_in_the_device() -> None:
    discard = Command("discard", False, 0, MIB, 1)
    commands = [*reads(0), discard, *reads(16 * KIB, 32 * KIB)]
    for command in commands[2:]:
        command.arrival = 1
    replay(SATA, commands, discard_mb_s=1000)
    assert commands[1].entered == commands[0].done
    assert [c.entered for c in commands[2:]] == [commands[1].done] * 2


def test_worn_disk_writes_at_half_its_rate() -> None:
    for device, mb_s in ((SATA, 390), (f"{SATA}-worn", 195)):
        commands = [Command("write", False, i * MIB, MIB, 0) for i in range(3000)]
        replay(device, commands)
        assert 2000 * MIB * 1e3 / (commands[2999].done - commands[999].done) == pytest.approx(
            mb_s, rel=0.05
        )


def test_slc_cache_ends_where_it_is_published_to_and_comes_back() -> None:
    def mb_s(first: int, last: int) -> float:
        return (last - first) * MIB * 1e3 / (commands[last].done - commands[first].done)

    commands = [Command("write", False, i * MIB, MIB, 0) for i in range(7000)]
    commands += [Command("write", False, i * MIB, MIB, 100 * S) for i in range(2000)]
    replay("sata-ssd-860-qvo", commands)
    assert mb_s(0, 5700) == pytest.approx(520, rel=0.02)
    assert mb_s(5800, 6999) == pytest.approx(80, rel=0.02)
    assert mb_s(7100, 8900) == pytest.approx(520, rel=0.02)


@pytest.mark.parametrize(("extra_us", "published"), [(0, 21_500), (5240, 11_209), (24_690, 2544)])
def test_recovering_cluster_has_the_published_rates_at_depth_64(
    extra_us: int, published: int
) -> None:
    device = "network-ceph-rbd"
    draw = random.Random(1)
    commands = [Command("write", False, draw.randrange(10**7) * 4096, 4096, 0) for _ in range(9000)]
    changed = {"extra_us": extra_us, "extra_from_s": 0, "extra_to_s": 1e6}
    replay(device, commands, sanitize=False, queue_depth=64, **changed)
    rate = 8000 * S / (commands[8999].done - commands[999].done)
    assert rate == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pause_ms": -1}, "pause_ms is from 0.001"),
        ({"pause_ms": 0}, "pause_ms is from 0.001"),
        ({"pause_every_s": -1}, "pause_every_s is from 0"),
        ({"pause_every_s": 1, "pause_factor": 2}, "a pause needs"),
        ({"pause_ms": 5, "pause_factor": 2}, "a pause needs"),
        ({"pause_factor": 2}, "a pause needs"),
        ({"pause_every_s": 1, "pause_ms": 1000, "pause_factor": 2}, "not less than"),
        ({"pause_every_s": 9, "pause_every_bytes": 9, "pause_ms": 1, "pause_factor": 2}, "be 0"),
        ({"pause_every_s": 1, "pause_ms": 1, "pause_factor": 0}, "pause_factor is from 1"),
        ({"slc_bytes": 4096}, "an SLC cache needs"),
        ({"slc_factor": 3, "slc_empty_mb_s": 1}, "an SLC cache needs"),
        ({"slc_bytes": 1, "slc_factor": 1, "slc_empty_mb_s": -1}, "slc_empty_mb_s is from 0"),
        ({"extra_us": 5}, "extra latency needs"),
        ({"extra_us": -5, "extra_from_s": 0, "extra_to_s": 1}, "extra_us is from 0"),
        ({"extra_us": 5, "extra_from_s": 3, "extra_to_s": 3}, "extra_to_s is not after"),
        ({"discard_mb_s": 0}, "discard_mb_s is from 1"),
        ({"pause_evry_s": 1}, "pause_evry_s is not a parameter"),
        ({"rpm": 7200}, "is of another kind"),
    ],
)
def test_impossible_parameters_are_refused_alike(changed: dict[str, int], words: str) -> None:
    argv = [str(built() / "replay"), str(DEVICES[SATA])]
    argv += [f"{name}={value}" for name, value in changed.items()]
    run = subprocess.run(argv, input="", capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("replay: ")
    assert words in run.stderr
    assert run.stderr.count("\n") == 1
    if "rpm" not in changed:  # it says which kind the device is, in Python
        with pytest.raises(ValueError, match=words) as refused:
            serve(params(SATA) | changed, [])
        assert run.stderr == f"replay: {refused.value}\n"


def test_zero_switches_a_rule_off() -> None:
    off: Params = {"pause_every_bytes": 0, "slc_bytes": 0, "extra_us": 0}
    rules = BY_BYTES | CLIFF | EXTRA | off
    commands, new = aging(5, SATA), aging(5, SATA)
    replay(SATA, commands, sanitize=False, **DISCARDS, **rules)
    serve(params(SATA) | DISCARDS, new)
    assert [c.done for c in commands] == [c.done for c in new]


def test_hard_disk_takes_no_extras_and_no_discards() -> None:
    hdd = params("hdd-hts72755")
    with pytest.raises(ValueError, match="slc_bytes is of another kind of device"):
        check(hdd | CLIFF)
    with pytest.raises(ValueError, match="no discards"):
        serve(hdd, [Command("discard", False, 0, 4096, 0)])
    line = "0,discard,0,0,4096,0\n"
    for device in ("hdd-hts72755", SATA):
        argv = [built() / "replay", DEVICES[device]]
        run = subprocess.run(argv, input=line, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (
            1, "replay: line 1 is a discard: the device needs discard_mb_s\n"
        )  # fmt: skip
