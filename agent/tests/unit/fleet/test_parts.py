"""When a host takes part in a budget, and what it keeps until it has an entry there."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.divide.tenant_sums import Sums
from iokeel.core.fleet.claims import Budget, Shared
from iokeel.core.fleet.host import GUARD_S, TERM_S, Part
from iokeel.core.fleet.ledger import Entry, Ledger, Span, Stamp
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.storage import Load
from iokeel.fleet.etcd import Etcd, now_ns
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import Memory, Remembered
from iokeel.fleet.participant import Demand, Holding, Participant
from iokeel.fleet.parts import Parts
from iokeel.fleet.store import FleetStore, View

ACME = BudgetId(Kind.TENANT, "acme")
HELD = 5000
KNOWN = {ACME: Remembered(Budget(20_000), None)}


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """Return the parts of a host with a guest of the tenant, connected to an etcd."""
    held = Sums(most=9999, held=HELD, kept=HELD, least=1)
    sums = {Kind.TENANT: lambda _: held, Kind.STORAGE: lambda _: Sums()}
    host = Parts("a", Memory(tmp_path), sums)
    host.store = FleetStore(Etcd(Access(("http://nobody:1",))), host.me)
    host.listed, host.answered_at = True, time.monotonic()
    host.looked([ACME], complete=True)
    return host


def test_a_budget_that_is_set_now_waits_for_a_look_that_knows_of_it(parts: Parts) -> None:
    """What drives are held to is only known after that."""
    parts.memory.keep(KNOWN)
    parts.take_part()
    assert parts.participants == {}
    assert parts.tenants({"acme"})["acme"].limit is None  # they keep what they have
    parts.looked([ACME], complete=True)
    assert parts.participants[ACME].allowance == HELD


@pytest.mark.parametrize("silent_s", [TERM_S + 1, inf])
def test_a_guest_that_comes_while_etcd_is_silent_keeps_nothing(
    parts: Parts, silent_s: float
) -> None:
    """The host that it came from is charged for nothing any more."""
    parts.answered_at = time.monotonic() - silent_s
    parts.memory.keep(KNOWN)
    parts.tenants({"acme"})
    parts.looked([ACME], complete=True)
    assert parts.participants[ACME].allowance == 0


def test_a_host_stays_while_drives_without_a_policy_use_a_shared_storage(
    tmp_path: Path,
) -> None:
    """Their rate has to be subtracted from what others get."""
    load = Load(strangers=300.0)
    sums = {Kind.TENANT: lambda _: Sums(), Kind.STORAGE: lambda _: Sums(load=load)}
    host = Parts("a", Memory(tmp_path), sums)
    host.store = FleetStore(Etcd(Access(("http://nobody:1",))), host.me)
    disk = BudgetId(Kind.STORAGE, "disk")
    host.memory.keep({disk: Remembered(Budget(1000, shared=Shared(10.0)), None)})
    host.storages()
    host.looked([disk], complete=True)
    host.participants[disk].view = View(0, 0, None, None, {}, "b", {})
    assert not host.may_leave(disk)
    load = Load()
    assert host.may_leave(disk)


def test_a_budget_that_was_just_dropped_is_left_out_of_reports(parts: Parts) -> None:
    parts.memory.keep(KNOWN)
    parts.tenants({"acme"})
    parts.looked([ACME], complete=True)
    assert [*parts.shown(Kind.TENANT, {})] == ["acme"]
    parts.memory.keep({ACME: None})
    assert parts.shown(Kind.TENANT, {}) == {}


def test_the_time_since_a_ledger_was_read_outlasts_connections(parts: Parts) -> None:
    def stale_s() -> float:
        return parts.shown(Kind.TENANT, {})["acme"].report.stale_s

    def connect() -> None:
        assert parts.store is not None
        parts.connect(parts.store)
        parts.looked([ACME], complete=True)

    parts.memory.keep(KNOWN)
    parts.tenants({"acme"})
    parts.looked([ACME], complete=True)
    time.sleep(0.1)
    connect()
    assert stale_s() >= 0.1
    read = parts.participants[ACME]
    read.part = read.part._replace(end_ns=now_ns() + (TERM_S - 7) * NS_PER_S)
    connect()
    assert 7 <= stale_s() < 8


def test_without_an_answer_a_host_keeps_what_it_has_for_a_term(parts: Parts) -> None:
    async def keep(ledger: Ledger) -> None:
        raise AssertionError

    now_ns = 0
    assert parts.store is not None
    alone = Participant(
        parts.store,
        ACME,
        keep,
        Part(before=HELD),
        lambda: Holding(Demand(), HELD, HELD),
        lambda: now_ns,
    )
    now_ns = (TERM_S - GUARD_S) * NS_PER_S - 1
    assert alone.allowance == HELD
    now_ns += 1
    assert alone.allowance == 0


@pytest.mark.parametrize(
    ("budget", "most"),
    [(Budget(20_000), 20_000), (Budget(20_000, shared=Shared(5.0, most_ratio=3.0)), 60_000)],
)
def test_no_ledger_gives_a_host_more_than_the_whole_budget(
    parts: Parts, budget: Budget, most: int
) -> None:
    """Any host may write a ledger, but only operators write budgets."""
    kind = Kind.TENANT if budget.shared is None else Kind.STORAGE
    name = BudgetId(kind, "acme")
    entry = Entry(parts.me.instance, 10**9, 10**9, 10**9, 10**9, Stamp("e", 1))
    ledger = Ledger(budget.amount, (Span("e", 1, 1),), {parts.me.name: entry})
    parts.memory.keep({name: Remembered(budget, ledger)})
    parts.tenants({"acme"})
    parts.storages()
    parts.looked([name], complete=True)
    end_ns = now_ns() + TERM_S * NS_PER_S
    parts.participants[name].part = Part(ledger, end_ns=end_ns, kept=None)
    assert parts.participants[name].allowance == 10**9
    assert parts.allowance(name) == most
