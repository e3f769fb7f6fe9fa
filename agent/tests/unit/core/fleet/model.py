"""Hosts that share a budget, with faults in any order, as a state machine for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from iokeel.core.fleet import host as hosting
from iokeel.core.fleet.claims import HostClaim, Shared
from iokeel.core.fleet.host import Me, Part
from iokeel.core.fleet.ledger import Word
from iokeel.core.values.storage import Load, StorageActivity
from testing.sim.shared_budget import Fleet
from testing.sim.shared_budget_hosts import LONGEST_ORDER_S, Host, Process, Protocol, Work

BUDGET = 1000
NAMES = ("a", "b", "c")
SECOND = "second a"
HOSTS = st.sampled_from([*NAMES, *NAMES, SECOND])
WORKS = st.builds(
    lambda reservation, weight, wants, spare: Work(
        reservation, weight, wants, max(wants + spare, reservation)
    ),
    st.sampled_from([0, 0, 100, 300]),
    st.sampled_from([50, 100, 400]),
    st.sampled_from([0, 400, 2000, 2000]),
    st.sampled_from([0, 1000]),
)


ORDERS_S = st.sampled_from([0.0, 1.0, LONGEST_ORDER_S])


class FleetModel(RuleBasedStateMachine):
    """Hosts and an etcd. Each rule is a step of one of them, or a fault.

    Of two hosts with the name "a", the second is off at first.
    """

    protocol = Protocol()
    shared: Shared | None = None

    @initialize(
        works=st.tuples(WORKS, WORKS, WORKS),
        held=st.sampled_from([0, 200]),
        orders_s=st.tuples(ORDERS_S, ORDERS_S, ORDERS_S),
    )
    def begin(self, works: tuple[Work, ...], held: int, orders_s: tuple[float, ...]) -> None:
        self.fleet = Fleet(self.protocol, self.shared)
        self.fleet.set_budget(BUDGET)
        for name, work, ratio in zip(NAMES, works, (1.0, 1.002, 0.998), strict=True):
            self.fleet.hosts[name] = Host(
                Me(name, f"{name}1"), ratio, work, held=held, part=Part(before=held)
            )
        for name, order_s in zip(NAMES, orders_s, strict=True):
            self.fleet.hosts[name].order_s = order_s
        self.fleet.hosts[SECOND] = Host(Me("a", "a2"), work=works[0], process=Process.OFF)
        self.rounds(20)

    def rounds(self, times: int, leader: str = NAMES[0]) -> None:
        """Let all hosts that can do their parts, and one of them coordinate."""
        for _ in range(times):
            for host in self.fleet.hosts.values():
                self.fleet.round(host)
            able = [host for host in self.fleet.hosts.values() if host.reaches_etcd]
            for host in sorted(able, key=lambda host: host is not self.fleet.hosts[leader])[:1]:
                self.fleet.study(host)
                self.fleet.commit(host)
            self.fleet.advance(1)

    # Time and messages

    @rule(seconds=st.sampled_from([1, 3, 8, 17]))
    def advance(self, seconds: int) -> None:
        self.fleet.advance(seconds)

    @rule(name=HOSTS, order_s=ORDERS_S)
    def take_limits_slowly(self, name: str, order_s: float) -> None:
        self.fleet.hosts[name].order_s = order_s

    @rule(times=st.sampled_from([1, 2, 8, 20]), leader=HOSTS)
    def all_is_well_for_a_while(self, times: int, leader: str) -> None:
        self.rounds(times, leader)

    @rule(name=HOSTS, which=st.integers(0, 3), step=st.sampled_from(["ask", "serve", "answer"]))
    def read(self, name: str, which: int, step: str) -> None:
        host = self.fleet.hosts[name]
        if step == "ask":
            self.fleet.ask(host)
        elif step == "serve":
            self.fleet.serve(host)
        else:
            self.fleet.answer(host, which)

    @rule(name=HOSTS, step=st.sampled_from(["watch", "claim", "post", "round"]))
    def take_part(self, name: str, step: str) -> None:
        host = self.fleet.hosts[name]
        if step == "watch":
            self.fleet.watch(host)
        elif step == "claim":
            self.fleet.claim(host)
        elif step == "post":
            self.fleet.post(host)
        else:
            self.fleet.round(host)

    @rule(name=HOSTS, step=st.sampled_from(["study", "commit", "commit", "lose answer"]))
    def coordinate(self, name: str, step: str) -> None:
        host = self.fleet.hosts[name]
        if step == "study":
            self.fleet.study(host)
        else:
            self.fleet.commit(host, told=step == "commit")

    # Workloads, operators, faults

    @rule(name=HOSTS, work=WORKS, times=st.sampled_from([0, 5]))
    def work(self, name: str, work: Work, times: int) -> None:
        self.fleet.hosts[name].work = work
        self.rounds(times)

    @rule(one=HOSTS, other=HOSTS, reservation=st.sampled_from([0, 100]))
    def demand_moves_from_a_slow_host(self, one: str, other: str, reservation: int) -> None:
        first, second = self.fleet.hosts[one], self.fleet.hosts[other]
        first.work, second.work = Work(reservation, 100, 2000, 3000), Work(0, 100, 0, 3000)
        self.rounds(18)
        first.order_s, second.order_s = LONGEST_ORDER_S, 0.0
        first.work, second.work = second.work, first.work
        self.rounds(5)

    @rule(one=HOSTS, other=HOSTS)
    def last_guests_move_to_a_slow_host(self, one: str, other: str) -> None:
        first, second = self.fleet.hosts[one], self.fleet.hosts[other]
        for host in self.fleet.hosts.values():
            host.work, host.order_s = Work(0, 100, 2000, 3000), 0.0
        self.rounds(18)
        second.order_s = LONGEST_ORDER_S
        self.fleet.last_guests_move(first, second)
        self.rounds(5)

    @rule(amount=st.sampled_from([400, 1000, 1500]))
    def set_budget(self, amount: int) -> None:
        self.fleet.set_budget(amount)

    @rule(name=st.sampled_from(NAMES), amount=st.sampled_from([400, 700, 900]))
    def lower_while_an_agent_is_dead(self, name: str, amount: int) -> None:
        """The others make room for what the dead agent's host holds, if there is room at all."""
        for other in self.fleet.hosts.values():
            other.work = Work(300, 100, 2000, 3000)
        self.rounds(20)
        self.die(name, "kill", expired=True)
        self.fleet.set_budget(amount)
        self.rounds(25)
        ledger = self.fleet.etcd.ledger
        claimed = {Me(host, claim.instance) for host, claim in self.fleet.etcd.claims.items()}
        hosts = self.fleet.hosts.values()
        if any(host.me in claimed and not host.reaches_etcd for host in hosts):
            return  # it counts as one that reports until its lease ends
        if ledger is None or self.shared is not None:
            return
        entries = ledger.entries.items()
        silent = sum(e.charged for host, e in entries if Me(host, e.instance) not in claimed)
        assert silent >= amount or ledger.charged <= amount

    @rule(name=HOSTS, word=st.sampled_from(Word))
    def say(self, name: str, word: Word) -> None:
        self.fleet.say(self.fleet.hosts[name], word)

    @rule(name=HOSTS, how=st.sampled_from(["kill", "stop", "turn off"]), expired=st.booleans())
    def die(self, name: str, how: str, expired: bool) -> None:
        host = self.fleet.hosts[name]
        if how == "kill":
            self.fleet.kill(host)
        elif how == "stop":
            self.fleet.stop(host)
        else:
            self.fleet.turn_off(host)
        if expired:
            self.fleet.expire(host)

    @rule(name=HOSTS)
    def resume(self, name: str) -> None:
        self.fleet.resume(self.fleet.hosts[name])

    @rule(work=WORKS, expired=st.booleans())
    def another_host_of_that_name_comes(self, work: Work, expired: bool) -> None:
        self.fleet.hosts[SECOND].work = work
        self.fleet.resume(self.fleet.hosts[SECOND])
        if expired:
            self.fleet.expire(self.fleet.hosts["a"])
        self.rounds(3)

    @rule(name=HOSTS, expired=st.booleans())
    def cut_off(self, name: str, expired: bool) -> None:
        self.fleet.cut_off(self.fleet.hosts[name])
        if expired:
            self.fleet.expire(self.fleet.hosts[name])

    @rule(name=HOSTS)
    def connect(self, name: str) -> None:
        self.fleet.hosts[name].connected = True

    @rule(
        name=HOSTS,
        word=st.sampled_from([None, Word.AT_FLOOR]),
        late_s=st.sampled_from([0, 6, 9]),
        then_s=st.sampled_from([0, 12]),
    )
    def cut_off_with_an_answer_on_its_way(
        self, name: str, word: Word | None, late_s: int, then_s: int
    ) -> None:
        host = self.fleet.hosts[name]
        self.fleet.ask(host)
        self.fleet.serve(host)
        self.cut_off(name, expired=True)
        if word is not None:
            self.fleet.say(host, word)
        self.rounds(late_s)
        self.fleet.answer(host, -1)
        self.rounds(then_s)

    @rule()
    def back_up(self) -> None:
        self.fleet.back_up()

    @rule(empty=st.booleans())
    def restore(self, empty: bool) -> None:
        self.fleet.restore(empty=empty)

    @rule(
        name=HOSTS,
        works=st.tuples(WORKS, WORKS, WORKS),
        times=st.sampled_from([3, 20]),
        empty=st.booleans(),
        stale=st.booleans(),
        waits=st.booleans(),
    )
    def lose_a_while(
        self,
        name: str,
        works: tuple[Work, ...],
        times: int,
        empty: bool,
        stale: bool,
        waits: bool,
    ) -> None:
        """Restore an etcd from before some changes, of which a host has heard only in part."""
        host = self.fleet.hosts[name]
        self.fleet.back_up()
        if stale:
            self.cut_off(name, expired=True)
            self.fleet.say(host, Word.AT_FLOOR)
        self.set_works(works, times)
        self.cut_off(name, expired=False)
        self.rounds(2)
        self.fleet.restore(empty=empty)
        host.connected = True
        self.fleet.round(host)
        if waits:  # a coordinator is at it before the one that knows better
            self.fleet.study(host)
            self.fleet.commit(host)
            self.fleet.advance(7)
        self.rounds(times, name)

    @rule(name=HOSTS, empty=st.booleans())
    def come_back_to_an_etcd_that_was_restored(self, name: str, empty: bool) -> None:
        host = self.fleet.hosts[name]
        for other in self.fleet.hosts.values():
            other.work = Work(0, 100, 2000 if other is host else 0, 3000)
        self.rounds(18)
        self.fleet.back_up()
        self.cut_off(name, expired=True)
        self.fleet.say(host, Word.AT_FLOOR)
        for other in self.fleet.hosts.values():
            other.work = Work(0, 100, 2000, 3000)
        self.rounds(20)
        self.fleet.restore(empty=empty)
        host.connected = True
        self.fleet.round(host)
        self.fleet.advance(7)
        self.rounds(3)

    @rule(name=HOSTS, reserved=st.sampled_from([100, 600]), said=st.booleans())
    def cut_off_while_floors_fall(self, name: str, reserved: int, said: bool) -> None:
        host = self.fleet.hosts[name]
        for other in self.fleet.hosts.values():
            other.work = Work(0, 100, 2000, 3000)
        host.work = Work(300, 100, 300, 300)
        self.rounds(18)
        self.cut_off(name, expired=False)
        for other in self.fleet.hosts.values():
            other.work = Work(reserved, 100, 2000, 3000)
        self.rounds(2)
        self.fleet.expire(host)
        if said:
            self.fleet.say(host, Word.AT_FLOOR)
        self.rounds(20)

    def set_works(self, works: tuple[Work, ...], times: int) -> None:
        for each, work in zip(NAMES, works, strict=True):
            self.fleet.hosts[each].work = work
        self.rounds(times)

    # Once all is quiet

    @rule()
    def all_heals(self) -> None:
        self.fleet.advance(hosting.TERM_S + 2)  # until any host may be turned off
        self.fleet.turn_off(self.fleet.hosts[SECOND])
        for host in (self.fleet.hosts[name] for name in NAMES):
            host.connected = True
            self.fleet.resume(host)
            if host.process is not Process.RUNS:
                self.fleet.resume(host)
            if self.fleet.etcd.claims.get(host.me.name, HostClaim("")).instance != host.me.instance:
                self.fleet.expire(host)
            host.claims = []
            host.order_s = 0.0
        self.rounds(10)
        self.fleet.say_who_is_gone()
        self.rounds(45)
        self.check_division()

    def check_division(self) -> None:
        """Each host has what the definition gives it, but for 2 % that amounts may be off."""
        budget, ledger = self.fleet.etcd.budget, self.fleet.etcd.ledger
        assert budget is not None
        assert ledger is not None
        if self.shared is not None:
            budget = budget._replace(amount=ledger.amount)
        hosts = [self.fleet.hosts[name] for name in NAMES if self.fleet.hosts[name].work.most > 0]
        floors = [ledger.entries[host.me.name].floor for host in hosts]
        held = [host.held for host in hosts]
        assert sum(host.held for host in self.fleet.hosts.values()) == sum(held)
        reserved = [host.work.reservation for host in hosts]
        if sum(reserved) <= budget.amount:
            assert all(low >= r for low, r in zip(floors, reserved, strict=True))
        expected = with_floors(budget.amount, [host.work for host in hosts], floors)
        for has, low, amount in zip(held, floors, expected, strict=True):
            assert has >= max(low, amount / 1.02 - len(hosts))


TARGET_MS = 10.0


class StorageModel(FleetModel):
    """The same for a storage, whose latency moves the budget at any time."""

    shared: Shared | None = Shared(TARGET_MS)

    @rule(
        name=HOSTS,
        strain=st.sampled_from([0.1, 0.9, 1.2, 5.0, 50.0]),
        strangers=st.sampled_from([0.0, 0.0, 300.0]),
        short=st.booleans(),
        times=st.sampled_from([0, 4, 12]),
    )
    def measure(self, name: str, strain: float, strangers: float, short: bool, times: int) -> None:
        """Let a host measure some latency, and tell others of it."""
        host = self.fleet.hosts[name]
        latency_s, done = strain * TARGET_MS / 1000, float(host.held)
        activity = StorageActivity(1.0, done, latency_s, 1.0, done * latency_s, 1.0, 1.0)
        host.load = Load(activity, done, strangers, short=short)
        self.rounds(times)

    @rule(name=HOSTS)
    def fall_silent(self, name: str) -> None:
        self.fleet.hosts[name].load = None

    @rule()
    def all_heals(self) -> None:
        for host in self.fleet.hosts.values():
            host.load = None
        super().all_heals()


def with_floors(budget: int, works: Sequence[Work], floors: Sequence[int]) -> list[float]:
    """Divide a budget by definition: bisect for the level at which all of it is used.

    Up to level 1 a host gets that part of what it is owed, and beyond it what its weight adds.
    """

    def at(level: float) -> list[float]:
        amounts = []
        for work, low in zip(works, floors, strict=True):
            owed = min(work.reservation, work.wants) * min(1.0, level)
            more = max(0.0, level - 1) * work.weight
            amounts.append(max(low, min(work.wants, owed + more)))
        return amounts

    low, high = 0.0, 1e6
    if sum(at(high)) <= budget:
        return at(high)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) <= budget else (low, middle)
    return at(low)
