"""`iokeel fleet` as an operator has it, with a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import HostClaim
from iokeel.core.fleet.coordinate import Tenure, coordinate
from iokeel.core.fleet.host import WAIT_NS, Me
from iokeel.core.values.wants import wants_of
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Put
from iokeel.fleet.records import ChangeRecord, encoded
from iokeel.fleet.store import FleetStore
from testing.agents import Done, free_port, iokeel
from testing.api_doc import COMMANDS, command_faults
from testing.fleet import etcd as real

ACME = BudgetId(Kind.TENANT, "acme")


@pytest.fixture
def config(one_etcd: real.Etcd, prefix: str, tmp_path: Path) -> Path:
    """A configuration with a fleet of its own."""
    file = tmp_path / "agent.toml"
    file.write_text(f"[fleet]\netcd = {list(one_etcd.urls)}\nprefix = '{prefix}'\nhost = 'me'\n")
    return file


@pytest.fixture
def fleet(config: Path) -> Callable[..., Done]:
    """Run `iokeel fleet` with that configuration. Its --json has to be as documented."""

    def run(*words: str | Path, **more: Any) -> Done:
        done = iokeel("fleet", *words, "--config", config, **more)
        if "--json" in words:
            command = " ".join(("fleet", *map(str, words)))
            name = max((name for name in COMMANDS if command.startswith(name)), key=len)
            assert command_faults(name, json.loads(done.out)) == []
        return done

    return run


def in_store(one_etcd: real.Etcd, prefix: str, do: Callable[[FleetStore], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Etcd(Access(one_etcd.urls, prefix=prefix)) as etcd:
            store = FleetStore(etcd, Me("dead", "d"))
            await store.open()
            await do(store)

    asyncio.run(run())


async def beside(store: FleetStore, fleet: Callable[..., Done], *words: str) -> Done:
    """Run `iokeel fleet` while a host that has signed in stays."""
    done = asyncio.create_task(asyncio.to_thread(fleet, *words))
    while not done.done():
        assert await store.stay()
        await asyncio.sleep(0.5)
    return done.result()


async def with_a_dead_host(store: FleetStore) -> None:
    """Write a ledger in which a host is charged that doesn't report."""
    await store.sign_in()
    await store.campaign(ACME)
    claims = {"dead": HostClaim("d", most=5000, wants=wants_of([(0, 100, 5000)]))}
    tenure = Tenure("e", 0)
    for now in (1, 2, 3 + WAIT_NS):
        view = await store.view(ACME)
        assert view.budget is not None
        ledger, tenure = coordinate(view.ledger, claims, view.budget, tenure, now)
        assert await store.replace(ACME, view, ledger, as_leader=True) or ledger is view.ledger
    await store.leave()


def test_a_tenant_is_set_shown_and_removed(fleet: Callable[..., Done]) -> None:
    done = fleet("tenant", "set", "acme", "--limit", "50000", "--reservation", "8000")
    assert done.out == (
        "tenant acme: new, limit 50000, even_ratio 0.1, reservation 8000, weight 100\n"
    )
    assert fleet("tenant", "set", "acme", "--limit", "50000", "--reservation", "8000").out == (
        "nothing to change\n"
    )
    (row,) = json.loads(fleet("tenants", "--json").out)
    assert (row["tenant"], row["limit_iops"], row["reservation_iops"]) == ("acme", 50000, 8000)
    dry = fleet("tenant", "set", "acme", "--limit", "40000", "--dry-run")
    assert (dry.status, dry.out) == (
        1,
        "tenant acme: limit 50000 -> 40000\n",
    )
    assert fleet("tenant", "remove", "acme").out == "tenant acme: removed\n"
    assert json.loads(fleet("tenants", "--json").out) == []
    said = [change["what"] for change in json.loads(fleet("history", "--json").out)]
    assert said[1:] == ["tenant acme: removed"]


def test_a_new_tenant_has_a_coordinator_before_any_guest(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str
) -> None:
    told: list[bool] = []

    async def be_there(store: FleetStore) -> None:
        await store.sign_in()
        done = await beside(store, fleet, "tenant", "set", "acme", "--limit", "1000")
        assert done.status == 0
        told.append((await store.view(ACME)).leader == "dead")
        told.append(await store.offices() == {ACME})
        await store.leave()  # it is the host's own office: it ends with the host's lease
        told.append((await store.view(ACME)).leader is None)

    assert fleet("tenant", "set", "umbra", "--limit", "1000").status == 0  # nobody is there
    in_store(one_etcd, prefix, be_there)
    assert told == [True, True, True]


def test_names_in_etcd_are_shown_and_never_run(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str
) -> None:
    nasty = "\x1b]0;owned\x07\n\x9b31m\u202e\u2028"
    change = ChangeRecord(at=nasty, by=nasty, what=nasty)

    async def lie(store: FleetStore) -> None:
        puts = {
            store.keys.leader(ACME): msgspec.json.encode({"v": 1, "host": nasty}),
            store.keys.budget(BudgetId(Kind.STORAGE, nasty)): b"bad",
            f"{store.keys.history}1": encoded(change),
        }
        await store.etcd.write([], [Put(key, value) for key, value in puts.items()])

    assert fleet("tenant", "set", "acme", "--limit", "1000").status == 0
    in_store(one_etcd, prefix, lie)
    told = ""
    for words in ("status", "hosts", "tenants", "storages", "why acme", "history"):
        done = fleet(*words.split())
        assert all(line.isprintable() for line in (done.out + done.err).split("\n")), words
        told += done.out
    assert r"\x1b]0;owned\x07\n\x9b31m\u202e\u2028" in told


def test_a_storage_is_set_shown_and_removed(fleet: Callable[..., Done]) -> None:
    disk = "nbd:10.0.0.1:10809"
    words = ("storage", "set", disk, "--capacity", "60000", "--latency-target-ms", "4")
    assert fleet(*words).out == (
        f"storage {disk}: new, capacity 60000, even_ratio 0.1, latency_target_ms 4,"
        " least_ratio 0.25, most_ratio 100\n"
    )
    assert fleet(*words).out == "nothing to change\n"
    (row,) = json.loads(fleet("storages", "--json").out)
    assert (row["storage"], row["capacity_iops"], row["latency_target_s"]) == (disk, 60000, 0.004)
    assert (row["usable_iops"], row["latency_s"], row["hosts"]) == (None, None, 0)
    assert fleet("why", disk).out.startswith(f"storage {disk} has a capacity of 60000; ")
    assert json.loads(fleet("status", "--json").out)["storages"] == 1
    dry = fleet("storage", "set", disk, "--most-ratio", "2", "--dry-run")
    assert (dry.status, dry.out) == (1, f"storage {disk}: most_ratio 100 -> 2\n")
    assert json.loads(fleet("tenants", "--json").out) == []
    assert fleet("storage", "remove", disk).out == f"storage {disk}: removed\n"
    assert json.loads(fleet("storages", "--json").out) == []
    assert "no such storage in the fleet" in fleet("storage", "remove", disk).complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("san",), "storage set san: has no capacity"),
        (("rbd:vms", "--capacity", "0"), "storage set rbd:vms --capacity: is 0"),
        (
            ("san", "--capacity", "9", "--latency-target-ms", "-1"),
            "storage set san --latency-target-ms: is -1",
        ),
        (("san", "--capacity", "9", "--least-ratio", "2"), "storage set san --least-ratio: is 2"),
        (("no name", "--capacity", "9"), "storage set no name: 'no name' is not a name"),
        (("NBD:x", "--capacity", "9"), "storage set NBD:x: 'NBD:x' is not a network storage"),
    ],
)
def test_a_storage_that_makes_no_sense_is_refused(
    fleet: Callable[..., Done], words: tuple[str, ...], complaint: str
) -> None:
    done = fleet("storage", "set", *words)
    assert done.status != 0
    assert done.complaint.startswith(complaint)
    assert "holds no fleet yet" in fleet("storages").complaint


def test_storages_are_imported_by_name_or_by_source(
    fleet: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "storages.toml"
    file.write_text(
        "[storage.san]\ncapacity = 1000\n"
        "[storage.ceph]\nsource = 'rbd:vms'\ncapacity = 2000\nlatency_target_ms = 5\n"
    )
    assert len(fleet("import", file).out.splitlines()) == 2
    assert fleet("import", file).out == "nothing to change\n"
    rows = json.loads(fleet("storages", "--json").out)
    assert [row["storage"] for row in rows] == ["rbd:vms", "san"]
    file.write_text("[storage.san]\ncapacity = 1000\npath = '/srv'\n")
    assert "is each host's own" in fleet("import", file).complaint


def test_a_file_is_imported_once(fleet: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.acme]\nlimit = 1000\n[tenants.umbra]\nlimit = 2000\nweight = 50\n")
    assert fleet("import", file, "--dry-run").status == 1
    assert len(fleet("import", file).out.splitlines()) == 2
    assert fleet("import", file).out == "nothing to change\n"
    file.write_text("[tenants.acme]\nlimit = 1500\n")
    done = fleet("import", file, "--remove-others")
    assert done.out.splitlines() == ["tenant acme: limit 1000 -> 1500", "tenant umbra: removed"]
    assert [row["tenant"] for row in json.loads(fleet("tenants", "--json").out)] == ["acme"]


def test_a_file_may_have_more_tenants_than_etcd_takes_at_once(
    fleet: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("".join(f"[tenants.t{n}]\nlimit = 1000\n" for n in range(130)))
    assert len(fleet("import", file).out.splitlines()) == 130
    assert fleet("import", file).out == "nothing to change\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tenant", "set", "acme", "--limit", "5", "--reservation", "9"), "below reservation 9"),
        (("tenant", "set", "acme", "--limit", "0"), "tenant set acme: limit is 0"),
        (("tenant", "set", "acme", "--weight", "5"), "has no limit; give one"),
        (("tenant", "set", "a b", "--limit", "5"), "is not a name"),
        (("forget", "x", "--yes"), "give either --at-floor or --off-for-good"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fleet: Callable[..., Done], words: tuple[str, ...], said: str
) -> None:
    done = fleet(*words)
    assert done.status == 2
    assert said in done.complaint
    assert "holds no fleet yet" in fleet("status").complaint


@pytest.mark.parametrize(
    "words",
    [
        ("tenant", "set", "acme", "--limit", "1000"),
        ("storage", "set", "rbd:vms", "--capacity", "1000"),
        ("import", "-"),
    ],
)
def test_only_a_change_that_is_made_begins_a_fleet(
    fleet: Callable[..., Done], words: tuple[str, ...]
) -> None:
    file = b"[tenants.acme]\nlimit = 1000\n"
    dry = fleet(*words, "--dry-run", stdin=file)
    assert dry.status == 1
    assert ": new, " in dry.out
    assert "holds no fleet yet" in fleet("status").complaint
    assert fleet(*words, stdin=file).out == dry.out
    assert fleet("status").status == 0


def test_a_file_with_something_else_is_refused(fleet: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    for text, said in (
        ("[agent]\n", "write [tenants.NAME] and [storage.NAME] only"),
        ("[tenants.acme]\nweight = 5\n", "has no limit"),
        ("tenants = 5", "not a table"),
        ("limit", "not TOML"),
    ):
        file.write_text(text)
        done = fleet("import", file)
        assert done.status == 2
        assert said in done.complaint


def test_a_dead_host_is_shown_and_answered_for(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str
) -> None:
    fleet("tenant", "set", "acme", "--limit", "4000")
    in_store(one_etcd, prefix, with_a_dead_host)
    assert (
        "host dead doesn't report, and stays charged 4000; start its agent, or answer for it by"
        " `iokeel fleet forget dead`"
    ) in fleet("status").out.replace("\n", " ")
    (row,) = json.loads(fleet("why", "acme", "--json").out)[0]["hosts"]
    assert (row["host"], row["reports"], row["charged_iops"]) == ("dead", False, 4000)
    (host,) = json.loads(fleet("hosts", "--json").out)
    assert (host["is_there"], host["charged_iops"]) == (False, 4000)
    assert "host dead doesn't report, and stays charged 4000" in fleet("hosts").out
    asked = fleet("forget", "dead", "--off-for-good", stdin=b"n\n")
    assert asked.status == 1
    assert "has no running guest" in asked.err
    asked = fleet("forget", "dead", "--off-for-good", stdin=b"")
    said = "iokeel: forget: nobody has said that it is certain; answer y, or give --yes"
    assert (asked.status, asked.err.splitlines()[-1]) == (1, said)
    assert "recorded for tenant acme" in fleet("forget", "dead", "--off-for-good", "--yes").out
    (row,) = json.loads(fleet("why", "acme", "--json").out)[0]["hosts"]
    assert row["answered_for"] == "off-for-good"
    said = fleet("status").out.replace("\n", " ")
    assert "4000; answered for; takes effect once a host coordinates" in said
    assert "forget dead" not in said
    assert "is charged nothing" in fleet("forget", "nobody", "--at-floor", "--yes").complaint


def test_each_subcommand_prints_json_as_documented(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    """The fixture compares it."""
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.umbra]\nlimit = 2000\n")
    before = ["tenant set acme --limit 4000", "storage set san --capacity 9", f"import {file}"]
    after = ["status", "hosts", "tenants", "storages", "why acme", "why san", "history"]
    after += ["forget dead --at-floor --yes", "tenant remove umbra", "storage remove san"]
    for words in before:
        done = fleet(*words.split(), "--json")
        assert (done.status, json.loads(done.out)["done"]) == (0, True)
    in_store(one_etcd, prefix, with_a_dead_host)
    assert all(fleet(*words.split(), "--json").status == 0 for words in after)
    tried = {f"fleet {words}" for words in (*before, *after)}
    known = {name for name in COMMANDS if name.startswith("fleet ")}
    assert {name for name in known if not any(words.startswith(name) for words in tried)} == set()


def test_why_explains_the_tenant_and_the_storage_of_a_name(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str
) -> None:
    async def lead_umbra(store: FleetStore) -> None:
        await store.sign_in()
        assert await store.campaign(BudgetId(Kind.TENANT, "umbra"))
        done = await beside(store, fleet, "why", "umbra")
        assert done.out.startswith("storage umbra has a capacity of 2000; ")

    for name in ("acme", "umbra"):
        fleet("storage", "set", name, "--capacity", "2000")
    fleet("tenant", "set", "acme", "--limit", "1000")
    storage, tenant = fleet("why", "acme").out.splitlines()
    assert storage.startswith("storage acme has a capacity of 2000; ")
    assert tenant.startswith("tenant acme has a limit of 1000 ")
    found = json.loads(fleet("why", "acme", "--json").out)
    assert [each.get("limit_iops") or each["capacity_iops"] for each in found] == [2000, 1000]
    in_store(one_etcd, prefix, lead_umbra)  # there is no such tenant, but a coordinator of one
    said = fleet("why", "umbro").complaint
    assert said == "'umbro': no such tenant or storage in the fleet; did you mean 'umbra'?"
    said = fleet("tenant", "remove", "umbra").complaint
    assert said == "'umbra': no such tenant in the fleet; known: acme"


@pytest.mark.parametrize("number", [1050, 1300])
def test_a_long_history_is_shortened_by_each_change_and_ends_none(
    fleet: Callable[..., Done], config: Path, one_etcd: real.Etcd, prefix: str, number: int
) -> None:
    left = 0

    async def fill(store: FleetStore) -> None:
        change = encoded(ChangeRecord(at="2026-01-01T00:00:00+00:00", by="me", what="forget a"))
        puts = [Put(f"{store.keys.history}{old:020d}", change) for old in range(number)]
        for first in range(0, number, 100):
            await store.etcd.write([], puts[first : first + 100])

    async def count(store: FleetStore) -> None:
        nonlocal left
        left = len((await store.etcd.read([], [store.keys.history])).values)

    fleet("tenant", "set", "acme", "--limit", "4000")
    in_store(one_etcd, prefix, with_a_dead_host)
    in_store(one_etcd, prefix, fill)
    assert fleet("forget", "dead", "--at-floor", "--yes").status == 0
    in_store(one_etcd, prefix, count)
    assert left == max(1000, number + 2 - 127)
    in_store(one_etcd, prefix, fill)
    file = config.with_name("import.toml")
    tables = (f"[tenants.t{tenant}]\nlimit = 1000\n" for tenant in range(40))
    file.write_text("".join(tables))
    assert fleet("import", file).status == 0
    in_store(one_etcd, prefix, count)
    assert left == max(1000, number + 2 + 40 - 48)


def test_a_host_whose_agent_is_there_is_not_off_for_good(
    fleet: Callable[..., Done], one_etcd: real.Etcd, prefix: str
) -> None:
    """It may have a full disk, so that it takes no part and makes no claim."""
    refused: list[Done] = []

    async def forget(store: FleetStore) -> None:
        await store.sign_in()
        refused.append(await beside(store, fleet, "forget", "dead", "--off-for-good", "--yes"))

    fleet("tenant", "set", "acme", "--limit", "4000")
    in_store(one_etcd, prefix, with_a_dead_host)
    in_store(one_etcd, prefix, forget)
    assert "host dead: isn't off: its agent is there; see the agent's log" in refused[0].complaint
    assert "recorded for tenant acme" in fleet("forget", "dead", "--at-floor", "--yes").out


def test_faults_of_etcd_are_said_in_a_line(
    fleet: Callable[..., Done], config: Path, one_etcd: real.Etcd, prefix: str
) -> None:
    assert "holds no fleet yet" in fleet("status").complaint
    in_store(one_etcd, prefix, lambda store: _spoil(store))
    done = fleet("tenants")
    assert "isn't what iokeel has written there" in done.out
    config.write_text(f"[fleet]\netcd = ['http://127.0.0.1:{free_port()}']\n")
    assert "can't be reached: connection refused" in fleet("status").complaint
    config.write_text("")
    assert "has no [fleet]; write it there" in fleet("status").complaint
    assert "no such tenant" not in fleet("why", "x").complaint


async def _spoil(store: FleetStore) -> None:
    await store.etcd.write([], [Put(store.keys.budget(ACME), b"mine!")])
