"""Tenants and storages that go from the configuration, by the state store that keeps them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.config.settings import Config
from iokeel.store.store import StateStore

ACME = "[tenants.acme]\nlimit = 600\nreservation = 50\n"
FAST = '[storage.fast]\ndevice = "/dev/sda"\ncapacity = 4000\ncurve_read = [["4k", 1], ["1m", 9]]\n'
GONE = {("tenants", "acme"), ("storage", "fast")}


def started(folder: Path, text: str) -> Config:
    """Return the configuration that an agent runs by, after those before it."""
    return StateStore(folder).keep_tables(parse(text.encode(), "agent.toml"))


def test_what_is_written_is_what_holds(tmp_path: Path) -> None:
    first = started(tmp_path, ACME + FAST)
    assert first == parse((ACME + FAST).encode(), "agent.toml")
    assert first.gone == {}


def test_tables_that_have_gone_stay_as_they_were_last(tmp_path: Path) -> None:
    first = started(tmp_path, ACME + FAST)
    for _ in range(2):
        later = started(tmp_path, "")
        assert later.tenants == first.tenants
        assert later.storages == first.storages
        assert later.gone.keys() == GONE
    error = later.gone["tenants", "acme"]
    assert error.where == "[tenants.acme]"
    assert "put it back, or write an empty [tenants.acme]" in error.mend
    again = started(tmp_path, "[tenants.acme]\nlimit = 700\n" + FAST)
    assert again.gone == {}
    assert started(tmp_path, "").tenants["acme"].limit == 700


def test_an_empty_table_lifts_what_was_there(tmp_path: Path) -> None:
    started(tmp_path, ACME + FAST)
    assert started(tmp_path, "[tenants.acme]\n[storage.fast]\n").tenants["acme"].limit is None
    later = started(tmp_path, "")
    assert (later.tenants, later.storages, later.gone) == ({}, {}, {})


def test_a_storage_that_is_renamed_has_not_gone(tmp_path: Path) -> None:
    started(tmp_path, FAST)
    renamed = FAST.replace("fast", "quick").replace("4000", "5000")
    assert [*started(tmp_path, renamed).storages] == ["quick"]
    assert started(tmp_path, renamed).gone == {}


@pytest.mark.parametrize("place", ['device = "/dev/sda"', 'drives = ["db*/vda"]'])
def test_a_storage_that_is_renamed_and_then_goes_stays_as_it_was_last(
    tmp_path: Path, place: str
) -> None:
    names = ("fast", "quick", "fast")
    for name, capacity in zip(names, (4000, 9000, 5000), strict=True):
        started(tmp_path, f"[storage.{name}]\n{place}\ncapacity = {capacity}\n")
        later = started(tmp_path, "")
        assert {n: each.policy.capacity for n, each in later.storages.items()} == {name: capacity}
        assert later.gone.keys() == {("storage", name)}


def test_of_two_storages_that_have_gone_the_first_that_fits_is_still_taken(tmp_path: Path) -> None:
    some, others = "[storage.fast]\ndrives = ['db*/*']\n", "[storage.rest]\ndrives = ['*/*']\n"
    started(tmp_path, some + others)
    assert [*started(tmp_path, "").storages] == ["fast", "rest"]


def test_a_table_that_makes_no_sense_any_more_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started(tmp_path, ACME + FAST)
    for text in ("", "[", '{"limit": -1}', "[" * 9999, '{"no": 1}'):
        with sqlite3.connect(tmp_path / "state.db") as database:
            database.execute("UPDATE tables SET text = ? WHERE name = 'acme'", [text])
        database.close()
        caplog.clear()
        later = started(tmp_path, "")
        assert later.tenants == {}
        assert later.gone.keys() == GONE
        assert "it holds no longer; write it anew" in str(later.gone["tenants", "acme"])
        assert "[tenants.acme]" in caplog.text
        assert "set by hand" not in caplog.text


def test_a_damaged_file_is_set_aside_and_tables_are_kept_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 99)
    assert started(tmp_path, ACME).gone == {}
    assert "can't be used" in caplog.text
    assert started(tmp_path, "").gone.keys() == {("tenants", "acme")}


def test_a_folder_that_can_not_be_written_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.db").mkdir()
    assert started(tmp_path, ACME).tenants["acme"].limit == 600
    assert "a restart forgets tenants and storages" in caplog.text


def test_tables_that_could_not_be_saved_stay_at_a_reload(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    store = StateStore(tmp_path)
    store.keep_tables(parse((ACME + FAST).encode(), "agent.toml"))
    assert store.with_tables(Config()).gone.keys() == GONE
    (tmp_path / "state.db").rmdir()
    assert store.save({})
    assert not store.save({})
    with store.lock():
        assert started(tmp_path, "").gone.keys() == GONE


def test_a_table_lifted_while_nothing_could_be_saved_does_not_come_back(tmp_path: Path) -> None:
    started(tmp_path, ACME)
    (tmp_path / "state.db").rename(tmp_path / "away")
    (tmp_path / "state.db").mkdir()
    store = StateStore(tmp_path)
    store.keep_tables(parse(b"[tenants.acme]\n", "agent.toml"))
    (tmp_path / "state.db").rmdir()
    (tmp_path / "away").rename(tmp_path / "state.db")
    assert store.with_tables(Config()).gone == {}
    assert store.save({})
    assert started(tmp_path, "").gone == {}
