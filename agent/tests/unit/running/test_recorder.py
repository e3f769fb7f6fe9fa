"""The recorder, in virtual time and with real files: restarts, kills, clocks that step."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.core.values.counters import Counters, DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import (
    Demand,
    Division,
    DriveState,
    Measured,
    Share,
    StorageState,
)
from iokeel.core.values.storage import StoragePolicy
from iokeel.report.records import Above
from iokeel.store.weeks import HOUR_S, VERSION, DriveHour, DriveKey, Hour
from testing.sim.recording import FIRST, Recording

A, B = DriveId("a", "vda"), DriveId("b", "vda")
KEY_A, KEY_B = DriveKey("name:a", "vda"), DriveKey("name:b", "vda")


def recorded(recording: Recording, **more: bool) -> dict[int, Hour]:
    return {hour.hour: hour for hour in recording.recorder.hours(0, 10**9, **more)}


def in_file(folder: Path) -> dict[int, Hour]:
    """What another agent finds."""
    return recorded(Recording(folder))


def test_hours_have_the_rates_of_their_time(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(HOUR_S, {A: 100.0, B: 5.0})
    recording.run(HOUR_S, {A: 1000.0, B: 7.0})
    recording.stop()
    found = in_file(tmp_path)
    assert [*found] == [FIRST, FIRST + 1, FIRST + 2]
    for hour, a, b in ((FIRST, 100, 5), (FIRST + 1, 1000, 7)):
        drives, sums = found[hour].drives, found[hour].storages["ssd"].rates
        assert drives[KEY_A].rates.quantiles([0.5])[0] == pytest.approx(a, rel=0.03)
        assert drives[KEY_A].peak_iops == pytest.approx(a, rel=0.01)
        assert sums.quantiles([0.5])[0] == pytest.approx(a + b, rel=0.03)
        assert found[hour].seconds == pytest.approx(HOUR_S, abs=4)
        assert drives[KEY_B].rates.total == found[hour].samples


def test_the_hour_that_is_not_over_is_told_too(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(600, {A: 100.0})
    assert recorded(recording)[FIRST].seconds == pytest.approx(600, abs=62)
    recording.run(HOUR_S, {A: 100.0})
    assert [*recorded(recording)] == [FIRST, FIRST + 1]


def test_a_killed_agent_loses_the_last_minute_only(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(HOUR_S + 1200, {A: 100.0})
    recording.run(61, {A: 900.0})
    again = Recording(tmp_path)  # nothing was stopped
    again.now_s = recording.now_s
    again.run(600, {A: 100.0})
    again.stop()
    found = in_file(tmp_path)
    assert found[FIRST].seconds == pytest.approx(HOUR_S, abs=4)
    assert 1800 <= found[FIRST + 1].seconds <= 1864
    assert not [*tmp_path.glob("*.journal")]


def test_what_was_counted_is_the_same_after_kills(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for minute in range(30):
        recording.run(60, {A: 50.0 * minute, B: 10.0})
        recording.run(2, {A: 1.0, B: 10.0})
        recording.recorder.finish()
        recording.recorder.record_now()
        before = recorded(recording)
        now_s = recording.now_s
        recording = Recording(tmp_path)
        recording.now_s = now_s
        recording.recorder.record_now()
        assert recorded(recording) == before or _alike(recorded(recording), before)


def _alike(one: dict[int, Hour], other: dict[int, Hour]) -> bool:
    return {n: (h.seconds, h.samples, [*map(_told, h.drives.items())]) for n, h in one.items()} == {
        n: (h.seconds, h.samples, [*map(_told, h.drives.items())]) for n, h in other.items()
    }


def _told(drive: tuple[DriveKey, DriveHour]) -> object:
    key, its = drive
    return key, its.about, its.rates.pack(10_000), its.peak_iops, its.held_s


@pytest.mark.parametrize("left", [1, 3, 4, 5, 100])
def test_a_minute_that_a_kill_cut_off_is_left_out(tmp_path: Path, left: int) -> None:
    recording = Recording(tmp_path)
    recording.run(301, {A: 100.0})
    (journal,) = tmp_path.glob("*.journal")
    whole = journal.read_bytes()
    recording.run(60, {A: 100.0})
    journal.write_bytes(journal.read_bytes()[: len(whole) + left])
    again = Recording(tmp_path)
    again.now_s = recording.now_s
    again.recorder.record_now()
    assert journal.read_bytes() == whole
    again.run(130, {A: 100.0})
    third = Recording(tmp_path)
    third.recorder.record_now()
    assert recorded(third)[FIRST].seconds == pytest.approx(240 + 120, abs=70)


def test_a_journal_that_the_file_has_already_counts_once(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(1800, {A: 100.0})
    (journal,) = tmp_path.glob("*.journal")
    left = journal.read_bytes()
    recording.stop()
    seconds = in_file(tmp_path)[FIRST].seconds
    journal.write_bytes(left)  # killed between the two
    again = Recording(tmp_path)
    again.recorder.record_now()
    assert recorded(again)[FIRST].seconds == seconds


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4000), st.integers(-3 * HOUR_S, 3 * HOUR_S), st.booleans()),
        max_size=12,
    )
)
def test_no_hour_is_counted_twice_whatever_the_clock_does(
    steps: list[tuple[int, int, bool]],
) -> None:
    with TemporaryDirectory() as folder:
        recording = Recording(Path(folder))
        for seconds, step, killed in steps:
            recording.run(seconds, {A: 10.0}, step_s=10)
            if killed:
                now_s = recording.now_s
                recording = Recording(Path(folder))
                recording.now_s = now_s
            recording.now_s += step
        recording.stop()
        for hour in in_file(Path(folder)).values():
            assert 0 <= hour.seconds <= HOUR_S + 5
            assert 0 <= hour.drives[KEY_A].rates.total <= hour.samples


def test_a_gap_is_not_counted(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(120, {A: 10.0})
    recording.run(1800, {A: 10.0}, step_s=1800)  # the host slept
    recording.run(120, {A: 10.0})
    recording.stop()
    assert in_file(tmp_path)[FIRST].seconds == pytest.approx(300, abs=4)


def test_a_guest_is_known_by_its_uuid_over_renames(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.uuids = {"a": "c5f6", "b": ""}
    recording.run(300, {A: 10.0, B: 10.0})
    recording.uuids = {"renamed": "c5f6", "b": ""}
    recording.run(300, {DriveId("renamed", "vda"): 10.0, B: 10.0})
    recording.stop()
    drives = in_file(tmp_path)[FIRST].drives
    assert drives.keys() == {DriveKey("c5f6", "vda"), KEY_B}
    assert drives[DriveKey("c5f6", "vda")].about.domain == "renamed"
    assert drives[DriveKey("c5f6", "vda")].rates.total == drives[KEY_B].rates.total


def test_a_name_that_passes_to_another_guest_has_two_histories(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.uuids = {"a": "1"}
    recording.run(300, {A: 10.0})
    recording.uuids = {"a": "2"}
    recording.run(300, {A: 10.0})
    recording.stop()
    totals = {key.vm: its.rates.total for key, its in in_file(tmp_path)[FIRST].drives.items()}
    assert totals == {"1": 150, "2": 150}


def test_any_name_is_recorded(tmp_path: Path) -> None:
    names = ["<b>x</b>", "a\nb\x1b[2J", "\udcff", "\0", "'; DROP TABLE drives;--", "ü" * 300]
    recording = Recording(tmp_path)
    recording.run(120, {DriveId(name, "vda"): 10.0 for name in names})
    recording.stop()
    found = {its.about.domain for its in in_file(tmp_path)[FIRST].drives.values()}
    assert found == {"?" if name == "\udcff" else name for name in names}


def test_how_long_limits_held_is_counted(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for number in range(1, 601):
        held = DriveState(DrivePolicy(limit=100), demand=Demand(throttled_s=0.5 * number))
        observed = DriveState(DrivePolicy(limit=100), demand=Demand(throttled_s=2.0 * number))
        recording.sample({A: held, B: observed}, above={B: Above(0.25 * number)})
    recording.stop()
    drives = in_file(tmp_path)[FIRST].drives
    assert drives[KEY_A].held_s == pytest.approx(300, abs=1)
    assert drives[KEY_B].held_s == pytest.approx(150, abs=1)
    assert (drives[KEY_A].about.observed, drives[KEY_B].about.observed) == (False, True)
    assert drives[KEY_A].about.limit_iops == 100


def _did(rate: float, latency_s: float = 0.001) -> Measured:
    rates = Rates(1.0, Flow(rate, rate * 4096), Flow(0.0, 0.0), latency_s, None)
    return Measured(Counters(0, 0, 0, 0, 0, 0, 0), rates, rate, budget_rate=rate)


def test_promises_and_who_took_more_than_owed_are_judged(tmp_path: Path) -> None:
    quick = DrivePolicy(reservation=500, latency_target_ms=2)
    held = Demand(backlogged=True)
    noisy = DriveState(DrivePolicy(), "ssd", measured=_did(4000), share=Share(1000, "ssd", 0, 1000))
    fine = DriveState(quick, "ssd", measured=_did(500), demand=held)
    short = fine._replace(measured=_did(300))
    idle = fine._replace(measured=_did(10), demand=Demand())
    waiting = fine._replace(measured=_did(200, 0.02), demand=Demand())
    calm = StorageState(StoragePolicy(capacity=5000), promised=500.0)
    slow = StorageState(
        StoragePolicy(capacity=5000),
        division=Division(4000.0),
        held_up={A: 500.0},
    )
    recording = Recording(tmp_path)
    recording.uuids = {"a": "", "b": ""}
    for known, storage in ((fine, calm), (short, calm), (idle, calm), (waiting, slow)):
        for _ in range(50):
            recording.sample({A: known, B: noisy}, storages={"ssd": storage})
    recording.stop()
    hour = in_file(tmp_path)[FIRST]
    a, ssd = hour.drives[KEY_A], hour.storages["ssd"]
    assert (a.reservation_kept_s, a.reservation_missed_s) == pytest.approx((200, 200), abs=2)
    # While its limits hold it, its latency may be its wait for these.
    assert (a.latency_kept_s, a.latency_missed_s) == pytest.approx((100, 100), abs=2)
    assert ssd.missed_s == pytest.approx(200, abs=2)
    assert ssd.takers == {("b", "vda"): pytest.approx(3000 * 200, rel=0.02)}
    assert ssd.most_s == {("b", "vda"): pytest.approx(200, abs=2)}
    assert (ssd.usable_iops, ssd.reserved_iops) == (4000, 500)


def test_a_later_versions_file_is_left_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "history.db"
    with sqlite3.connect(file) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = file.read_bytes()
    recording = Recording(tmp_path)
    recording.run(2 * HOUR_S, {A: 10.0})
    recording.stop()
    assert file.read_bytes() == before
    (line,) = caplog.messages
    assert line == (
        f"{file}: stays as it is: a later iokeel wrote it: it has version {VERSION + 1}, and this"
        f" one knows {VERSION}; nothing is recorded until that iokeel is back or the file is moved"
        " away"
    )


def test_a_damaged_file_is_set_aside_and_a_new_one_has_all_hours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "history.db"
    file.write_bytes(b"no database at all" * 300)
    recording = Recording(tmp_path)
    recording.run(2 * HOUR_S, {A: 10.0})
    recording.stop()
    assert [*in_file(tmp_path)] == [FIRST, FIRST + 1, FIRST + 2]
    assert (tmp_path / "history.damaged").read_bytes().startswith(b"no database")
    told, again = caplog.messages
    assert "set aside as history.damaged" in told
    assert again.endswith("written again")


def test_nothing_is_recorded_for_no_days(tmp_path: Path) -> None:
    recording = Recording(tmp_path, keep_hours=0)
    recording.run(2 * HOUR_S, {A: 10.0})
    recording.stop()
    assert not [*tmp_path.iterdir()]
