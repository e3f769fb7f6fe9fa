"""What drives did adds up, and seconds count for promises as they were kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.measure.settled import SETTLED_S
from iokeel.core.values.counters import (
    NS_PER_S,
    Counters,
    DriveId,
    ThrottleCount,
    ThrottleCounters,
)
from iokeel.core.values.curve import KIB, CostCurve, CostModel
from iokeel.core.values.limits import STOCK, UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy
from iokeel.report.records import SPAN_S, Account
from iokeel.running.minutes import Accounts
from testing.hypervisors.abilities import PATCHED
from testing.sim.fleet import Faults, Fleet
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.storage import Disk, steady

A = DriveId("a", "vda")
# By the published curve, with which a page costs 1.
COST_8K, COST_64K = 1.6, 10.0


class Counted(Fleet):
    """A host whose agent adds up what its drives do. totals: of each, after each look."""

    def __init__(self, *words: object, **more: object) -> None:
        self.accounts, self._now = Accounts(), State()
        self.totals: list[dict[DriveId, tuple[float, ...]]] = []
        super().__init__(*words, **more)  # type: ignore[arg-type]

    @property
    def state(self) -> State:
        """The law's memory."""
        return self._now

    @state.setter
    def state(self, state: State) -> None:
        before, self._now = self._now, state
        seen = [drive for drive in state.seen if drive in state.drives]
        self.accounts.look(before, state, seen, self.now_ns if seen else 0)
        self.totals.append({drive: figures(known) for drive, known in self.accounts.items()})


def figures(account: Account) -> tuple[float, ...]:
    promises = [account.promises.get(name, (0.0, 0.0)) for name in sorted(NAMES)]
    return account.reads, account.writes, *(s for both in promises for s in both)


NAMES = ("reservation", "limit", "latency_target")


class Host:
    """One drive whose counters are told, and that is looked at once a second.

    charge: what its QEMU charges for a request; None if it is a stock QEMU. model: its storage's.
    """

    def __init__(
        self,
        policy: DrivePolicy | None,
        *,
        charge: float | None = None,
        model: CostModel | None = None,
    ) -> None:
        self.policy, self.accounts, self.state = policy, Accounts(), State()
        self.storages = {"ssd": StorageSeen(StoragePolicy(model=model))}
        self.charge = charge
        self.now_s = 100.0
        self.done = [0, 0, 0, 0]
        self.took_ns = 0
        self.in_force = UNLIMITED

    @property
    def account(self) -> Account:
        return self.accounts.get(A, Account())

    def look(
        self,
        reads: int = 0,
        writes: int = 0,
        *,
        kib: tuple[int, int] = (8, 64),
        after_s: float = 1.0,
        latency_s: float = 0.0,
        restarted: bool = False,
    ) -> None:
        """Look after so many requests."""
        self.now_s += after_s
        if restarted:
            self.done, self.took_ns = [0, 0, 0, 0], 0
        new = (reads, reads * kib[0] * KIB, writes, writes * kib[1] * KIB)
        self.done = [known + more for known, more in zip(self.done, new, strict=True)]
        self.took_ns += round(reads * latency_s * NS_PER_S)
        at_ns, (a, b, c, d) = round(self.now_s * NS_PER_S), self.done
        reading = Counters(at_ns, a, b, c, d, self.took_ns, 0)
        if self.charge is not None:
            read = ThrottleCount(a, b, self.charge * a, 0, 0, 0)
            group = ThrottleCounters(at_ns, read, ThrottleCount(c, d, self.charge * c, 0, 0, 0))
            reading = reading._replace(throttle=group)
        self.see(reading, restarted)

    def see(self, reading: Counters | None, restarted: bool = False) -> None:
        """Look with a reading; None: the drive is gone."""
        drives: dict[DriveId, DriveSeen] = {}
        if reading is not None:
            abilities = STOCK if self.charge is None else PATCHED
            drives[A] = DriveSeen(
                self.policy, reading, self.in_force, abilities=abilities, storage="ssd"
            )
        seen = Observation(drives, storages=self.storages, restarted=["a"] if restarted else [])
        before, now_ns = self.state, round(self.now_s * NS_PER_S)
        self.state, orders = decide(before, seen, now_ns)
        self.accounts.look(before, self.state, drives, now_ns)
        for order in orders:
            self.in_force = order.limits


def test_operations_are_those_of_the_curve_by_direction() -> None:
    host = Host(None)
    host.look(1000, 1000)  # what was before the agent is another's
    for _ in range(30):
        host.look(60, 5)
    host.look(after_s=7.3)
    host.look(37, after_s=0.4)
    assert host.account.reads == pytest.approx((30 * 60 + 37) * COST_8K)
    assert host.account.writes == pytest.approx(30 * 5 * COST_64K)


def test_a_drive_that_has_slept_for_long_loses_nothing() -> None:
    """It isn't looked at while it has settled."""
    host = Host(DrivePolicy(limit=500))
    host.look(100)
    for _ in range(60):
        host.look()
    assert A in host.state.settled
    host.look(77)
    assert host.account.reads == pytest.approx(77 * COST_8K)
    assert seconds(host, "limit") == pytest.approx((1.0, 0.0))


def test_a_storage_has_a_curve_of_its_own() -> None:
    reads, writes = CostCurve(((4096, 3.0),)), CostCurve(((4096, 7.0),))
    host = Host(None, model=CostModel(reads, writes))
    host.look()
    host.look(100, 10)
    assert (host.account.reads, host.account.writes) == pytest.approx((300, 70))


@pytest.mark.parametrize(("policy", "each"), [(DrivePolicy(limit=500), 5.5), (None, COST_8K)])
def test_what_a_qemu_charges_by_our_curve_counts(policy: DrivePolicy | None, each: float) -> None:
    """It knows each request's size. Without limits of ours it charges by no curve."""
    host = Host(policy, charge=5.5)
    host.look()
    host.look()
    for _ in range(10):
        host.look(30)
    assert host.account.reads == pytest.approx(300 * each)


def test_what_a_patched_qemu_serves_is_counted() -> None:
    sizes = ((4 * KIB, 0.9), (1024 * KIB, 0.1))
    kind = Kind(sizes, 0.25, sizes)
    guests = [
        Guest("a", DrivePolicy(limit=3000), iter([Phase(inf, 2000, kind)]), exact=True),
    ]
    host = Counted(guests, [Disk(StoragePolicy(), steady(9000), 0.001, 4.0)])
    record = host.run(60)
    served = float(record.served[:-1].sum())
    assert host.accounts[A].reads == pytest.approx(0.75 * served, rel=0.02)
    assert host.accounts[A].writes == pytest.approx(0.25 * served, rel=0.02)


def test_a_restart_goes_on_from_where_it_was() -> None:
    host = Host(None)
    host.look()
    host.look(100)
    host.look(5000, restarted=True)  # by a new QEMU, before it was first read
    host.look(100)
    assert host.account.reads == pytest.approx(200 * COST_8K)


def test_a_guest_that_is_away_for_a_while_is_not_counted_anew() -> None:
    host = Host(None)
    host.look()
    host.look(100)
    for away_s, kept in ((SPAN_S - 1, True), (SPAN_S + 1, False)):
        host.see(None)
        host.now_s += away_s
        host.see(None)
        assert (A in host.accounts) is kept
        host.look(restarted=True)
        host.look(10)
    assert host.account.reads == pytest.approx(10 * COST_8K)


readings = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2**34), min_size=6, max_size=6),
        st.sampled_from(["go on", "go on", "go on", "reset", "restarted", "gone", "unread"]),
        st.floats(0.0, 30.0),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(readings, st.booleans(), st.sampled_from([None, DrivePolicy(50, 100)]))
def test_nothing_counts_backwards_whatever_a_qemu_tells(
    told: list[tuple[list[int], str, float]], exact: bool, policy: DrivePolicy | None
) -> None:
    accounts, state = Accounts(), State()
    now_s, last, before = 100.0, figures(Account()), [0] * 6
    for figures_told, event, after_s in told:
        now_s += after_s
        values = figures_told
        if event != "reset":
            values = [a + b for a, b in zip(before, figures_told, strict=True)]
        before = values
        at_ns = round(now_s * NS_PER_S)
        reads, read_bytes, writes, write_bytes, took_ns, cost = values
        one = ThrottleCount(reads, read_bytes, cost / 7, 0, 0, 0)
        group = ThrottleCounters(at_ns, one, one._replace(requests=writes)) if exact else None
        read = Counters(at_ns, reads, read_bytes, writes, write_bytes, took_ns, took_ns, group)
        drives = {
            A: DriveSeen(
                policy,
                None if event == "unread" else read,
                UNLIMITED,
                abilities=PATCHED if exact else STOCK,
                storage="ssd",
            )
        }
        if event == "gone":
            drives = {}
        storages = {"ssd": StorageSeen(StoragePolicy(1000, 5.0))}
        seen = Observation(
            drives, storages=storages, restarted=["a"] if event == "restarted" else []
        )
        was = state
        state, _ = decide(state, seen, at_ns)
        accounts.look(was, state, drives, at_ns)
        now = figures(accounts.get(A, Account()))
        assert all(later >= earlier for later, earlier in zip(now, last, strict=True))
        assert all(value < inf for value in now)
        last = now


def loads(chance: random.Random, kind: Kind) -> Iterator[Phase]:
    """Yield loads of requests of one size, and times of rest, some long enough to settle."""
    while True:
        yield idle(chance.choice((0.25, 3, 12, SETTLED_S + 5)))
        yield Phase(chance.choice((0.25, 2, 15)), chance.choice((50.0, 800.0, inf)), kind)


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_all_that_a_random_host_serves_is_counted_and_nothing_twice(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [chance.choice((Kind.of(4), Kind.of(64), Kind.of(8, 0.5), Kind.of(1024, 1.0)))
             for _ in range(4)]  # fmt: skip
    guests = [
        Guest(
            f"g{n}",
            chance.choice((None, DrivePolicy(100, 300, 900, latency_target_ms=8.0))),
            loads(random.Random(chance.random()), kind),
            exact=chance.random() < 0.5,
        )
        for n, kind in enumerate(kinds)
    ]
    again = [chance.randrange(1, 90) for _ in range(2)]
    faults = Faults(
        lost=frozenset((chance.randrange(1, 90), 0) for _ in range(5)),
        again=frozenset((tick, 1) for tick in again),
    )
    disk = Disk(StoragePolicy(2000, 5.0), steady(3000), 0.0002, 4.0)
    host = Counted(guests, [disk], faults=faults, seed=seed)
    record = host.run(91)
    for earlier, later in pairwise(host.totals):
        for drive, known in earlier.items():
            assert all(b >= a for a, b in zip(known, later[drive], strict=True))
    for i, guest in enumerate(guests):
        account = host.accounts.get(guest.drive, Account())
        served, whole = record.served[:, i], 2 * kinds[i].cost()  # of reads and of writes
        lost = sum(served[tick - 1] for tick in {*again}) if i == 1 else 0.0
        most, least = (
            served.sum(),
            served[:90].sum() - lost,
        )  # a second look may come after the last
        assert 0.999 * least - whole <= account.reads + account.writes <= 1.001 * most + whole


def seconds(host: Host, promise: str) -> tuple[float, float]:
    return host.account.promises.get(promise, (0.0, 0.0))


@pytest.mark.parametrize(
    ("reads", "kept"),
    [
        (500, True),
        (560, True),  # a full bucket passes at once, and a drive at its limit does a little more
        (600, False),
    ],
)
def test_a_limit_is_missed_above_it(reads: int, kept: bool) -> None:
    host = Host(DrivePolicy(limit=500))
    for _ in range(11):
        host.look(reads, kib=(4, 4))
    assert seconds(host, "limit") == ((10, 0) if kept else (0, 10))
    assert host.account.promises.keys() == {"limit"}


def test_an_interval_is_judged_by_the_policy_of_its_time() -> None:
    host = Host(None)
    host.look()
    for limit, missed_s in ((500, 0), (5000, 1), (500, 1)):
        host.policy = DrivePolicy(limit=limit)
        host.look(700, kib=(4, 4))
        assert seconds(host, "limit")[1] == missed_s


def test_one_large_request_above_a_small_limit_is_no_miss() -> None:
    """It passes whole, and the next ones wait until it is paid."""
    host = Host(DrivePolicy(limit=100))
    for _ in range(20):
        host.look(1, kib=(1024, 4))  # 150
        host.look()
    assert seconds(host, "limit")[1] == 0


def test_an_open_burst_is_no_miss_and_its_end_is() -> None:
    host = Host(DrivePolicy(limit=500, burst=1000, burst_seconds=20))
    for _ in range(12):
        host.look(1, kib=(4, 4))
    for _ in range(30):
        host.look(1000, kib=(4, 4))  # as if nothing held it
    kept, missed = seconds(host, "limit")
    assert kept == pytest.approx(11 + 10, abs=3)  # ten seconds saved are ten above
    assert kept + missed == pytest.approx(41)


@pytest.mark.parametrize("reservation", [100, 1000])
def test_a_reservation_that_is_not_wanted_is_kept(reservation: int) -> None:
    host = Host(DrivePolicy(reservation=reservation))
    for _ in range(11):
        host.look(150, kib=(4, 4), latency_s=0.001)
    assert seconds(host, "reservation") == (10, 0)


def test_nobody_can_tell_whether_a_drive_that_waits_for_its_storage_wants_more() -> None:
    host = Host(DrivePolicy(reservation=1000))
    for _ in range(11):
        host.look(150, kib=(4, 4), latency_s=0.02)  # three requests on their way
    assert host.account.reads == pytest.approx(1500)
    assert host.account.promises == {}


@pytest.mark.parametrize(("latency_s", "kept"), [(0.0049, True), (0.0051, False)])
def test_a_latency_target_is_missed_above_it(latency_s: float, kept: bool) -> None:
    host = Host(DrivePolicy(latency_target_ms=5))
    for _ in range(11):
        host.look(150, kib=(4, 4), latency_s=latency_s)
    for _ in range(5):
        host.look()  # an idle second tells nothing
    assert seconds(host, "latency_target") == ((10, 0) if kept else (0, 10))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("capacity", "kept"), [(1000, False), (1700, True)])
def test_a_reservation_is_missed_if_its_share_holds_a_drive_below_it(
    capacity: int, kept: bool, exact: bool
) -> None:
    policy = DrivePolicy(reservation=800)
    guests = [Guest(name, policy, iter([Phase(inf)]), exact=exact) for name in ("a", "b")]
    host = Counted(guests, [Disk(StoragePolicy(capacity), steady(5000), 0.001, 4.0)])
    host.run(60)
    for guest in guests:
        kept_s, missed_s = host.accounts[guest.drive].promises["reservation"]
        assert kept_s + missed_s == pytest.approx(58, abs=1)
        assert (kept_s if kept else missed_s) > 55


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("base_s", "kept"), [(0.001, True), (0.008, False)])
def test_a_reservation_is_missed_if_its_storage_holds_a_drive_up(
    base_s: float, kept: bool, exact: bool
) -> None:
    """Four requests at a time do 1,000 a second at the target of 4 ms, and 500 if each takes 8."""
    shows = [Phase(inf, inf, Kind.of(4), 4)]
    guest = Guest("a", DrivePolicy(reservation=900), iter(shows), exact=exact)
    beside = Guest("b", DrivePolicy(), iter([Phase(inf, 2000)]), exact=exact)
    disk = Disk(StoragePolicy(9000, 4.0), steady(9000), base_s, 4.0)
    host = Counted([guest, beside], [disk])
    host.run(60)
    kept_s, missed_s = host.accounts[A].promises["reservation"]
    assert (kept_s if kept else missed_s) > 50
