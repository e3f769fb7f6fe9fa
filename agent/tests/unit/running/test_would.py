"""What the law would do to observed VMs is what it does to the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.config.settings import Config
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import KIB
from iokeel.core.values.limits import STOCK, UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import OBSERVE, DomainPolicy, DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.running.accounts import Accounts
from iokeel.running.would import Would

A, B = DriveId("a", "vda"), DriveId("b", "vda")
STORAGES = {"ssd": StorageSeen(StoragePolicy(capacity=3000))}


class Pair:
    """Two drives that are seen once a second: `would` sees what is observed, `state` the rest.

    The observed ones have OBSERVE; the others their policy.
    """

    def __init__(self, policies: dict[DriveId, DomainPolicy], config: Config | None = None) -> None:
        self.policies, self.config = policies, config or Config()
        self.state, self.would = State(tenants=self.config.tenants), Would()
        self.accounts = Accounts()
        self.done = dict.fromkeys(policies, 0)
        self.in_force = dict.fromkeys(policies, UNLIMITED)
        self.now_s, self.latency_ns = 100.0, 1_000_000

    def look(self, **rates: int) -> None:
        """Look after a second in which drives did so many reads of 8K."""
        self.now_s += 1
        now_ns, drives, vms = round(self.now_s * NS_PER_S), {}, {}
        for drive, policy in self.policies.items():
            self.done[drive] += (n := rates[drive.domain])
            at, n = self.done[drive], n
            read = Counters(now_ns, at, at * 8 * KIB, 0, 0, at * self.latency_ns, 0)
            is_observed = policy.mode == OBSERVE
            drives[drive] = DriveSeen(
                None if is_observed else policy.for_drive("vda"),
                read,
                self.in_force[drive],
                abilities=STOCK,
                storage="ssd",
                tenant=None if is_observed else policy.tenant,
                vm=None if is_observed else policy.vm,
            )
            held, would = (None, policy) if is_observed else (policy, None)
            info = {"vda": DriveInfo("vda")}
            vms[drive.domain] = VmInfo(drive.domain, info, held, would=would)
        seen, before = Observation(drives, storages=STORAGES), self.state
        self.state, orders = decide(before, seen, now_ns)
        for order in orders:
            self.in_force[order.drive] = order.limits
        self.accounts.look(before, self.state, drives, now_ns)
        was = self.would.look(before, seen, vms, self.config, now_ns)
        self.accounts.observe(was, self.would.state, self.would.above)

    @property
    def observed(self) -> dict[DriveId, float | None]:
        """What each observed drive would be allowed to do."""
        return {drive: known.allowed for drive, known in self.would.drives().items()}


def policy(mode: str | None, **values: int) -> DomainPolicy:
    drive = DrivePolicy(**values)  # type: ignore[arg-type]
    return DomainPolicy({"vda": drive}, mode=mode)


def test_an_observed_drive_gets_no_limits_and_is_counted_above_what_it_would_have() -> None:
    pair = Pair({A: policy(OBSERVE, limit=500)})
    for _ in range(11):
        pair.look(a=800)  # 8K costs 1.57 or so by the published curve
    assert pair.in_force == {A: UNLIMITED}
    assert pair.observed == {A: 500}
    rate = pair.state.drives[A].measured.rate
    assert rate is not None
    above = pair.would.above[A]
    assert above.seconds == pytest.approx(10)
    assert above.operations == pytest.approx(10 * (rate - 500), rel=1e-6)


def test_below_its_limit_nothing_would_be_held() -> None:
    pair = Pair({A: policy(OBSERVE, limit=500)})
    for _ in range(10):
        pair.look(a=100)
    assert pair.would.above[A] == (0.0, 0.0)


@pytest.mark.parametrize(("latency_ns", "kept"), [(4_900_000, True), (5_100_000, False)])
def test_promises_to_an_observed_drive_are_counted_as_the_storage_keeps_them(
    latency_ns: int, kept: bool
) -> None:
    """Nothing is promised of a limit, which isn't in force."""
    pair = Pair({A: policy(OBSERVE, limit=5000, reservation=100, latency_target_ms=5)})
    pair.latency_ns = latency_ns
    for _ in range(11):
        pair.look(a=150)
    promises = pair.accounts[A].promises
    assert promises == {"reservation": (10, 0), "latency_target": (10, 0) if kept else (0, 10)}
    rate = pair.state.drives[A].measured.rate
    assert rate is not None
    assert pair.accounts[A].reads == pytest.approx(10 * rate), "counted once"


def test_credit_is_saved_and_spent_as_it_would_be() -> None:
    pair = Pair({A: policy(OBSERVE, limit=500, burst=2000, burst_seconds=20)})
    for _ in range(12):
        pair.look(a=1)
    assert pair.observed == {A: 2000}
    for _ in range(15):
        pair.look(a=800)
    assert pair.observed == {A: 500}
    assert 2 <= pair.would.above[A].seconds <= 6  # once its credit is spent


def test_an_observed_drive_changes_nothing_for_an_enforced_one() -> None:
    """It counts as a stranger there, as it would without a policy."""
    seen = [Pair({A: policy(mode), B: policy(None, limit=2000)}) for mode in (OBSERVE, None)]
    bare = Pair({A: DomainPolicy({}), B: policy(None, limit=2000)})
    for _ in range(20):
        for pair in (seen[0], bare):
            pair.look(a=900, b=400)
    assert seen[0].in_force[B] == bare.in_force[B]
    assert seen[0].in_force[A] == UNLIMITED


def test_once_it_is_enforced_nothing_is_left_of_it() -> None:
    pair = Pair({A: policy(OBSERVE, limit=500)})
    for _ in range(5):
        pair.look(a=800)
    pair.policies = {A: policy(None, limit=500)}
    pair.look(a=800)
    assert pair.observed == {}
    assert pair.in_force[A] != UNLIMITED
    pair.policies = {A: policy(OBSERVE, limit=500)}
    pair.look(a=100)
    assert pair.in_force[A] == UNLIMITED, "it is given back what it had"


def limits() -> Iterator[st.SearchStrategy[DomainPolicy]]:
    rates = st.integers(1, 3000)
    for mode in (OBSERVE, None):
        drive = st.builds(DrivePolicy, limit=st.none() | rates, weight=st.integers(1, 200))
        yield st.builds(
            lambda drive, tenant, vm, mode=mode: DomainPolicy(
                {"vda": drive}, tenant=tenant, vm=vm, mode=mode
            ),
            drive,
            st.sampled_from([None, "acme"]),
            st.none() | st.builds(VmPolicy, limit=rates),
        )


@given(st.one_of(*limits()), st.one_of(*limits()), st.lists(st.tuples(*2 * [st.integers(0, 2000)])))
def test_whatever_is_observed_keeps_what_it_had(
    a: DomainPolicy, b: DomainPolicy, rates: list[tuple[int, int]]
) -> None:
    config = Config(tenants={"acme": TenantPolicy(limit=1500)})
    pair = Pair({A: a, B: b}, config)
    for first, second in rates:
        pair.look(a=first, b=second)
        for drive, policy in pair.policies.items():
            if policy.mode == OBSERVE:
                assert pair.in_force[drive] == UNLIMITED
                most = policy.drives["vda"].limit
                allowed = pair.observed[drive]
                assert most is None or allowed is None or allowed <= most
