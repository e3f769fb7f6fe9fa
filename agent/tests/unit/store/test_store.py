"""The state that survives restarts, in a real database."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections import UserDict
from collections.abc import ItemsView, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.config.load import parse
from iokeel.config.settings import Config, VmConfig
from iokeel.core.correct.headroom import LEAST_ROOM
from iokeel.core.values.counters import DriveId, Flow, Mix
from iokeel.core.values.curve import CostCurve
from iokeel.core.values.limits import FIELDS, ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, LastGood, VmPolicy
from iokeel.core.values.state import (
    Credit,
    Division,
    DriveState,
    Feedback,
    Part,
    Pricing,
    Sent,
    StorageState,
    VmPart,
)
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import ConfigError, IokeelError, StateNotWritten
from iokeel.host.process import ENDED, Process
from iokeel.store.rows import NOT_OURS, drive_text, kept_of, state_of
from iokeel.store.store import VERSION, StateStore

VDA, VDB = DriveId("db1", "vda"), DriveId("db1", "vdb")
SET = DriveState(sent=Sent(ThrottleLimits(iops_total=400, iops_size=6889)))
TAUGHT = StorageState(StoragePolicy(), division=Division(1000.0))
FILE = "state.db"
ALL_TABLES = {"drives", "policies", "storages", "cgroups", "tables"}

curves = st.none() | st.builds(
    lambda size, cost: CostCurve(((size, cost), (2 * size, 3 * cost))),
    st.integers(1, 1 << 20),
    st.floats(1e-6, 1e6),
)
limits = st.builds(
    ThrottleLimits,
    **dict.fromkeys(FIELDS, st.none() | st.integers(1, 10**15)),
    cost_read=curves,
    cost_write=curves,
    split_size=st.none() | st.sampled_from([4096, 16384, 1 << 30]),
    idle_credit_ms=st.integers(0, 100),
    max_in_flight=st.none() | st.integers(1, 10**9).map(lambda parts: parts / 1000),
    latency=st.booleans(),
)
flows = st.builds(
    Flow,
    st.floats(0, 1e9),
    st.floats(0, 1e12),
    st.lists(st.sampled_from([512.0, 4096.0, 65536.0]), max_size=4).map(tuple),
)
mixes = st.builds(Mix, flows, flows)
policies = st.builds(
    DrivePolicy,
    reservation=st.integers(0, 1000),
    limit=st.none() | st.integers(1000, 10**8),
    weight=st.integers(1, 10_000),
    latency_target_ms=st.none() | st.floats(0.001, 60_000),
    separate_budgets=st.booleans(),
)
states = st.builds(
    lambda policy, storage, tenant, sent, credit, pricing, vm: DriveState(
        policy=policy,
        storage=storage,
        tenant=tenant,
        credit=credit,
        pricing=pricing,
        sent=sent,
        vm=vm,
    ),
    policy=st.none() | policies,
    storage=st.none() | st.text(max_size=5),
    tenant=st.none() | st.text(max_size=5),
    sent=st.builds(
        lambda limits, replaced, seen, **rest: Sent(
            limits=limits,
            replaced=replaced,
            carried_out={None: replaced, "last": limits}.get(seen, seen),
            **rest,
        ),
        replaced=st.none() | limits,
        seen=st.sampled_from([None, "last"]) | limits,
        limits=limits,
        found=st.none() | limits,
        at_ns=st.just(0),  # this and the next three are not saved
        reason=st.none(),
        credit_s=st.floats(0, 3600),
        retunes=st.just(0),
        overwritten=st.just(0),
        group=st.none() | st.text(max_size=5),
    ),
    credit=st.builds(Credit, st.integers(0, 3600).map(float), st.booleans()),
    pricing=st.builds(
        Pricing,
        rate=st.none(),
        base_rate=st.none(),
        mix=st.none() | mixes,
        unit=st.none(),
        base=st.none(),
    ),
    vm=st.none()
    | st.builds(
        VmPart,
        st.builds(
            VmPolicy,
            reservation=st.integers(0, 1000),
            limit=st.none() | st.integers(1000, 10**8),
            burst_seconds=st.integers(0, 3600),
        ),
        st.builds(Credit, st.integers(0, 3600).map(float), st.booleans()),
        st.none() | st.integers(1, 10**8),
        st.none() | st.integers(1, 10**8).map(lambda part: Part(part, part)),
    ),
)
drives = st.builds(DriveId, st.text(st.characters(codec="utf-8"), max_size=20), st.text("vdab"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path)
    with store.lock():
        yield store


@given(st.dictionaries(drives, states, max_size=5))
@settings(max_examples=50)
def test_what_is_saved_is_loaded(known: dict[DriveId, DriveState]) -> None:
    with TemporaryDirectory() as name:
        StateStore(Path(name)).save(known, whole=True, exact=True)
        loaded = StateStore(Path(name)).load()
    assert loaded.keys() == known.keys()
    for drive, state in known.items():
        back = loaded[drive]
        assert (back.policy, back.tenant, back.vm) == (state.policy, state.tenant, state.vm)
        assert back.storage == state.storage
        assert (back.credit, back.sent) == (state.credit, state.sent)
        assert back.pricing == state.pricing
        if back.pricing.mix is not None:
            assert isinstance(back.pricing.mix.read, Flow)


@given(policies, st.none() | policies)
@settings(max_examples=20)
def test_a_domains_policy_is_loaded_until_it_goes(
    drive: DrivePolicy, default: DrivePolicy | None
) -> None:
    promised = DomainPolicy({"vda": drive}, default, "acme", VmPolicy(limit=9))
    policy = LastGood(promised, "uuid-1", {"tenant": "all", "vda limit": "", " limit": "io1"})
    with TemporaryDirectory() as name:
        store = StateStore(Path(name))
        store.policies |= {"uuid-1": policy, "uuid-2": policy._replace(uuid="uuid-2")}
        store.save({})
        del store.policies["uuid-2"]
        store.save({})
        again = StateStore(Path(name))
        again.load()
    assert again.policies == {"uuid-1": policy}


OWN = LastGood(DomainPolicy({"vda": DrivePolicy(limit=400)}), "uuid-1", {"vda limit": ""})
#: Policies that the last release would misread, so that limits would go or come.
MISREAD = {
    "by a rule": OWN._replace(sources={"vda limit": "io1"}),
    "only bytes": OWN._replace(policy=DomainPolicy({"vda": DrivePolicy(max_bytes=9)})),
    "observed": OWN._replace(policy=replace(OWN.policy, mode="observe")),
}


@pytest.mark.parametrize("last", MISREAD.values(), ids=MISREAD)
def test_what_an_older_version_would_misread_stands_where_it_does_not_look(
    store: StateStore, tmp_path: Path, last: LastGood
) -> None:
    def filled() -> dict[str, int]:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
            tables = ("drives", "policies", "drives_2", "policies_2")
            counts = {t: database.execute(f"SELECT count(*) FROM {t}") for t in tables}
            return {t: count for t, found in counts.items() for [count] in found if count}

    of_older = {"drives": 1, "policies": 1}
    of_this = {"drives_2": 1, "policies_2": 1}
    for policy, tables in ((last, of_this), (OWN, of_older), (last, of_this)):
        store.policies["uuid-1"], store.uuids["db1"] = policy, "uuid-1"
        store.save({VDA: SET}, whole=True)
        store._close()  # only the agent itself reads it meanwhile
        assert filled() == tables
        assert store.load().keys() == {VDA}
        assert store.policies == {"uuid-1": policy}
    del store.policies["uuid-1"]
    store.save({}, whole=True)
    assert (store.load(), store.policies) == ({}, {})


storages = st.builds(
    lambda capacity, ratio, room, peak, usable: StorageState(
        StoragePolicy(capacity),
        feedback=Feedback(ratio, room=room, peak=peak),
        division=Division(usable),
    ),
    st.none() | st.integers(1, 10**8),
    st.floats(0.01, 100),
    st.floats(LEAST_ROOM, 1),
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
)


@given(st.dictionaries(st.text("sdab/:é", min_size=1), storages, max_size=4))
@settings(max_examples=30)
def test_what_storages_have_taught_is_loaded(known: dict[str, StorageState]) -> None:
    with TemporaryDirectory() as name:
        StateStore(Path(name)).save({}, known)
        store = StateStore(Path(name))
        loaded = store.load_storages()
        assert store.save({}, known) is False, "nothing has changed"
        assert store.save({}) is False, "nor does it go by itself"
        store.save({}, {})
        assert StateStore(Path(name)).load_storages() == {}
    for storage, now in known.items():
        if (usable := now.division.usable) is None:
            assert storage not in loaded
        elif now.policy.capacity is None:
            back = loaded[storage]
            assert back.policy.capacity is None
            assert back.feedback.room == pytest.approx(now.feedback.room, abs=0.01)
            assert back.feedback.peak == pytest.approx(now.feedback.peak, rel=0.06)
            assert back.division.usable == pytest.approx(usable, rel=0.06)


def test_a_restarted_agent_knows_that_a_scheduler_shares_a_storage_out(store: StateStore) -> None:
    left = StorageState(StoragePolicy(), weighted=True, writing=3, feedback=Feedback(room=0.4))
    store.save({}, {"sda": left})
    back = store.load_storages()["sda"]
    assert (back.weighted, back.by_weight, back.feedback.room) == (True, True, 0.4)
    store.save({}, {"sda": replace(left, writing=None, weighted=False)})
    assert store.load_storages() == {}


def test_a_bad_storage_costs_no_other_its_own(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    taught = StorageState(StoragePolicy(), feedback=Feedback(peak=9.0), division=Division(9.0))
    store.save({}, dict.fromkeys(("sda", "sdb"), taught))
    store._rows("UPDATE storages SET text = '{}' WHERE name = 'sda'")
    assert store.load_storages().keys() == {"sdb"}
    assert "storage sda: ValidationError" in caplog.text


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('{"drives": {"vda": {"limit": 0}}}', "limit is 0"),
        ('{"drives": {}, "job_bps": 5}', "job-bps is 5"),
    ],
)
def test_a_bad_policy_costs_no_other_domain_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str, why: str
) -> None:
    store = StateStore(tmp_path)
    store.policies |= dict.fromkeys(
        ("db1", "db2"), LastGood(DomainPolicy({}, DrivePolicy(limit=9)))
    )
    store.save({})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE policies SET text = ? WHERE domain = 'db1'", [bad])
    database.close()
    again = StateStore(tmp_path)
    again.load()
    assert again.policies.keys() == {"db2"}
    assert f"db1: PolicyError: the saved policy: {why}" in caplog.text


def test_a_domains_policy_of_an_older_version_is_loaded_without_a_uuid(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save({VDA: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        text = '{"drives":{"vda":{"limit":9}},"default":null,"tenant":"acme","vm":null}'
        database.execute("INSERT INTO policies VALUES ('db1', ?)", [text])
    database.close()
    again = StateStore(tmp_path)
    again.load()
    policy = DomainPolicy({"vda": DrivePolicy(limit=9)}, tenant="acme")
    assert again.policies == {"db1": LastGood(policy)}


def test_a_domains_policy_that_an_older_version_saved_by_name_is_kept_by_uuid(
    tmp_path: Path,
) -> None:
    policy = LastGood(DomainPolicy({}, tenant="acme", job_bps=5_000_000), "uuid-1")
    store = StateStore(tmp_path)
    store.policies["db1"] = policy
    store.save({})
    again = StateStore(tmp_path)
    again.load()
    assert again.policies == {"uuid-1": policy}
    again.save({})
    with sqlite3.connect(tmp_path / FILE) as database:
        assert [*database.execute("SELECT domain FROM policies")] == [("uuid-1",)]
    database.close()


def test_what_was_loaded_can_be_used_as_what_was_saved(tmp_path: Path) -> None:
    mix = Mix(Flow(10.0, 40960.0, (4096.0,)), Flow(0.0, 0.0))
    known = DriveState(sent=SET.sent, pricing=Pricing(mix=mix))
    StateStore(tmp_path).save({VDA: known})
    back = StateStore(tmp_path).load()[VDA].pricing.mix
    assert back == mix
    assert hash(back) == hash(mix)


def test_virtual_machines_that_could_not_be_left_are_kept_until_they_are(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    stuck = VmConfig("db1", Path("/run/db1.qmp"), shared=True)
    store.leaving["db1"] = stuck
    assert store.save({})
    again = StateStore(tmp_path)
    again.load()
    assert again.leaving == {"db1": stuck}
    assert not again.save({})
    del again.leaving["db1"]
    assert again.save({})
    store.load()
    assert store.leaving == {}


@pytest.mark.parametrize("socket", ["", "run/db1.qmp", "/\0", "/" + 108 * "x"])
def test_a_virtual_machine_at_a_socket_that_is_none_is_passed_over(
    tmp_path: Path, socket: str
) -> None:
    store = StateStore(tmp_path)
    store.load()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("INSERT INTO leaving VALUES ('db1', ?)", (socket,))
    store.load()
    assert store.leaving == {}
    assert store.save({})
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("SELECT * FROM leaving").fetchall() == []


def test_which_vm_a_state_is_about_is_loaded(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save({VDA: SET})
    again = StateStore(tmp_path)
    again.load()
    assert again.uuids == {}, "as a file of an older version"
    store.uuids["db1"] = "1d8b4c9a"
    assert store.save({VDA: SET})
    assert again.load() == {VDA: SET}
    assert again.uuids == {"db1": "1d8b4c9a"}


def test_the_qemu_that_a_state_is_about_is_loaded(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save({VDA: SET, VDB: SET}, whole=True)
    again = StateStore(tmp_path)
    assert again.load().keys() == {VDA, VDB}
    assert again.processes == {}, "as a file of an older version"
    store.processes["db1"] = Process(9, 70)
    assert store.save({VDA: SET, VDB: SET})
    assert not store.save({VDA: SET, VDB: SET})
    store.processes["db1"] = Process(7, 80)
    assert store.save({VDA: SET})  # the agent is killed before it saves vdb
    again.load()
    assert again.processes == {"db1": Process(7, 80)}


def test_a_qemu_of_an_earlier_boot_has_ended(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.processes["db1"] = Process(7, 80)
    store.save({VDA: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        [[row]] = database.execute("SELECT state FROM drives")
        assert store._boot
        assert store._boot in row
        earlier = row.replace(store._boot, "0b0e3b37-0000-0000-0000-000000000000")
        database.execute("UPDATE drives SET state = ?", [earlier])
    database.close()
    again = StateStore(tmp_path)
    assert again.load() == {VDA: SET}
    assert again.processes == {"db1": ENDED}


def test_a_drive_without_limits_of_ours_is_not_kept(tmp_path: Path) -> None:
    StateStore(tmp_path).save({VDA: SET, VDB: DriveState()})
    assert StateStore(tmp_path).load().keys() == {VDA}


def test_only_a_whole_save_forgets(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save({VDA: SET, VDB: SET})
    store.save({VDA: SET})
    assert StateStore(tmp_path).load().keys() == {VDA, VDB}
    store.save({VDA: SET}, whole=True)
    assert StateStore(tmp_path).load().keys() == {VDA}


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save({VDA: SET})
    before = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    store.save({VDA: SET}, whole=True)
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == before


@pytest.mark.parametrize(
    ("earned_s", "saved_s", "exact_s"),
    [(0.9, 0, 0), (14.9, 14, 14), (15.0, 15, 15), (29.9, 15, 29), (59.9, 45, 59), (60.0, 60, 60)],
)
def test_credit_is_saved_in_steps_that_add_none(
    tmp_path: Path, earned_s: float, saved_s: int, exact_s: int
) -> None:
    credit = Credit(earned_s, open=True)
    known = SET._replace(credit=credit, vm=VmPart(VmPolicy(limit=9), credit))
    for exact, seconds in ((False, saved_s), (True, exact_s)):
        StateStore(tmp_path).save({VDA: known}, exact=exact)
        back = StateStore(tmp_path).load()[VDA]
        assert back.credit == Credit(seconds, open=True)
        assert back.vm is not None
        assert back.vm.credit == back.credit


def test_a_drive_that_earns_a_minute_of_credit_is_written_seldom(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    written = [
        at_s
        for at_s in range(0, 65, 5)
        if store.save({VDA: SET._replace(credit=Credit(float(at_s)))}, whole=True)
    ]
    assert written == [0, 5, 10, 15, 30, 45, 60]


def test_what_was_saved_before_requests_were_split_is_loaded(tmp_path: Path) -> None:
    StateStore(tmp_path).save({VDA: SET})
    row = (
        '{"sent": {"iops_total": 5, "cost_read": [[4096, 1.0]], "cost_write": [[4096, 2.0]]},'
        ' "replaced": null, "found": {"bps_total": 7}, "credit_seconds": 3, "credit_open": false,'
        ' "granted_seconds": 0.0, "priced_for": null}'
    )
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET state = ?", [row])
    database.close()
    sent = StateStore(tmp_path).load()[VDA].sent
    read, write = CostCurve(((4096, 1.0),)), CostCurve(((4096, 2.0),))
    assert sent.limits == ThrottleLimits(iops_total=5, cost_read=read, cost_write=write)
    assert sent.found == ThrottleLimits(bps_total=7)


def test_an_older_version_reads_rows_with_limits_that_it_does_not_know() -> None:
    """Of a field that it doesn't know it takes a whole number, or a list of pairs."""
    limits = ThrottleLimits(iops_total=5, max_in_flight=2.5, latency=True)
    row = json.loads(drive_text(kept_of(SET._replace(sent=SET.sent._replace(limits=limits)))))
    msgspec.convert(row["sent"], dict[str, int | list[tuple[int, float]]])
    assert row["sent"] == {
        "iops_total": 5, "idle_credit_ms": 100, "max_in_flight": 2500, "latency": 1
    }  # fmt: skip


@pytest.mark.parametrize("bound", ["0", "-1", "2.5", "true", "[[0, 1]]"])
def test_a_row_with_a_bound_that_nobody_saved_is_refused(bound: str) -> None:
    text = drive_text(kept_of(SET)).replace('"sent":{', f'"sent":{{"max_in_flight":{bound},', 1)
    with pytest.raises(NOT_OURS):
        state_of(text)


def test_a_bound_of_next_to_nothing_is_not_saved_as_none() -> None:
    limits = ThrottleLimits(iops_total=5, max_in_flight=1e-9)
    text = drive_text(kept_of(SET._replace(sent=SET.sent._replace(found=limits))))
    assert state_of(text).sent.found == limits._replace(max_in_flight=0.001)


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 99, bytes(8192)])
def test_a_corrupt_file_is_named_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    before = StateStore(tmp_path)
    with before.lock():  # at the end it closes the file, and so writes it as a whole
        before.save({VDA: SET})
    (tmp_path / FILE).write_bytes(damage)
    for part in tmp_path.glob(f"{FILE}-*"):  # which hold it all once more
        part.unlink()
    store = StateStore(tmp_path)
    assert store.load() == {}
    assert not damage or f"{tmp_path / FILE}: can't be used" in caplog.text


def test_a_file_with_a_damaged_schema_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StateStore(tmp_path)
    with store.lock():
        store.save({VDA: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()
    damaged = (tmp_path / FILE).read_bytes()
    for part in (b"CREATE TABLE drives", b"drives"):  # its statement, and its name in messages
        damaged = damaged.replace(part, b"\xff" * len(part))
    (tmp_path / FILE).write_bytes(damaged)
    store = StateStore(tmp_path)
    assert store.load() == {}
    assert "its schema is damaged" in caplog.text
    store.save({VDA: SET})
    assert StateStore(tmp_path).load().keys() == {VDA}


def test_a_file_of_a_later_version_is_refused_by_a_check(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.check()
    with store.lock():
        store.save({VDA: SET})
        store.check()
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("PRAGMA user_version").fetchall() == [(VERSION,)]
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    with pytest.raises(ConfigError, match=f"{FILE}: a later iokeel wrote it: .* {VERSION + 1}"):
        StateStore(tmp_path).check()


GOOD = LastGood(DomainPolicy({"vda": DrivePolicy(limit=500)}), "1d8b4c9a")


def _written_by_a_later_version(folder: Path, version: int) -> None:
    """Write a file as a later version may: with tables, columns and fields that it has added."""
    store = StateStore(folder)
    store.policies["1d8b4c9a"] = GOOD
    store.leaving["db2"] = VmConfig("db2", folder / "db2.qmp", DomainPolicy({}))
    with store.lock():
        store.save({VDA: SET, VDB: SET}, {"nvme": TAUGHT})
        store.save_cgroups({"/a": "1"})
    with sqlite3.connect(folder / FILE) as database:
        for table, column in (("drives", "state"), ("policies", "text"), ("storages", "text")):
            database.execute(f"ALTER TABLE {table} ADD COLUMN added TEXT NOT NULL DEFAULT 'x'")
            database.execute(f"UPDATE {table} SET {column} = json_insert({column}, '$.added', 7)")
        database.execute("UPDATE drives SET state = json_insert(state, '$.sent.added', 7)")
        database.execute("CREATE TABLE added (name TEXT)")
        database.execute("INSERT INTO added VALUES ('of the later one')")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


@pytest.mark.parametrize("version", [VERSION, VERSION + 1])
def test_an_older_agent_goes_on_with_what_it_knows_of_a_later_ones_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    _written_by_a_later_version(tmp_path, version)
    for _ in range(2):  # it is killed, and starts again
        store = StateStore(tmp_path)
        assert store.load() == {VDA: SET, VDB: SET}
        assert store.policies == {"1d8b4c9a": GOOD}
        assert store.leaving.keys() == {"db2"}
        assert store.load_storages().keys() == {"nvme"}
        assert store.load_cgroups() == {"/a": "1"}
        other = DriveState(sent=Sent(ThrottleLimits(iops_total=9)))
        assert store.save({VDA: other})
        assert StateStore(tmp_path).load() == {VDA: other, VDB: SET}
        store.save({VDA: SET})
    told = [line for line in caplog.messages if "a later iokeel wrote it" in line]
    assert len(told) == (version > VERSION)
    kept = tmp_path / ("state.later" if version > VERSION else FILE)
    with sqlite3.connect(kept) as database:
        assert database.execute("SELECT * FROM added").fetchall() == [("of the later one",)]
        assert database.execute("PRAGMA user_version").fetchall() == [(version,)]
    database.close()
    assert not (tmp_path / "state.damaged").exists()


def test_what_an_older_agent_cannot_read_of_a_later_ones_state_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _written_by_a_later_version(tmp_path, VERSION + 1)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET state = '{\"limits\": {}}' WHERE target = 'vda'")
        database.execute("ALTER TABLE policies RENAME COLUMN text TO policy")
    database.close()
    store = StateStore(tmp_path)
    assert store.load() == {VDB: SET}
    assert store.policies == {}
    assert store.load_storages().keys() == {"nvme"}
    assert f"{tmp_path / FILE}: can't be used ({VDA}: " in caplog.text
    assert store.save({VDA: SET, VDB: SET}, whole=True)
    assert StateStore(tmp_path).load() == {VDA: SET, VDB: SET}


def test_a_later_ones_state_is_kept_with_what_is_in_its_log_only(tmp_path: Path) -> None:
    _written_by_a_later_version(tmp_path, VERSION + 1)
    killed = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    killed.execute("PRAGMA wal_autocheckpoint = 0")
    killed.execute("INSERT INTO added VALUES ('in its log')")
    folder = tmp_path / "after the kill"
    folder.mkdir()
    for part in tmp_path.glob(f"{FILE}*"):
        shutil.copy(part, folder)
    killed.close()
    (folder / f"{FILE}-shm").unlink()
    assert StateStore(folder).load() == {VDA: SET, VDB: SET}
    with sqlite3.connect(folder / "state.later") as database:
        assert ("in its log",) in database.execute("SELECT * FROM added").fetchall()
    database.close()


@pytest.mark.parametrize(
    "row",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"sent": 1}',
        '{"sent": {"no_such": 1}}',
        "[" * 100_000,
        '{"":' + "[" * 100_000,
        "\x80",
        None,
    ],
)
def test_a_row_that_makes_no_sense_is_named_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: str | None
) -> None:
    StateStore(tmp_path).save({VDA: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET state = ?", [row])
    database.close()
    assert StateStore(tmp_path).load() == {}
    assert "can't be used" in caplog.text


def test_one_bad_row_costs_no_other_drive_its_own(tmp_path: Path) -> None:
    StateStore(tmp_path).save({VDA: SET, VDB: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET state = '{}' WHERE target = 'vda'")
    database.close()
    assert StateStore(tmp_path).load().keys() == {VDB}


def test_a_row_with_other_bytes_than_text_costs_no_other_drive_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StateStore(tmp_path).save({VDA: SET, VDB: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET state = CAST(x'ff0a' AS TEXT) WHERE target = 'vda'")
    database.close()
    assert StateStore(tmp_path).load().keys() == {VDB}
    assert "\n" not in caplog.messages[0]


def test_names_are_texts_whatever_the_columns_hold(tmp_path: Path) -> None:
    StateStore(tmp_path).save({VDA: SET, VDB: SET})
    StateStore(tmp_path).save_cgroups({"/a": "{}"})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE drives SET domain = NULL WHERE target = 'vda'")
        database.execute("UPDATE cgroups SET path = x'61', state = NULL")
    database.close()
    store = StateStore(tmp_path)
    assert store.load().keys() == {("", "vda"), VDB}
    assert store.load_cgroups() == {"a": ""}


@pytest.mark.parametrize("seconds", ["1e300", "-1", "3600.5"])
def test_credit_that_no_policy_gives_makes_no_sense(tmp_path: Path, seconds: str) -> None:
    StateStore(tmp_path).save({VDA: SET, VDB: SET})
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(
            "UPDATE drives SET state = json_set(state, '$.credit_seconds', json(?))"
            " WHERE target = 'vda'",
            [seconds],
        )
    database.close()
    assert StateStore(tmp_path).load().keys() == {VDB}


@pytest.mark.parametrize("file", ["damaged-name", "too-large", "whole"])
def test_a_file_that_fuzzing_has_found_stops_nothing(tmp_path: Path, file: str) -> None:
    found = Path(__file__).parents[2] / "fuzz/corpus/state-file" / file
    (tmp_path / FILE).write_bytes(found.read_bytes())
    store = StateStore(tmp_path)
    assert store.load().keys() == ({VDA} if file == "whole" else set())
    store.save({VDB: SET})
    assert VDB in StateStore(tmp_path).load()


@pytest.mark.parametrize(
    "table", ["drives (name TEXT)", "policies (name TEXT)", "cgroups (name TEXT)"]
)
def test_a_file_with_other_columns_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(f"CREATE TABLE {table}")
    database.close()
    store = StateStore(tmp_path)
    assert store.load() == {}
    assert store.load_cgroups() == {}
    assert "its schema is damaged: no such column" in caplog.text
    store.save({VDA: SET})
    store.save_cgroups({"/a": "{}"})
    store = StateStore(tmp_path)
    assert store.load().keys() == {VDA}
    assert store.load_cgroups() == {"/a": "{}"}


def test_after_a_corrupt_file_the_agent_remembers_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database at all" * 99)
    store = StateStore(tmp_path)
    assert store.load() == {}
    store.save({VDA: SET}, whole=True)
    assert StateStore(tmp_path).load().keys() == {VDA}


def test_a_file_that_is_damaged_while_an_agent_runs_is_written_anew(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    with store.lock():
        store.policies["db1"] = LastGood(DomainPolicy({}, tenant="acme"))
        store.save({VDA: SET})
    (tmp_path / FILE).write_bytes(b"not a database at all" * 99)
    assert store.load_cgroups() == {}
    store.save({VDA: SET})
    store = StateStore(tmp_path)
    assert store.load().keys() == {VDA}
    assert store.policies.keys() == {"db1"}


def with_bad_page(file: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
        [[page]] = database.execute(query, [table])
        [[size]] = database.execute("PRAGMA page_size")
    database.close()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)


def found_in(store: StateStore, config: Config) -> set[str]:
    """Return the tables of a store that have something in them, as an agent begins with it."""
    tenants = store.keep_tables(config).tenants
    found = {"tables": tenants, "drives": store.load(), "policies": store.policies}
    found |= {"storages": store.load_storages(), "cgroups": store.load_cgroups()}
    return {table for table, rows in found.items() if rows}


@pytest.mark.parametrize("table", sorted(ALL_TABLES))
def test_a_damaged_table_costs_no_other_its_own(tmp_path: Path, table: str) -> None:
    store = StateStore(tmp_path)
    config = parse(b"[tenants.acme]\nlimit = 600\n", "agent.toml")
    with store.lock():
        store.keep_tables(config)
        store.policies["db1"] = LastGood(DomainPolicy({}, tenant="acme"))
        store.save({VDA: SET}, {"sda": TAUGHT})
        store.save_cgroups({"/a": "{}"})
    with_bad_page(tmp_path / FILE, table)
    for _ in range(2):
        store = StateStore(tmp_path)
        with store.lock():
            assert found_in(store, Config()) == ALL_TABLES - {table}


def test_a_table_that_is_damaged_while_an_agent_runs_is_written_anew(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    with store.lock():
        store.keep_tables(parse(b"[tenants.acme]\nlimit = 600\n", "agent.toml"))
    (tmp_path / FILE).write_bytes(b"not a database at all" * 99)
    assert store.load_cgroups() == {}
    assert StateStore(tmp_path).keep_tables(Config()).tenants["acme"].limit == 600


@pytest.mark.parametrize("kept_bytes", [0, 4096])
def test_saves_to_a_damaged_file_give_it_up_for_a_new_one(tmp_path: Path, kept_bytes: int) -> None:
    """An agent has all that the file had, and only the changes were written."""
    drives = {DriveId(f"db{i}", "vda"): SET for i in range(200)}
    store = StateStore(tmp_path)
    with store.lock():
        store.keep_tables(parse(b"[tenants.acme]\nlimit = 600\n", "agent.toml"))
        store.policies["uuid"] = LastGood(DomainPolicy({}, tenant="acme"))
        store.save(drives, {"sda": TAUGHT}, whole=True)
        store.save_cgroups({"/a": "{}", "/b": "{}"})
    with store.lock():  # all that was written is in the file now
        assert store.load_storages()  # which has it open, and hasn't read the rest
        with (tmp_path / FILE).open("r+b") as file:
            file.truncate(kept_bytes)
            file.seek(kept_bytes)
            file.write(b"\xff" * kept_bytes * 16)
        with pytest.raises(StateNotWritten, match="it was set aside as state"):
            store.save_cgroups({"/b": None, "/c": "{}"})
        store.save(drives, {"sda": TAUGHT}, whole=True)
    assert (tmp_path / "state.damaged").exists()
    store = StateStore(tmp_path)
    with store.lock():
        assert found_in(store, Config()) == ALL_TABLES
        assert store.load() == drives
        assert store.load_cgroups().keys() == {"/a", "/c"}


class Slow(UserDict[DriveId, DriveState]):
    """Drives that a thread looks at for as long as it is told to."""

    def __init__(self, drives: dict[DriveId, DriveState]) -> None:
        super().__init__(drives)
        self.begun, self.go_on = Event(), Event()

    def items(self) -> ItemsView[DriveId, DriveState]:
        self.begun.set()
        self.go_on.wait(30)
        return super().items()


def test_of_two_threads_the_last_to_save_has_its_way(store: StateStore) -> None:
    store.save({VDA: SET})
    other = Slow({VDA: SET.with_sent(ThrottleLimits(iops_total=9))})
    with ThreadPoolExecutor() as threads:
        first = threads.submit(store.save, other)
        assert other.begun.wait(30)
        second = threads.submit(store.save, {VDA: SET})
        wait([second], timeout=0.2)
        other.go_on.set()
        first.result()
        second.result()
    assert store.load()[VDA].sent.limits == SET.sent.limits


def test_a_file_that_can_not_be_opened_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    store = StateStore(tmp_path)
    assert store.load() == {}
    with pytest.raises(IokeelError, match=FILE):
        store.save({VDA: SET})


def test_a_folder_is_for_one_agent(tmp_path: Path, store: StateStore) -> None:
    with pytest.raises(ConfigError, match="another agent"), StateStore(tmp_path).lock():
        pass


def test_a_folder_is_made(tmp_path: Path) -> None:
    with StateStore(tmp_path / "a" / "b").lock():
        assert (tmp_path / "a" / "b").is_dir()


def test_a_reserve_that_a_kill_left_without_space_gets_its_space(tmp_path: Path) -> None:
    reserve = tmp_path / "reserve"
    reserve.touch()
    StateStore(tmp_path).save({VDA: SET})
    assert reserve.stat().st_blocks * 512 >= 256 << 10
