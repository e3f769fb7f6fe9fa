"""What a host remembers of the fleet is there after a restart, and is never made up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.ledger import Entry, first_ledger, successor
from iokeel.errors import IokeelError
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import FILE, Memory, Remembered, check

ACME = BudgetId(Kind.TENANT, "acme")
# A storage of the same name is another budget.
UMBRA = BudgetId(Kind.STORAGE, "acme")
BUDGET = Budget(4000, 0.2, 100, 300)
FIRST = first_ledger(4000, "e")
LEDGER = successor(FIRST, "f")


def test_what_is_kept_is_there_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    entry = Entry("i", 1, 2, 3, 1, LEDGER.stamp)
    known = Remembered(BUDGET, LEDGER.__class__(4000, LEDGER.spans, {"a": entry}))
    memory.keep({ACME: Remembered(BUDGET, None), UMBRA: Remembered(BUDGET, FIRST)})
    memory.keep({ACME: known, UMBRA: None})
    memory.close()
    again = Memory(tmp_path)
    assert again.known == {ACME: known}
    assert again.instance == memory.instance


def test_each_host_is_another_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert Memory(tmp_path / "one").instance != Memory(tmp_path / "two").instance


def test_a_commit_is_on_the_disk(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


# The fuzzer has made them.
NO_MEMORY, BAD_INDEX = (
    (Path(__file__).parents[2] / "fuzz/corpus/memory" / name).read_bytes()
    for name in ("no-memory", "bad-index")
)
DAMAGES = [
    "UPDATE tenants SET ledger = 'mine!'",
    "DROP TABLE tenants; CREATE TABLE tenants (name, budget, ledger);"
    " INSERT INTO tenants VALUES ('acme', NULL, NULL)",
    "ALTER TABLE host RENAME COLUMN instance TO other",
    *(f"UPDATE host SET instance = {text}" for text in ("NULL", "''", "5.5", "'a' || char(10)")),
]


@pytest.mark.parametrize("damage", ["", *DAMAGES])
def test_a_damaged_file_makes_another_host(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(tmp_path)
    memory.keep({ACME: Remembered(BUDGET, LEDGER)})
    memory._database.executescript(damage)
    memory.close()
    if not damage:
        (tmp_path / FILE).write_bytes(b"no database at all, but long enough" * 200)
    with caplog.at_level(logging.ERROR):
        again = Memory(tmp_path)
    assert again.instance != memory.instance
    assert again.known == {}
    assert "iokeel fleet forget" in caplog.text
    assert (tmp_path / FILE).with_suffix(".damaged").exists()


# Of one, SQLite says that it takes too much memory. A page of the other's index is damaged.
@pytest.mark.parametrize("damaged", [NO_MEMORY, BAD_INDEX])
def test_a_file_whose_damage_hardly_shows_is_set_aside(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE).write_bytes(damaged)
    assert Memory(tmp_path).known == {}
    assert (tmp_path / FILE).with_suffix(".damaged").exists()


def test_a_file_of_a_newer_iokeel_stays_as_it_is(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep({ACME: Remembered(BUDGET, LEDGER)})
    check(tmp_path)
    with memory._database as database:
        database.execute("UPDATE tenants SET ledger = replace(ledger, '\"v\":1', '\"v\":3')")
    newer = r"fleet.db: was written by a newer iokeel.*upgrade"
    with pytest.raises(IokeelError, match=newer):
        check(tmp_path)
    memory.close()
    with pytest.raises(IokeelError, match=newer):
        check(tmp_path)
    with pytest.raises(IokeelError, match=newer):
        Memory(tmp_path)
    assert not (tmp_path / FILE).with_suffix(".damaged").exists()


@pytest.mark.parametrize("content", [None, b"", b"no database at all", NO_MEMORY])
def test_only_a_newer_file_stops_a_check(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    check(tmp_path)
    assert [*tmp_path.iterdir()] == ([] if content is None else [tmp_path / FILE])


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(IokeelError, match=r"can't be used.*state_dir can be written"):
        Memory(tmp_path / "nowhere")
