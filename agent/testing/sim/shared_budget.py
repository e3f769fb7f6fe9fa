"""A simulated fleet: hosts that share one budget through an etcd that may lose its data.

The protocol (iokeel.core.fleet) is the real one. What is simulated is what it runs on: agents that
are killed, stopped and cut off, QEMUs that keep a dead agent's limits and take new ones late,
clocks that run at different speeds, and an etcd whose answers come late, in another order, or not
at all. Nothing here waits: `advance` moves the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from iokeel.core.fleet import host as hosting
from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.coordinate import in_office, with_word
from iokeel.core.fleet.host import Answer, Me, Part
from iokeel.core.fleet.ledger import Ledger, Word, recovered
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.wants import wants_of
from testing.sim.shared_budget_hosts import Host, Process, Protocol, Read, Stored, Work, Write

TICK_S = 0.5
# An agent that reaches etcd reads it more often than this.
_TELLS_WITHIN_S = 8.0


class TooMuch(AssertionError):
    """QEMUs on all hosts are held to more than the budget."""


class TooLittle(AssertionError):
    """A host whose agent runs is held below its floor."""


@dataclass
class Fleet:
    """All hosts, and etcd.

    shared: of a storage's budget; None if it is a tenant's. bound: the most that may be held: see
    `_settle_bound`.
    """

    protocol: Protocol = field(default_factory=Protocol)
    shared: Shared | None = None
    now_s: float = 0.0
    hosts: dict[str, Host] = field(default_factory=dict)
    etcd: Stored = field(default_factory=lambda: Stored(None))
    backup: Stored | None = None
    bound: int = 0
    _names: count[int] = field(default_factory=count)
    _readings: count[int] = field(default_factory=count)

    def fresh(self) -> str:
        """Return a name that nobody has had."""
        return f"e{next(self._names)}"

    def clock_ns(self, host: Host) -> int:
        """Return a host's clock. Clocks have nothing in common but about their speed."""
        return int((1000 * host.clock_ratio + self.now_s * host.clock_ratio) * NS_PER_S)

    # Time

    def advance(self, seconds: float) -> None:
        """Let time pass: agents tick, and QEMUs take new limits."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            for host in self.hosts.values():
                while host.orders and host.orders[0][0] <= self.now_s:
                    host.held = host.orders.pop(0)[1]
                    self.check()
            for host in self.hosts.values():
                self.tick(host)
                if host.tells_by_s is not None and self.now_s >= host.tells_by_s:
                    host.tells_by_s = None
                    self.round(host)
            self._settle_bound()
            self.check()

    def tick(self, host: Host) -> None:
        """Let an agent that runs hold its QEMUs to what it is allowed."""
        if not host.runs:
            return
        allowed = self.protocol.allowance(host.part, host.me, self.clock_ns(host))
        if not host.work.most:
            allowed = 0  # it has no QEMU
        if allowed != (host.orders[-1][1] if host.orders else host.held):
            done_s = self.now_s + host.order_s
            host.orders.append((max([done_s, *(at for at, _ in host.orders)]), allowed))

    def check(self) -> None:
        """Raise TooMuch or TooLittle if a promise is broken now."""
        held = {name: host.held for name, host in self.hosts.items()}
        if sum(held.values()) > self.bound:
            raise TooMuch(f"{held} are more than {self.bound}")
        for host in self.hosts.values():
            entry = hosting.entry_of(host.part, host.me)
            if host.runs and entry is not None:
                allowed = self.protocol.allowance(host.part, host.me, self.clock_ns(host))
                if allowed < entry.floor:
                    raise TooLittle(f"{host.me.name}: {allowed} is below {entry.floor}")

    # A host and etcd

    def ask(self, host: Host) -> None:
        """Send a read."""
        if host.runs:
            host.reads.append(Read(self.clock_ns(host)))

    def serve(self, host: Host) -> None:
        """Let etcd serve the oldest read that it hasn't served yet."""
        waiting = [i for i, read in enumerate(host.reads) if read.found is None]
        if host.connected and waiting:
            host.reads[waiting[0]] = host.reads[waiting[0]]._replace(found=self.etcd)

    def answer(self, host: Host, which: int) -> None:
        """Bring one of the answers to a host that runs."""
        there = [read for read in host.reads if read.found is not None]
        if host.runs and there:
            read = there[which % len(there)]
            host.reads.remove(read)
            assert read.found is not None
            self._hear(host, read.found, read.asked_ns)

    def watch(self, host: Host) -> None:
        """Tell a host of the newest ledger without its having asked."""
        if host.reaches_etcd:
            self._hear(host, self.etcd, None)

    def _hear(self, host: Host, found: Stored, asked_ns: int | None) -> bool:
        """Return whether a host may go by what it has found. If it knows better, it says so."""
        now_ns = self.clock_ns(host)
        host.part, answer = self.protocol.heard(
            host.part, host.me, found.ledger, asked_ns, now_ns, host.may_hold
        )
        host.disk = Part(host.part.ledger, before=host.part.before)
        if answer is Answer.LOST and found.budget is not None:
            assert host.part.ledger is not None
            merged = recovered(found.ledger, host.part.ledger, self.fresh())
            host.write = Write(merged, found.ledger)
        return answer is Answer.GOOD

    def claim(self, host: Host) -> None:
        """Let an agent make a claim, which isn't sent yet."""
        if host.runs:
            entry, held = hosting.entry_of(host.part, host.me), host.may_hold
            stamp = self.protocol.applied(host.disk, host.me, held)
            if entry is None:
                held = host.part.before
            load = host.load
            if load is not None:  # each claim has another reading
                load = load._replace(done=load.done + next(self._readings) * 1e-6)
            reservation, weight, wants, most = host.work
            asked = wants_of([(reservation, weight, wants)])
            host.claims.append(
                HostClaim(host.me.instance, reservation, weight, asked, most, held, stamp, load)
            )

    def post(self, host: Host) -> None:
        """Bring a host's oldest claim to etcd."""
        if host.connected and host.claims and self.etcd.budget is not None:
            claim = host.claims.pop(0)
            there = self.etcd.claims.get(host.me.name)
            if there is None or there.instance == claim.instance:
                claims = {**self.etcd.claims, host.me.name: claim}
                self.etcd = self.etcd._replace(claims=claims)

    def study(self, host: Host) -> None:
        """Let an agent read all and take a coordinator's step, which isn't written yet."""
        found = self.etcd
        if not host.reaches_etcd or found.budget is None or host.write is not None:
            return
        now_ns = self.clock_ns(host)
        if self._hear(host, found, now_ns):
            tenure = in_office(host.tenure, found.ledger, self.fresh(), now_ns, now_ns)
            ledger, host.tenure = self.protocol.coordinate(
                found.ledger, found.claims, found.budget, tenure, now_ns
            )
            if ledger is not found.ledger:
                host.write = Write(ledger, found.ledger)

    def commit(self, host: Host, *, told: bool = True) -> None:
        """Bring a host's ledger to etcd, which takes it if it still replaces the same one.

        told: the host gets etcd's answer.
        """
        if host.write is None or not host.connected:
            return
        write, host.write = host.write, None
        now, found = self.etcd.ledger, write.found
        is_same = (now and now.stamp) == (found and found.stamp)
        if is_same and self.etcd.budget is not None:
            self.etcd = self.etcd._replace(ledger=write.ledger)
            self.bound = max(self.bound, self._limit())
            self._settle_bound()
            if told and host.runs:
                self._hear(host, self.etcd, None)
        if not told:
            host.tenure = None

    def round(self, host: Host) -> None:
        """Let a host do all of its part once, without a delay, if it isn't cut off."""
        if not host.reaches_etcd:
            return
        for _ in range(2):
            self.ask(host)
            while any(read.found is None for read in host.reads):
                self.serve(host)
            while any(read.found for read in host.reads):
                self.answer(host, -1)
            self.commit(host)
        self.claim(host)
        while host.claims and self.etcd.budget is not None:
            self.post(host)

    def _settle_bound(self) -> None:
        """Bring the bound down to a budget that was lowered, once all hosts know of it.

        A budget that an operator or a storage's latency has lowered is kept as soon as hosts could
        be lowered.
        """
        ledger, budget = self.etcd.ledger, self.etcd.budget
        if ledger is None or budget is None or ledger.charged > self._limit():
            return
        for host in self.hosts.values():
            amounts = [host.may_hold]
            answers = (Part(read.found.ledger) for read in host.reads if read.found is not None)
            for part in (host.part, host.disk, *answers):
                entry = hosting.entry_of(part, host.me)
                amounts.append(entry.amount if entry is not None else 0)
            if max(amounts) > charged_to(ledger, host):
                return
        self.bound = self._limit()

    def _limit(self) -> int:
        """Return what is to be kept: the budget, or a storage's capacity as it was corrected."""
        ledger, budget = self.etcd.ledger, self.etcd.budget
        if ledger is not None and (budget is None or budget.shared is not None):
            return ledger.amount
        return budget.amount if budget is not None else 0

    def last_guests_move(self, host: Host, other: Host) -> None:
        """Move all guests of a host, with their limits, to one that is charged for others.

        They go idle, and the agent there reports what it has found.
        """
        ledger, claim = self.etcd.ledger, self.etcd.claims.get(other.me.name)
        is_charged = ledger is not None and hosting.entry_of(Part(ledger), other.me) is not None
        reports = claim is not None and claim.instance == other.me.instance
        if host is other or not (is_charged and reports and other.reaches_etcd):
            return
        other.orders = [(at, amount + host.held) for at, amount in other.orders]
        other.held += host.held
        host.held, host.orders, host.work = 0, [], Work()
        self.round(other)

    # Faults

    def kill(self, host: Host) -> None:
        """Kill an agent. Its orders and claims that are on their way arrive."""
        if host.process in (Process.RUNS, Process.STOPPED) and not self._is_fragile(host):
            self._lose_process(host, Process.DEAD)

    def stop(self, host: Host) -> None:
        """Stop an agent's process (SIGSTOP)."""
        if host.runs and not self._is_fragile(host):
            host.process = Process.STOPPED

    def resume(self, host: Host) -> None:
        """Let a stopped or dead agent, or a host that is off, run again."""
        if host.process is Process.STOPPED:
            host.process = Process.RUNS
        elif not host.runs:
            host.process, host.part = Process.RUNS, host.disk
        self.tick(host)

    def turn_off(self, host: Host) -> None:
        """Turn a host off, with all its QEMUs."""
        if not self._is_fragile(host):
            self._lose_process(host, Process.OFF)
            host.held, host.orders = 0, []

    def _lose_process(self, host: Host, process: Process) -> None:
        host.process, host.tenure, host.reads = process, None, []

    def cut_off(self, host: Host) -> None:
        """Cut a host off from etcd."""
        if host.tells_by_s is None:
            host.connected = False

    def expire(self, host: Host) -> None:
        """End the lease of a host's claim."""
        left = {name: claim for name, claim in self.etcd.claims.items() if name != host.me.name}
        self.etcd = self.etcd._replace(claims=left)

    def set_budget(self, amount: int) -> None:
        """Let an operator set the budget."""
        self.bound = max(self.bound, amount)
        self.etcd = self.etcd._replace(budget=Budget(amount, shared=self.shared))
        self._settle_bound()

    def say(self, host: Host, word: Word) -> None:
        """Let an operator answer for a host that doesn't report, if it is true."""
        ledger, name, claim = self.etcd.ledger, host.me.name, self.etcd.claims.get(host.me.name)
        if ledger is None or hosting.entry_of(Part(ledger), host.me) is None:
            return
        if claim is not None and claim.instance == host.me.instance:
            return
        if word is Word.OFF_FOR_GOOD:
            if host.process is not Process.OFF:
                return
            self._set_up_anew(host)
        elif host.runs:
            host.fragile_until_s = max(host.fragile_until_s, self._term_from_now_s())
        elif host.process is not Process.OFF:
            return
        after = with_word(ledger, name, word, self.fresh())
        self.etcd = self.etcd._replace(ledger=after)

    def _set_up_anew(self, host: Host) -> None:
        host.me, host.disk = Me(host.me.name, self.fresh()), Part()

    def say_who_is_gone(self) -> None:
        """Let an operator answer for hosts that were set up anew, and that an old ledger has."""
        there = {host.me for host in self.hosts.values() if host.process is not Process.OFF}
        ledger = self.etcd.ledger
        assert ledger is not None
        for name, entry in ledger.entries.items():
            if Me(name, entry.instance) not in there:
                assert self.etcd.ledger is not None
                after = with_word(self.etcd.ledger, name, Word.OFF_FOR_GOOD, self.fresh())
                self.etcd = self.etcd._replace(ledger=after)
        for host in self.hosts.values():
            if host.process is Process.OFF and hosting.entry_of(Part(ledger), host.me) is not None:
                self._set_up_anew(host)

    def back_up(self) -> None:
        """Take a snapshot of etcd."""
        self.backup = self.etcd

    def restore(self, *, empty: bool) -> None:
        """Restore etcd from its snapshot, or lose all, if the fleet promises to survive that.

        It does if an agent that reaches etcd within a term knows each floor, and all that is held
        by hosts whose agents don't run. Agents that run and have more come down within a term,
        unless they die.
        """
        newest = self.etcd.ledger
        then = Stored(self.etcd.budget) if empty or self.backup is None else self.backup
        if newest is None or then.budget is None:
            self.backup = None if empty else self.backup
            return
        for host in self.hosts.values():
            if host.reaches_etcd and host.part.ledger and self._knows_enough(host.part.ledger):
                break
        else:
            return
        for other in self.hosts.values():
            if other.runs and charged_to(newest, other) > charged_to(host.part.ledger, other):
                other.fragile_until_s = self._term_from_now_s()
            other.write, other.tenure = None, None  # its connection is lost
        self.etcd = then
        self.bound = max(self.bound, then.budget.amount, self._limit())
        host.tells_by_s = self.now_s + _TELLS_WITHIN_S

    def _knows_enough(self, known: Ledger) -> bool:
        assert self.etcd.ledger is not None
        for host in self.hosts.values():
            entry = hosting.entry_of(Part(self.etcd.ledger), host.me)
            if entry is None:
                continue
            charged = charged_to(known, host)
            if entry.lasting > charged:
                return False
            if host.process in (Process.DEAD, Process.STOPPED) and entry.charged > charged:
                return False
        return True

    def _is_fragile(self, host: Host) -> bool:
        return self.now_s <= host.fragile_until_s or host.tells_by_s is not None

    def _term_from_now_s(self) -> float:
        return self.now_s + hosting.TERM_S + 1


def charged_to(ledger: Ledger, host: Host) -> int:
    """Return what a host, and no other one of its name, is charged in a ledger."""
    entry = hosting.entry_of(Part(ledger), host.me)
    return entry.charged if entry is not None else 0
