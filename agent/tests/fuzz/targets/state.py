"""The state file: the text of its rows, its bytes, and the tables that it keeps."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from pathlib import Path

from iokeel.config.settings import KINDS, Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import checked
from iokeel.errors import IokeelError
from iokeel.store.rows import policy_of, policy_text, storage_of, storage_text
from iokeel.store.store import StateStore
from tests.fuzz.budget import limits_make_sense, one_line, only
from tests.fuzz.targets.target import Target

_VDA = DriveId("db1", "vda")
_WORDS = [
    *(b"sent replaced found credit_seconds credit_open granted_seconds priced_for policy".split()),
    *(b"tenant bps_total iops_total iops_read iops_total_max iops_total_max_length".split()),
    *(b"iops_size cost_read cost_write split_size idle_credit_ms reservation limit burst".split()),
    *(b"drives default vm vda".split()),
    *(b"burst_seconds weight latency_target_ms separate_budgets [[4096,1.0]] true null".split()),
    *(b"limit_read limit_write max_bytes start_credit_seconds".split()),
]


def row(data: bytes) -> None:
    """A row is a state or a policy that makes sense, or none; saved again, it is the same."""
    for table, key in (("drives", "'db1', 'vda'"), ("policies", "'db1'")):
        _ROWS.execute(f"DELETE FROM {table}")
        _ROWS.execute(f"INSERT INTO {table} VALUES ({key}, CAST(? AS TEXT))", [data])
    _ROWS.commit()
    found, policies = _STORE.load().get(_VDA), dict(_STORE.policies)
    for last in policies.values():
        policy = last.policy
        for each in (*policy.drives.values(), policy.default, policy.vm):
            if each is not None:
                checked(each, "")
        assert policy_of(policy_text(last)) == last
    if found is None:
        return
    if found.policy is not None:
        checked(found.policy, "")
    for limits in (found.sent.limits, found.sent.replaced, found.sent.found):
        limits_make_sense(limits)
    with only(IokeelError):
        _STORE.save({_VDA: found}, exact=True)
        again = _STORE.load()[_VDA]
        assert again.sent == found.sent
        assert (again.policy, again.tenant, again.pricing) == (
            found.policy,
            found.tenant,
            found.pricing,
        )
        assert 0 <= found.credit.seconds - again.credit.seconds < 1


def storage_row(data: bytes) -> None:
    """What a storage taught is in bounds, or nothing; saved again, it is the same."""
    _ROWS.execute("DELETE FROM storages")
    _ROWS.execute("INSERT INTO storages VALUES ('sda', CAST(? AS TEXT))", [data])
    _ROWS.commit()
    for known in _STORE.load_storages().values():
        last, capacity = known.feedback, known.policy.capacity
        assert capacity is None or capacity > 0
        assert last.ratio >= 0.01
        assert 0 <= last.room <= 1
        assert math.isfinite(last.ratio + last.peak + (known.division.usable or 0.0))
        text = storage_text(known)
        if text is not None:  # in fewer digits, so saved once more it is the same to the letter
            assert storage_text(storage_of(text)) == text


def tables(data: bytes) -> None:
    """A saved tenant or storage is in force as it was, or isn't. The first line is its name."""
    name, _, text = data.partition(b"\n")
    _TABLE_ROWS.execute("DELETE FROM tables")
    for kind in KINDS:
        row = "INSERT INTO tables VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))"
        _TABLE_ROWS.execute(row, [kind, name, text])
    _TABLE_ROWS.commit()
    store = StateStore(_TABLES)
    found = store.keep_tables(Config())
    for tenant in found.tenants.values():
        checked(tenant, "")
    for error in found.gone.values():
        one_line(str(error))
    assert {table for _, table in found.gone} >= {*found.tenants, *found.storages}
    again = StateStore(_TABLES).keep_tables(Config())
    assert (again.tenants, again.storages) == (found.tenants, found.storages)


def file(data: bytes) -> None:
    """A file is read, or set aside, and then can be written."""
    with tempfile.TemporaryDirectory(dir=_FOLDER.name) as name:
        (Path(name) / "state.db").write_bytes(data)
        store = StateStore(Path(name))
        with store.lock(), only(IokeelError):
            for drive, known in store.load().items():
                assert all(isinstance(part, str) for part in drive)
                limits_make_sense(known.sent.limits)
            for path, text in store.load_cgroups().items():
                assert isinstance(path, str)
                assert isinstance(text, str)
            store.save_cgroups({"/sys/fs/cgroup/a": "{}"})


_FOLDER = tempfile.TemporaryDirectory(prefix="iokeel-fuzz-", dir="/dev/shm")  # no waits for syncs
_STORE = StateStore(Path(_FOLDER.name))
_STORE.load()
_ROWS = sqlite3.connect(Path(_FOLDER.name) / "state.db")

_STORAGE_WORDS = [
    b"capacity",
    b"ratio",
    b"room",
    b"peak",
    b"usable",
    b"by_weight",
    b"true",
    b"null",
    b"1e308",
    b"0.995",
]

_TABLES = Path(_FOLDER.name) / "tables"
_TABLES.mkdir()
StateStore(_TABLES).load()
_TABLE_ROWS = sqlite3.connect(_TABLES / "state.db")
_TABLE_WORDS = [
    *(b"reservation limit weight device path source drives capacity latency_target_ms".split()),
    *(b"least_ratio most_ratio curve curve_read curve_write shared".split()),
    *(b'"4k"', b'"db1/*"', b'"/dev/sda"', b"[[4096,1.0]]", b"acme\n"),
]

TARGETS = [
    Target("state-row", row, 1 << 16, _WORDS),
    Target("storage-row", storage_row, 1 << 12, _STORAGE_WORDS),
    Target("state-file", file, 1 << 16, _WORDS),
    Target("tables", tables, 1 << 14, _TABLE_WORDS),
]
