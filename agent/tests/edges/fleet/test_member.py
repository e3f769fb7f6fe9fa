"""A host as a member of a real fleet: it does its part in each budget, whatever the others do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from iokeel.config.etcd_access import Access
from iokeel.config.settings import FleetConfig
from iokeel.core.divide.tenant_sums import Sums
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.host import LAPSE_S, Me
from iokeel.core.fleet.ledger import Word
from iokeel.core.values.wants import wants_of
from iokeel.errors import ConnectionLost, FleetRefused, NewerSchema
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import EVERY_TENANT, BudgetId, Keys, Kind
from iokeel.fleet.member import Member
from iokeel.fleet.messages import Delete, Put, text
from iokeel.fleet.operator import Operator, appoint
from iokeel.fleet.records import HostRecord, claim_value, encoded
from iokeel.fleet.store import FleetStore
from iokeel.report.records import BudgetInFleet
from testing.fleet import etcd as real
from testing.fleet.budgets import set_budget
from testing.waiting import until

LIMIT = 1000
PATIENCE_S = 90.0
# A few terms' worth of reads.
WATCHED_S = 20.0
# A machine that is later than this with what the test does itself doesn't tell of the agent.
DISTURBED_S = 1.0
TRIES = 3
# From then on, an alert tells that a ledger isn't read.
STALE_S = 15.0
SUMS = Sums(wants=wants_of([(0, 100, 5000)]), most=5000)


async def set_limits(etcd: Etcd, *tenants: str) -> None:
    store = FleetStore(etcd, Me("operator", "o"))
    await store.open()
    for tenant in tenants:
        await set_budget(store, BudgetId(Kind.TENANT, tenant), Budget(LIMIT))


@contextlib.asynccontextmanager
async def running(
    folder: Path, urls: str | tuple[str, ...], prefix: str, tenants: Sequence[str], host: str = "a"
) -> AsyncIterator[Member]:
    """As `running_with`, without a user."""
    access = Access((urls,) if isinstance(urls, str) else urls, prefix=prefix)
    async with running_with(folder, access, tenants, host) as member:
        yield member


@contextlib.asynccontextmanager
async def running_with(
    folder: Path, access: Access, tenants: Sequence[str], host: str
) -> AsyncIterator[Member]:
    """Let a host take part whose drives are these tenants', and look at them as an agent does."""

    async def look() -> None:
        while True:
            member.granted(tenants)
            member.looked(tenants, (), complete=True)
            await asyncio.sleep(1)

    def sums_of(tenant: str) -> Sums:
        return SUMS if tenant in tenants else Sums()

    config = FleetConfig(access, host)
    member = Member(config, folder, {Kind.TENANT: sums_of, Kind.STORAGE: lambda _: Sums()})
    tasks = [asyncio.create_task(member.run()), asyncio.create_task(look())]
    try:
        yield member
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def line(url: str, passes: Callable[[bytes], Awaitable[bool]]) -> AsyncIterator[str]:
    """Lead to a URL, and end a connection at what doesn't pass."""
    there = urlsplit(url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (said := await reader.read(1 << 20)) and await passes(said):
                writer.write(said)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(carry(reader, questions), carry(answers, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def slow_line(url: str, delay_s: float) -> AsyncIterator[str]:
    """Lead to a URL, and let what is said there take a while in each direction."""

    async def late(_said: bytes) -> bool:
        await asyncio.sleep(delay_s)
        return True

    async with line(url, late) as slow:
        yield slow


@contextlib.asynccontextmanager
async def line_that_fails_once(url: str, at: Sequence[bytes]) -> AsyncIterator[str]:
    """Lead to a URL, but end the connection at the first question that has all these bytes."""
    failed = False

    async def but_once(said: bytes) -> bool:
        nonlocal failed
        fails = not failed and all(part in said for part in at)
        failed |= fails
        return not fails

    async with line(url, but_once) as bad:
        yield bad
    assert failed


async def oldest_read_s(member: Member, etcd: Etcd, tenants: Sequence[str]) -> float:
    """Return the longest that a tenant's ledger wasn't read in an undisturbed while.

    etcd: a connection of the test's own. Skips the test if each while was disturbed.
    """
    for _ in range(TRIES):
        worst, longest_s, end = 0.0, 0.0, time.monotonic() + WATCHED_S
        while time.monotonic() < end:
            there = member.snapshot().tenants
            worst = max([worst, *(there[tenant].report.stale_s for tenant in tenants)])
            begun = time.monotonic()
            await etcd.read(["any"])
            await asyncio.sleep(0.2)
            longest_s = max(longest_s, time.monotonic() - begun)
        if worst < LAPSE_S or longest_s < DISTURBED_S:
            return worst
    pytest.skip("the machine was too busy to tell")


async def test_a_host_has_a_problem_until_etcd_has_answered_it(
    one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    async with running(tmp_path, one_etcd.urls[0], prefix, []) as member:
        assert str(member.snapshot().error) == "etcd: hasn't answered yet; wait a moment"
        await until(lambda: member.snapshot().error is None)
        assert not member.errors


async def test_a_fault_of_the_agents_own_is_told_and_counted_as_one(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    def fail(tenant: str) -> None:
        raise RuntimeError(tenant)

    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        member.on_change = fail
        await until(lambda: "the agent has a fault" in str(member.snapshot().error), PATIENCE_S)
        assert member.errors.keys() == {"internal"}


async def test_many_tenants_are_read_in_time_though_etcd_is_far_away(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    tenants = [f"tenant{number}" for number in range(60)]
    await set_limits(etcd, *tenants)
    async with (
        slow_line(one_etcd.urls[0], 0.1) as url,
        running(tmp_path, url, prefix, tenants) as member,
    ):

        def all_have_their_limit() -> bool:
            there = member.granted(tenants)
            return all(tenant in there and there[tenant].limit == LIMIT for tenant in tenants)

        await until(all_have_their_limit, PATIENCE_S)
        assert await oldest_read_s(member, etcd, tenants) < LAPSE_S


async def test_a_budget_that_cannot_be_kept_does_not_hold_up_the_others(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        member._memory._database.execute("PRAGMA max_page_count = 1")  # no page more than now
        await set_limits(etcd, "umbra" * 2000)
        await until(lambda: "disk is full; free some space," in str(member.problem))
        assert await oldest_read_s(member, etcd, ["acme"]) < LAPSE_S


async def test_a_host_that_cannot_use_a_new_budget_leaves_its_office_to_others(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    store = FleetStore(etcd, Me("operator", "o"))
    unkept, newer = BudgetId(Kind.TENANT, "umbra" * 2000), BudgetId(Kind.TENANT, "newer")

    async def resigned(budget: BudgetId) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await etcd.read([store.keys.leader(budget)])).values:
                await asyncio.sleep(0.2)

    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        await appoint(store, [newer])
        await etcd.write([], [Put(store.keys.budget(newer), b'{"v":9}')])
        await resigned(newer)
        assert isinstance(member.problems[newer], NewerSchema)
        member._memory._database.execute("PRAGMA max_page_count = 1")  # no page more than now
        await Operator(store).set_budgets({unkept: Budget(LIMIT)}, {})
        await resigned(unkept)
        assert "disk is full" in str(member.problem)


async def test_a_host_that_a_tenant_has_left_meanwhile_is_charged_nothing_if_it_is_set_again(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    (url,), here = one_etcd.urls, ["acme"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    await set_limits(etcd, "acme")

    def limit(member: Member) -> int | None:
        return member.granted(["acme"])["acme"].limit

    async with running(tmp_path / "a", url, prefix, ["acme"]) as coordinator:
        await until(lambda: limit(coordinator) == LIMIT, PATIENCE_S)
        async with running(tmp_path / "b", url, prefix, here, "b") as other:
            await until(lambda: limit(other) == LIMIT / 2, PATIENCE_S)
            operator = FleetStore(etcd, Me("operator", "o"))
            await set_budget(operator, BudgetId(Kind.TENANT, "acme"), None)
            both = coordinator, other
            await until(lambda: not any(member.granted(["acme"]) for member in both), PATIENCE_S)
            here.clear()
            await asyncio.sleep(2)  # until that was looked at
            await set_limits(etcd, "acme")
            await until(lambda: limit(coordinator) == LIMIT, PATIENCE_S)


async def test_a_claim_on_a_tenant_that_is_removed_goes_though_etcd_fails_then(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    acme = BudgetId(Kind.TENANT, "acme")
    claim = Keys(prefix).claim(acme, "a")
    await set_limits(etcd, "acme")
    taken_back = [b'"request_delete_range":{"key":"' + text(claim).encode()]
    async with (
        line_that_fails_once(one_etcd.urls[0], taken_back) as url,
        running(tmp_path, url, prefix, ["acme"]) as member,
    ):
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        await set_budget(FleetStore(etcd, Me("operator", "o")), acme, None)
        await until(lambda: not member.granted(["acme"]), PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while (await etcd.read([claim])).values:
                await asyncio.sleep(0.2)
        await until(lambda: member.problem is None)


async def test_a_ledger_that_was_never_read_gets_stale(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    """As after an agent is rolled back: a newer one has written it."""
    acme = BudgetId(Kind.TENANT, "acme")
    await set_limits(etcd, "acme")
    await etcd.write([], [Put(Keys(prefix).ledger(acme), b'{"v":9}')])
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: "acme" in member.snapshot().tenants, PATIENCE_S)
        assert member.snapshot().tenants["acme"].report.stale_s < STALE_S
        await until(lambda: member.snapshot().tenants["acme"].report.stale_s > STALE_S, PATIENCE_S)
        await until(
            lambda: (
                member.snapshot().error is None and isinstance(member.problems[acme], NewerSchema)
            ),
            PATIENCE_S,
        )


async def test_a_budget_that_etcd_has_lost_with_everything_is_told(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    """By name, unless this host had to sign in first: then there is no fleet to sign in to."""
    acme = BudgetId(Kind.TENANT, "acme")
    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        everything = (await etcd.read([], [prefix])).values
        await etcd.write([], [Delete(key) for key in everything])
        await until(
            lambda: (
                "its budget is gone" in str(member.problems.get(acme))
                or "holds no fleet yet" in str(member.problem)
            ),
            PATIENCE_S,
        )


async def test_a_budget_that_is_gone_is_lifted_as_the_log_says(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    acme = BudgetId(Kind.TENANT, "acme")
    operator = Operator(FleetStore(etcd, Me("operator", "o")))
    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        await etcd.write([], [Delete(Keys(prefix).budget(acme))])
        await until(lambda: acme in member.problems, PATIENCE_S)
        assert await operator.set_budgets({acme: None}, {}) == []  # for etcd, there is none
        said = str(member.problems[acme])
        assert said.index("`iokeel fleet tenant set`; if it") < said.index("remove it then by")
        await operator.set_budgets({acme: Budget(LIMIT)}, {})
        await operator.set_budgets({acme: None}, {acme: Budget(LIMIT)})
        await until(lambda: not member.granted(["acme"]), PATIENCE_S)


async def test_a_host_that_was_renamed_says_that_its_former_name_has_its_part(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    url, was = one_etcd.urls[0], LIMIT - 1

    def part() -> BudgetInFleet:
        return member.snapshot().tenants["acme"]

    await set_limits(etcd, "acme")
    async with running(tmp_path, url, prefix, ["acme"]) as member:
        await until(lambda: (part().report.allowed_iops or 0) > was, PATIENCE_S)
        assert part().report.error is None
        await member.stop()
    async with running(tmp_path, url, prefix, ["acme"], "b") as member:
        await until(lambda: part().report.error is not None, PATIENCE_S)
        error = part().report.error
        assert error is not None
        assert error.what == "was a, which still has its part"
        assert "`iokeel fleet forget a --off-for-good`" in error.mend
        assert (part().report.allowed_iops or 0) < was
        told = await Operator(FleetStore(etcd, Me("operator", "o"))).forget("a", Word.OFF_FOR_GOOD)
        assert told == [BudgetId(Kind.TENANT, "acme")]
        await until(lambda: (part().report.allowed_iops or 0) > was, PATIENCE_S)
        await until(lambda: part().report.error is None)


async def test_a_host_whose_key_is_gone_signs_in_again(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    acme, keys = BudgetId(Kind.TENANT, "acme"), Keys(prefix)
    mine = [keys.host("a"), keys.claim(acme, "a")]
    await set_limits(etcd, "acme")
    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        await etcd.write([], [Delete(key) for key in mine])
        async with asyncio.timeout(PATIENCE_S):
            while {*(await etcd.read(mine)).values} != {*mine}:
                await asyncio.sleep(0.2)
        assert not member.errors


async def test_an_agent_that_starts_while_etcd_is_full_has_its_amount_and_says_so(
    prefix: str, tmp_path: Path
) -> None:
    full, here = "etcd says 'etcdserver: mvcc: database space exceeded'", ["acme"]
    own = real.Etcd(tmp_path / "own", options=(f"--quota-backend-bytes={1 << 20}",))

    def allowed() -> int | None:
        return member.granted(["acme"])["acme"].limit

    with real.running(own):
        async with Etcd(Access(own.urls, prefix=prefix)) as etcd:
            await set_limits(etcd, "acme")
            async with running(tmp_path, own.urls, prefix, here) as member:
                await until(lambda: allowed() == LIMIT, PATIENCE_S)
                with contextlib.suppress(FleetRefused):
                    while True:
                        await etcd.write([], [Put("/fill", b"1" * (64 << 10))])
                here.clear()  # so that there is something to tell
                await until(lambda: full in str([*member.problems.values()]), PATIENCE_S)
                assert member.snapshot().tenants["acme"].report.error is not None
                assert allowed() == LIMIT
                here.append("acme")
        async with running(tmp_path, own.urls, prefix, here) as member:
            await until(lambda: allowed() not in (None, LIMIT), PATIENCE_S)  # it has just come
            await until(lambda: allowed() == LIMIT, PATIENCE_S)
            assert full in str(member.problem)


async def test_an_etcd_that_is_not_the_fleets_counts_as_an_outage_and_gets_nothing(
    one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    own = real.Etcd(tmp_path / "own")
    urls = own.urls + one_etcd.urls

    def lives_by_its_floor() -> bool:
        limit = member.granted(["acme"])["acme"].limit
        return limit is not None and limit < LIMIT

    with real.running(own):
        async with Etcd(Access(own.urls, prefix=prefix)) as etcd:
            await set_limits(etcd, "acme")
        async with running(tmp_path, own.urls, prefix, ["acme"]) as member:
            await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        async with running(tmp_path, urls, prefix, ["acme"]) as member:
            await until(lambda: member.problem is None, PATIENCE_S)
            own.end()
            await until(lambda: "leave it out of [fleet] etcd" in str(member.problem), PATIENCE_S)
            await until(lives_by_its_floor, PATIENCE_S)
            assert "leave it out of [fleet] etcd" in str(member.problem)
    async with running(tmp_path, urls, prefix, ["acme"]) as member:
        await until(lambda: "holds no fleet yet" in str(member.problem), PATIENCE_S)
    async with Etcd(Access(one_etcd.urls, prefix=prefix)) as etcd:
        assert not (await etcd.read([], [prefix])).values


async def test_a_coordinator_reads_many_claims_seldom_however_often_they_change(
    one_etcd: real.Etcd, etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    acme, keys, hosts = BudgetId(Kind.TENANT, "acme"), Keys(prefix), range(100)
    await set_limits(etcd, "acme")
    lease = await etcd.grant_lease(3600)
    records = {host: encoded(HostRecord(instance=f"i{host}")) for host in hosts}
    await etcd.write((), [Put(keys.host(f"h{host}"), records[host], lease) for host in hosts])

    async def claim(*hosts: int, weight: int) -> None:
        claims = {host: claim_value(HostClaim(f"i{host}", weight=weight)) for host in hosts}
        puts = [Put(keys.claim(acme, f"h{host}"), value, lease) for host, value in claims.items()]
        while True:
            with contextlib.suppress(ConnectionLost):  # a busy machine
                await etcd.write((), puts)
                return

    async with running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member:
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        await claim(*hosts, weight=100)
        participant = member.parts.participants[acme]
        await until(lambda: participant.pause_s == 101 / 500, PATIENCE_S)
        trips, begun = member.snapshot().trips, time.monotonic()
        for host in hosts:
            await claim(host, weight=200)
        seconds = time.monotonic() - begun
        # A step is one read here, because nobody demands anything; the rest keeps the lease.
        assert member.snapshot().trips - trips <= seconds / participant.pause_s + seconds + 4


async def test_hosts_tell_which_rules_they_have(
    etcd: Etcd, one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    await set_limits(etcd, "acme")
    operator = Operator(FleetStore(etcd, Me("operator", "o")))
    async with (
        running(tmp_path / "a", one_etcd.urls, prefix, ["acme"]) as one,
        running(tmp_path / "b", one_etcd.urls, prefix, ["acme"], "b") as other,
    ):
        one.rules = other.rules = "x"
        await told(operator, {"a": "x", "b": "x"})
        other.rules = ""  # a reload
        await told(operator, {"a": "x", "b": ""})


async def told(operator: Operator, rules: dict[str, str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (await operator.view()).rules != rules:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


async def test_each_tenant_without_a_budget_of_its_own_has_everyones(
    etcd: Etcd, one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    tenants = [f"t{number}" for number in range(150)]  # more than one question may name
    for name in "ab":
        (tmp_path / name).mkdir()
    store = FleetStore(etcd, Me("operator", "o"))
    await store.open()
    await set_budget(store, EVERY_TENANT, Budget(LIMIT))
    await set_budget(store, BudgetId(Kind.TENANT, "t0"), Budget(300))
    operator = Operator(store)
    async with (
        running(tmp_path / "a", one_etcd.urls, prefix, tenants) as one,
        running(tmp_path / "b", one_etcd.urls, prefix, tenants, "b") as other,
    ):

        def held_to(limits: dict[str, int]) -> bool:
            """Whether both together may do all of each tenant's limit, and no more."""
            both = [member.granted(tenants) for member in (one, other)]
            assert all(len(granted) == len(tenants) for granted in both)
            return all(
                sum(granted[name].limit or 0 for granted in both) == limit
                for name, limit in limits.items()
            )

        rest = dict.fromkeys(tenants[1:], LIMIT)
        await until(lambda: held_to({"t0": 300, **rest}), PATIENCE_S)
        view = await operator.view()
        assert view.budgets[BudgetId(Kind.TENANT, "t7")].counts == Budget(LIMIT)
        await operator.set_budgets({EVERY_TENANT: Budget(2000)}, {EVERY_TENANT: Budget(LIMIT)})
        await until(lambda: held_to({"t0": 300, "t1": 2000, "t149": 2000}), PATIENCE_S)
        own = BudgetId(Kind.TENANT, "t0")
        await operator.set_budgets({own: None}, {own: Budget(300)})
        await until(lambda: held_to({"t0": 2000}), PATIENCE_S)
        await operator.set_budgets({EVERY_TENANT: None}, {EVERY_TENANT: Budget(2000)})
        await until(lambda: not one.granted(tenants) and not other.granted(tenants), PATIENCE_S)


async def test_tenants_that_have_left_are_forgotten_if_they_have_everyones_budget(
    etcd: Etcd, one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    store = FleetStore(etcd, Me("operator", "o"))
    await store.open()
    await set_budget(store, EVERY_TENANT, Budget(LIMIT))
    here = ["acme", "blue"]
    async with running(tmp_path, one_etcd.urls, prefix, here) as member:

        def known() -> set[str]:
            return {budget.name for budget in member.parts.memory.known}

        await until(lambda: known() == {"*", "acme", "blue"}, PATIENCE_S)
        here.remove("blue")
        member.parts.participants.pop(BudgetId(Kind.TENANT, "blue"), None)  # once it has left
        member._listed_at = 0.0
        await until(lambda: known() == {"*", "acme"}, PATIENCE_S)
