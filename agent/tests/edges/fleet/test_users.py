"""The users of etcd that docs/fleet.md tells an operator to make, in a real etcd."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.handover import GuestCredit
from iokeel.core.fleet.host import Me
from iokeel.core.fleet.ledger import first_ledger
from iokeel.core.values.wants import wants_of
from iokeel.fleet.etcd import Denied, Etcd
from iokeel.fleet.handover import leave, take
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.records import budget_value
from iokeel.fleet.store import FleetStore, NoFleet
from iokeel.fleet.watch import changes
from testing.agents import Done, iokeel
from testing.fleet import etcd as real
from testing.waiting import until
from tests.edges.fleet.test_member import PATIENCE_S, running_with

ACME = BudgetId(Kind.TENANT, "acme")
DOCS = Path(__file__).parents[4] / "docs" / "fleet.md"
LIMIT = 1000


def commands() -> str:
    """Return the commands of the page, as a script."""
    section = DOCS.read_text().partition("### Users")[2]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return re.sub(r"^[#>] ", "", block[1], flags=re.MULTILINE)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Etcd]:
    folder = tmp_path_factory.mktemp("e")
    with real.running(real.Etcd(folder / "etcd", options=("--bcrypt-cost=4",))) as etcd:
        for role in ("host", "operator"):
            (folder / f"{role}.password").write_text(f"of-{role}\n")
            (folder / f"{role}.password").chmod(0o600)
        subprocess.run(
            ["sh", "-e"],
            input=commands(),
            cwd=folder,
            check=True,
            text=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": etcd.urls[0]},
        )
        etcd.ctl("user", "add", "root:toor")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("auth", "enable")
        yield etcd


def access(etcd: real.Etcd, role: str) -> Access:
    file = etcd.folder.parent / f"{role}.password"
    return Access(etcd.urls, user=f"iokeel-{role}", password_file=file)


@pytest.fixture
def fleet(guarded: real.Etcd, tmp_path: Path) -> Callable[..., Done]:
    """Run `iokeel fleet` as one of the users."""

    def run(role: str, *words: str) -> Done:
        file = tmp_path / f"{role}.toml"
        password = guarded.folder.parent / f"{role}.password"
        file.write_text(
            f"[fleet]\netcd = {list(guarded.urls)}\nhost = 'me'\nuser = 'iokeel-{role}'\n"
            f"password_file = '{password}'\n"
        )
        return iokeel("fleet", *words, "--config", file)

    return run


async def test_hosts_do_their_part_and_set_no_budget(
    guarded: real.Etcd, fleet: Callable[..., Done]
) -> None:
    async with Etcd(access(guarded, "host")) as etcd:
        store = FleetStore(etcd, Me("a", "i"))
        with pytest.raises(NoFleet, match="begin with `iokeel fleet tenant set`"):
            await store.open()
        done = fleet("operator", "tenant", "set", "acme", "--limit", str(LIMIT))
        assert (done.status, done.err) == (0, "")
        await store.open()
        await store.sign_in()
        assert not await store.may_set_budgets()
        await store.tell_rules("x")
        claim = HostClaim("i", most=9, wants=wants_of([(0, 20, 5), (1, 80, 6)]))
        assert await store.claim({ACME: claim})
        assert await store.campaign(ACME)
        view = await store.view(ACME)
        assert (view.budget, view.claims, view.leader) == (Budget(LIMIT), {"a": claim}, "a")
        assert await store.replace(ACME, view, first_ledger(LIMIT, "e"), as_leader=True)
        assert await anext(changes(etcd, store.keys.budgets)) is None
        credit = GuestCredit({"vda": 3.0}, 1.0)
        await leave(etcd, store.keys.credit("u"), credit)
        assert await take(etcd, store.keys.credit("u")) == credit
        await store.resign(ACME)
        for change in (
            Put(store.keys.budget(ACME), budget_value(Budget(10**8))),
            Put(store.keys.budget(ACME), budget_value(None)),
            Delete(store.keys.budget(ACME)),
            Put(f"{store.keys.history}0", b"?"),
            Put(store.keys.format, b"{}"),
            Put("/other", b"?"),
        ):
            with pytest.raises(Denied, match=r"permission denied.*as docs/fleet\.md says"):
                await etcd.write([], [change])
        assert await store.budgets() == {ACME: Budget(LIMIT)}
        await store.leave()


def test_a_hosts_user_shows_the_fleet_and_changes_nothing(fleet: Callable[..., Done]) -> None:
    assert fleet("operator", "tenant", "set", "acme", "--limit", str(LIMIT)).status == 0
    for shows in ("tenants", "history", "status"):
        done = fleet("host", shows)
        assert (done.status, done.err) == (0, "")
    for words in ("tenant set acme --limit 99", "tenant remove acme"):
        refused = fleet("host", *words.split())
        assert refused.status == 1
        assert "etcd's user iokeel-host: may not change the fleet; go by" in refused.complaint
    assert str(LIMIT) in fleet("host", "tenants").out


@pytest.mark.parametrize("role", ["host", "operator"])
async def test_an_agent_that_may_set_budgets_says_so(
    guarded: real.Etcd,
    fleet: Callable[..., Done],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    role: str,
) -> None:
    tenant = f"of-{role}"
    assert fleet("operator", "tenant", "set", tenant, "--limit", str(LIMIT)).status == 0
    async with running_with(tmp_path, access(guarded, role), [tenant], role) as member:
        await until(lambda: member.granted([tenant])[tenant].limit == LIMIT, PATIENCE_S)
        assert ("lets this host set budgets" in caplog.text) == (role == "operator")
        assert member.problem is None
        removed = fleet("operator", "tenant", "remove", tenant)
        assert removed.status == 0
        await until(lambda: not member.granted([tenant]), PATIENCE_S)
        assert f"tenant {tenant}: an operator has removed it" in caplog.text


async def test_a_host_whose_role_is_of_before_rules_takes_part_and_says_what_it_lacks(
    guarded: real.Etcd,
    fleet: Callable[..., Done],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert fleet("operator", "tenant", "set", "acme", "--limit", str(LIMIT)).status == 0
    rights = ("--prefix=true", "iokeel-host", "/iokeel/rules/")
    root = ("--user", "root:toor", "role")
    guarded.ctl(*root, "revoke-permission", *rights)
    try:
        async with running_with(tmp_path, access(guarded, "host"), ["acme"], "old") as member:
            await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        said = [line for line in caplog.messages if "may not tell which rules" in line]
        assert len(said) == 1
    finally:
        kind = rights[0], rights[1], "readwrite", rights[2]
        guarded.ctl(*root, "grant-permission", *kind)
