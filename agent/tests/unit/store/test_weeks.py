"""The file of weeks: bounded, whatever the clock does, and nothing of it is lost by a bad row."""

from __future__ import annotations

import random
import sqlite3
from array import array
from pathlib import Path

import pytest

from iokeel.store.histogram import buckets
from iokeel.store.weeks import (
    VERSION,
    DriveAbout,
    DriveHour,
    DriveKey,
    Hour,
    LaterVersion,
    StorageHour,
    read,
    write,
)

KEEP = 24 * 14
NOW = 480_000
VDA = DriveKey("c5f6", "vda")


def drive(name: str = "db1", spread: float = 0.0, held_s: float = 0.0) -> DriveHour:
    found = DriveHour(DriveAbout(name, "c5f6", "ssd", "acme", 1000, 100), held_s=held_s)
    draw = random.Random(3)
    rates = [1000 * draw.lognormvariate(0, spread) for _ in range(1800)]
    found.rates.add(memoryview(buckets(array("f", rates))).cast("H"))
    found.peak_iops = max(rates)
    waits = [rate / 1e6 for rate in rates]
    found.waits.add(memoryview(buckets(array("f", waits))).cast("H"))
    return found


def hour(number: int = NOW, **drives: DriveHour) -> Hour:
    return Hour(number, 3600.0, 1800, {DriveKey(n, "vda"): d for n, d in drives.items()})


def hours(file: Path) -> list[int]:
    return [each.hour for each in read(file, 0, 10**9)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    one = hour(a=drive(held_s=7.0))
    takers = {(f"vm{n}", "vda"): float(n) for n in range(9)}
    rates, most_s = one.drives[DriveKey("a", "vda")].rates, {("vm8", "vda"): 60.0}
    one.storages["ssd"] = StorageHour(rates, 5000, 300, 61, takers, most_s)
    write(file, [one], KEEP, NOW)
    (found,) = read(file, NOW, NOW + 1, waits=True)
    assert (found.hour, found.seconds, found.samples) == (NOW, 3600.0, 1800)
    ((key, its),) = found.drives.items()
    assert key == DriveKey("a", "vda")
    assert its.about == DriveAbout("db1", "c5f6", "ssd", "acme", 1000, 100)
    assert (its.rates.total, its.waits.total, its.held_s) == (1800, 1800, 7.0)
    assert its.rates.quantiles([0.5])[0] == pytest.approx(1000, rel=0.03)
    assert its.waits.quantiles([0.5])[0] == pytest.approx(0.001, rel=0.06)
    storage = found.storages["ssd"]
    assert (storage.usable_iops, storage.reserved_iops, storage.missed_s) == (5000, 300, 61)
    assert storage.takers == {(f"vm{n}", "vda"): n for n in range(4, 9)}  # the most five
    assert storage.most_s[("vm8", "vda")] == 60


def test_an_hour_that_is_written_again_is_there_once(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    write(file, [hour(a=drive(), b=drive())], KEEP, NOW)
    write(file, [hour(a=drive(held_s=9))], KEEP, NOW)
    (found,) = read(file, 0, NOW + 1)
    assert {key.vm: its.held_s for key, its in found.drives.items()} == {"a": 9}


def test_a_renamed_guest_keeps_its_history(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    write(file, [hour(NOW, a=drive("old"))], KEEP, NOW)
    write(file, [hour(NOW + 1, a=drive("new"))], KEEP, NOW + 1)
    names = [its.about.domain for each in read(file, 0, 10**9) for its in each.drives.values()]
    assert names == ["new", "new"]


@pytest.mark.parametrize("spread", [0.3, 0.6, 1.0, 3.0])
def test_a_week_of_a_drive_has_30_kb(tmp_path: Path, spread: float) -> None:
    file = tmp_path / "history.db"
    one = drive(spread=spread)
    one.held_s = one.reservation_kept_s = one.latency_kept_s = 1700
    one.reservation_missed_s = one.latency_missed_s = 1900
    one.about = one.about._replace(limit_iops=100_000, reservation_iops=90_000)
    drives = {f"{number:036}": one for number in range(50)}
    for number in range(NOW, NOW + 12):
        write(file, [hour(number, **drives)], KEEP, number)
    assert 14 * file.stat().st_size / len(drives) < 30_000


def test_the_nearest_hours_are_kept_and_the_file_stops_growing(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    for number in range(NOW, NOW + 12):
        write(file, [hour(number, **{f"a{number}": drive()})], 5, number)
        if number == NOW + 8:
            size = file.stat().st_size
    assert hours(file) == [*range(NOW + 7, NOW + 12)]
    assert file.stat().st_size <= size
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM drives").fetchone() == (5,)


@pytest.mark.parametrize("wrong", [0, NOW + 10**6])
def test_a_clock_that_was_wrong_for_an_hour_costs_one_hour(tmp_path: Path, wrong: int) -> None:
    file = tmp_path / "history.db"
    for number in range(NOW, NOW + 5):
        write(file, [hour(number, a=drive())], 5, number)
    write(file, [hour(wrong, a=drive())], 5, wrong)
    assert len({*hours(file)} & {*range(NOW, NOW + 5)}) == 4
    write(file, [hour(NOW + 5, a=drive())], 5, NOW + 5)
    assert wrong not in hours(file)
    assert len(hours(file)) == 5


def test_a_later_versions_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    with sqlite3.connect(file) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = file.read_bytes()
    with pytest.raises(LaterVersion, match=f"has version {VERSION + 1}, and this one knows"):
        write(file, [hour(a=drive())], KEEP, NOW)
    with pytest.raises(LaterVersion):
        [*read(file, 0, 10**9)]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("column", "value"), [("rates", b"\xff"), ("rates", None), ("peak_iops", "x"), ("held_s", None)]
)
def test_a_bad_row_costs_only_itself(tmp_path: Path, column: str, value: object) -> None:
    file = tmp_path / "history.db"
    write(file, [hour(a=drive(), b=drive())], KEEP, NOW)
    with sqlite3.connect(file) as database:
        database.execute(f"UPDATE drive_hours SET {column} = ? WHERE hour_and_drive & 1", (value,))
    (found,) = read(file, 0, 10**9)
    assert [*found.drives] == [DriveKey("b", "vda")]


def test_no_file_has_no_hours(tmp_path: Path) -> None:
    assert hours(tmp_path / "history.db") == []
    assert not [*tmp_path.iterdir()]
