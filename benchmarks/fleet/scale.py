"""What does a large fleet ask of etcd, and how fast does it divide limits and shared storages?

    python -m benchmarks.fleet.scale [--quick]

Runs the agents' own part in the fleet (iokeel.fleet.participant and store, and the coordinator in
iokeel.core.fleet) for simulated hosts, with a simulated etcd and a clock of its own. A tenant's
budget has nothing to do with another's. So one tenant of each size is simulated, and counts are
multiplied by the number of tenants of that size in the site: 10,000 hosts, 2,000 tenants.

A day has 24 shifts. In each, every host of a tenant draws another demand at the same moment: half
of them want nothing, the others 0 to 4 times their even part. The first 40 s of a shift are
simulated, in which all is divided; then only the regular reads go on. Large tenants are simulated
for fewer shifts. With `noise`, each demand also moves by 10 % (standard deviation) every 5 s, the
whole day; this is simulated for tenants on up to 30 hosts.

The site's hosts also share 50 storages, 200 hosts each. On these, each host reports its drives'
rate and latency every 2 s. One storage is simulated for three shifts.

Writes results/fleet-scale.json. No figure but the coordinator's CPU depends on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from benchmarks import result_file
from benchmarks.fleet.virtual.etcd import Keys, VirtualEtcd
from benchmarks.fleet.virtual.time import VirtualLoop, run
from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.coordinate import Tenure, coordinate
from iokeel.core.fleet.host import TERM_S, WAIT_NS, Me, Part
from iokeel.core.fleet.ledger import Ledger
from iokeel.core.measure.drive import LOOK_AGAIN_S
from iokeel.core.values.storage import Load, StorageActivity
from iokeel.core.values.wants import wants_of
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.participant import CLAIMS_S, READ_S, Demand, Holding, Participant
from iokeel.fleet.records import claim_of, claim_value, ledger_of, ledger_value
from iokeel.fleet.store import LEASE_S, FleetStore
from testing.fleet.budgets import set_budget

RESULT = result_file.RESULTS / "fleet-scale.json"
HOSTS = 10_000
# Hosts of a tenant: how many such tenants the site has, and for how many shifts one is simulated.
SIZES: Mapping[int, tuple[int, int]] = {
    1: (700, 24),
    3: (500, 24),
    10: (400, 24),
    30: (260, 12),
    100: (120, 4),
    300: (20, 1),
}
SHIFT_S, HOUR_S = 40.0, 3600.0
BUDGET = 1_000_000  # normalized iops
TENANT = BudgetId(Kind.TENANT, "acme")
# Storages that hosts share: the site has so many, each with so many hosts.
STORAGES, STORAGE_HOSTS = 50, 200
STORAGE = BudgetId(Kind.STORAGE, "rbd:vms")
TARGET_MS = 4.0
TICK_S = 1.0
ORDER_S = 0.05  # until a QEMU has taken a lower limit
NOISE_RATIO, NOISE_S, MOST_NOISY_HOSTS = 0.1, 5.0, 30
_NEAR_RATIO = 0.97


@dataclass
class Tenant:
    """A tenant on its hosts. held: what their QEMUs are held to; worst: the highest sum."""

    keys: Keys
    loop: VirtualLoop
    budget: BudgetId = TENANT
    hosts: list[Host] = field(default_factory=list)
    held: int = 0
    worst: int = 0

    def hold(self, change: int) -> None:
        self.held += change
        self.worst = max(self.worst, self.held)


class Host:
    """A host's part in the tenant's budget: its agent, and what its QEMUs are held to."""

    def __init__(self, number: int, tenant: Tenant, random: Random) -> None:
        self.store = FleetStore(VirtualEtcd(tenant.keys, tenant.loop), Me(f"hv{number:05d}", "i"))
        self.participant = Participant(
            self.store, tenant.budget, self._keep, Part(), self._look, tenant.loop.time_ns
        )
        self.base = self.wants = 0
        self.most = BUDGET
        self.held = 0
        self._load: Load | None = None
        self.seen: list[tuple[float, int]] = []
        self._tenant = tenant
        self._random = random
        self._wake = asyncio.Event()
        self._watches = False

    async def _keep(self, ledger: Ledger) -> None:
        await asyncio.sleep(0.002)

    def _look(self) -> Holding:
        wants = wants_of([(0, 100, self.wants)])
        load = self._load if self._tenant.budget is STORAGE else None
        return Holding(Demand(0, 100, wants, self.most), self.held, self.held, load)

    def wake(self, _: str = "") -> None:
        self._wake.set()

    async def serve(self) -> None:
        """Take part, as iokeel.fleet.member does."""
        keys, store = self._tenant.keys, self.store
        await store.sign_in()
        keys.watch(store.keys.stamp(self._tenant.budget), self.wake)
        while True:
            before = self.participant.allowance
            self._wake.clear()
            await self.participant.step()
            if self.participant.coordinates and not self._watches:
                self._watches = True
                keys.watch(store.keys.claims(self._tenant.budget), self.wake)
            if self.participant.allowance != before:
                self.seen.append((self._tenant.loop.time(), self.participant.allowance))
                self._tenant.loop.call_later(LOOK_AGAIN_S, self.look)
            try:
                async with asyncio.timeout(READ_S):
                    await asyncio.sleep(self.participant.pause_s)
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def tick(self) -> None:
        """Look each second, as the daemon does."""
        await asyncio.sleep(self._random.uniform(0, TICK_S))
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Hold the QEMUs to what is allowed; a lower limit counts once QEMU has taken it."""
        done = min(self.held, self.wants) * self._random.uniform(0.99, 1.01)
        self._load = _load(self._random, done)
        allowed = min(self.participant.allowance, self.most)
        if allowed > self.held:
            self._hold(allowed)
        elif allowed < self.held:
            self._tenant.loop.call_later(ORDER_S, self._hold, allowed)
        if self.participant.has_news:
            self.wake()

    def _hold(self, rate: int) -> None:
        self._tenant.hold(rate - self.held)
        self.held = rate
        if self.participant.has_news:
            self.wake()

    def draw(self, size: int) -> None:
        """Draw another demand."""
        self.base = self.wants = demand(self._random, size)


def _load(random: Random, done: float) -> Load:
    """Return what a host's drives have done on a storage, which is as loaded as it may be."""
    latency_s = TARGET_MS / 1000 * random.uniform(0.8, 0.95)
    activity = StorageActivity(TICK_S, done, latency_s, 1.0, done * latency_s, 1.0, 1.0)
    return Load(activity, done)


def demand(random: Random, size: int) -> int:
    """Return the demand of one of so many hosts after a shift."""
    is_idle = random.random() < 0.5
    return 0 if is_idle else round(random.uniform(0, 4) * BUDGET / size)


@dataclass(frozen=True)
class Counted:
    """What one tenant of a size asked for, while it was divided anew and in all.

    shift: counts of the first 10 s of a shift, the mean of all; whole: of 40 s. divided_s: the time
    from a shift until each host has 97 % of what it has at the end. worst_ratio: the highest sum
    of what QEMUs were held to, over the budget.
    """

    hosts: int
    tenants: int
    shifts: int
    shift: Mapping[str, float]
    whole: Mapping[str, float]
    divided_s: list[float]
    worst_ratio: float


def since_when(seen: Sequence[tuple[float, float]], enough: float, since: float) -> float:
    """Return since when a host has had nearly enough: at the earliest, since a shift.

    seen: what it was allowed, each with its time.
    """
    found = since
    for at, allowed in reversed(seen):
        if allowed < _NEAR_RATIO * max(enough, 1):
            break
        found = max(at, since)
        if at < since:
            break
    return found


def divided_after(hosts: Sequence[Host], since: float) -> float:
    """Return how long after a shift the last host had nearly all that it has at the end."""
    last = since
    for host in hosts:
        enough = min(host.participant.allowance, max(host.wants, 1))
        last = max(last, since_when(host.seen, enough, since))
        host.seen = host.seen[-1:]
    return last - since


async def _simulate(
    size: int, shifts: int, tenant: Tenant, random: Random, noise: float
) -> Counted:
    hosts = tenant.hosts
    hosts += [Host(number, tenant, random) for number in range(size)]
    shared = Shared(TARGET_MS) if tenant.budget is STORAGE else None
    await set_budget(hosts[0].store, tenant.budget, Budget(BUDGET, shared=shared))
    tasks = [asyncio.create_task(work) for host in hosts for work in (host.serve(), host.tick())]
    await asyncio.sleep(3 * TERM_S)
    counts = tenant.keys.counts
    early: Counter[str] = Counter()
    counts.clear()
    divided = []
    for _ in range(shifts):
        for host in hosts:
            host.draw(size)
        since, before = tenant.loop.time(), Counter(counts)
        for part in range(round(SHIFT_S / NOISE_S)):
            await asyncio.sleep(NOISE_S)
            if (part + 1) * NOISE_S == 10:
                early += counts - before
            for host in hosts if noise else ():
                host.wants = max(0, round(host.base * random.gauss(1, noise)))
        divided.append(divided_after(hosts, since))
    for task in tasks:
        if task.done():
            task.result()
    return Counted(
        size,
        SIZES.get(size, (1, 0))[0],
        shifts,
        {name: n / shifts for name, n in sorted(early.items())},
        {name: n / shifts for name, n in sorted(counts.items())},
        [round(seconds, 2) for seconds in divided],
        round(tenant.worst / BUDGET, 4),
    )


def simulate(size: int, shifts: int, noise: float, budget: BudgetId = TENANT) -> Counted:
    """Simulate a tenant or a storage on so many hosts."""
    loop, random = VirtualLoop(), Random(size)
    tenant = Tenant(Keys(loop, random), loop, budget)
    return run(_simulate(size, shifts, tenant, random, noise), loop)


def coordinator_cpu_s(size: int, shared: Shared | None = None) -> float:
    """Return the processor time of one step of a coordinator: to decode, divide and encode."""
    random = Random(size)
    load = None if shared is None else _load(random, BUDGET / size)

    def claims() -> dict[str, HostClaim]:
        wants = [wants_of([(0, 100, random.randrange(9 * BUDGET // size))]) for _ in range(size)]
        return {
            f"hv{n:05d}": HostClaim("i", wants=w, most=BUDGET, load=load)
            for n, w in enumerate(wants)
        }

    budget, tenure = Budget(BUDGET, shared=shared), Tenure("e", 0)
    ledger, tenure = coordinate(None, claims(), budget, tenure, 0)
    for now in (1, 2 + WAIT_NS):
        ledger, tenure = coordinate(ledger, claims(), budget, tenure, now)
    raw = {name: claim_value(claim) for name, claim in claims().items()}
    value = ledger_value(ledger)
    best = 1e9
    for _ in range(5):
        begun = time.process_time()
        there = {name: claim_of(name, each) for name, each in raw.items()}
        found = ledger_of("", value)
        after, _ = coordinate(found, there, budget, tenure, 3 + WAIT_NS)
        ledger_value(after)
        best = min(best, time.process_time() - begun)
    return best


def site(found: list[Counted]) -> dict[str, dict[str, float]]:
    """Return the site's counts a second: in a shift of all tenants at once, and over the day."""
    pairs = sum(c.hosts * c.tenants for c in found)
    every = sum(c.tenants * c.hosts * c.hosts for c in found)
    claims = sum(c.tenants * c.hosts * c.hosts / max(CLAIMS_S, c.hosts) for c in found)
    rates: dict[str, dict[str, float]] = {
        "quiet": {
            "reads": pairs / READ_S,
            "lease renewals": HOSTS / (LEASE_S / 5),
            "claims read": claims + pairs / READ_S,
        },
        "shift": {name: _sum(found, name, early=True) / 10 for name in _names(found)},
        "day": {name: _sum(found, name) / HOUR_S for name in _names(found)},
        "if all hosts read all claims": {"claims read": every / READ_S},
    }
    for name in ("reads", "claims read"):
        rates["day"][name] += rates["quiet"][name] * (HOUR_S - SHIFT_S) / HOUR_S
    return rates


def sustained(found: list[Counted]) -> dict[str, dict[str, float]]:
    """Return the counts a second of demands that never stand still."""
    return {"always": {name: _sum(found, name) / SHIFT_S for name in _names(found)}}


def storage_site(found: Counted) -> dict[str, dict[str, float]]:
    """Return the counts a second of all storages: in a shift of all at once, and after it."""
    return {
        "shift": {name: STORAGES * n / 10 for name, n in found.shift.items()},
        "quiet": {
            name: STORAGES * (n - found.shift.get(name, 0.0)) / (SHIFT_S - 10)
            for name, n in found.whole.items()
        },
    }


def _names(found: list[Counted]) -> list[str]:
    return sorted({name for counted in found for name in counted.whole})


def _sum(found: list[Counted], name: str, *, early: bool = False) -> float:
    return sum(c.tenants * (c.shift if early else c.whole).get(name, 0.0) for c in found)


def percentile(found: list[Counted], q: float) -> float:
    """Return a percentile of the time until a step is divided, over all tenants of the site."""
    times = [s for c in found for s in c.divided_s]
    weights = np.array([c.tenants / c.shifts for c in found for _ in c.divided_s])
    order = np.argsort(times)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(np.array(times)[order][np.searchsorted(reached, q)])


def show(found: list[Counted], rates: dict[str, dict[str, float]]) -> None:
    """Print a run."""
    for c in found:
        print(
            f"  {c.hosts:5} hosts: divided in {max(c.divided_s):6.2f} s at most,"
            f" {c.shift.get('writes', 0):7.0f} writes and {c.shift.get('watch events', 0):7.0f}"
            f" watch events a shift, worst sum {c.worst_ratio:.4f}"
        )
    for when, counts in rates.items():
        print(f"  {when}: " + ", ".join(f"{n:,.0f} {what}/s" for what, n in counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument(
        "--quick", action="store_true", help="small tenants and two shifts; writes nothing"
    )
    quick = parser.parse_args().quick
    steady, noisy = [], []
    for size, (_, shifts) in SIZES.items():
        if quick and size > 30:
            break
        steady.append(simulate(size, 2 if quick else shifts, 0.0))
        if size <= MOST_NOISY_HOSTS:
            noisy.append(simulate(size, min(shifts, 2), NOISE_RATIO))
        print(f"{size} hosts: {time.process_time():.0f} s of CPU", flush=True)
    storage = simulate(20 if quick else STORAGE_HOSTS, 1 if quick else 3, 0.0, STORAGE)
    storage_cpu_s = coordinator_cpu_s(STORAGE_HOSTS, Shared(TARGET_MS))
    cpu = {str(size): round(coordinator_cpu_s(size), 5) for size in (*SIZES, 1000)}
    result = {
        "at": result_file.now(),
        "revision": result_file.revision(),
        "cpu": result_file.cpu_model(),
        "hosts": HOSTS,
        "divided_p50_s": percentile(steady, 0.5),
        "divided_p99_s": percentile(steady, 0.99),
        "worst_ratio": max(c.worst_ratio for c in (*steady, *noisy, storage)),
        "coordinator_step_cpu_s": cpu,
        "steady": {"a_second": site(steady), "tenants": steady},
        "noise": {"a_second": sustained(noisy), "tenants": noisy},
        "storages": {
            "count": STORAGES,
            "a_second": storage_site(storage),
            "coordinator_step_cpu_s": round(storage_cpu_s, 5),
            "storage": storage,
        },
    }
    show(steady, site(steady))
    show(noisy, sustained(noisy))
    show([storage], storage_site(storage))
    print("divided:", result["divided_p50_s"], result["divided_p99_s"], "; a step's CPU:", cpu)
    if not quick:
        result_file.write(RESULT, result)


if __name__ == "__main__":
    main()
