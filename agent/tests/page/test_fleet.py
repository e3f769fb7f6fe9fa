"""The fleet on the page of one of its hosts: real etcd, agents and QEMUs."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from testing.agents import iokeel
from testing.cockpit import Cockpit
from testing.fleet import etcd as real
from testing.hypervisors.iotune import TOLERANCE
from testing.simulated_api import SimulatedApi
from testing.waiting import eventually
from tests.edges.fleet.test_agents import BUDGET, DRIVES, PATIENCE_S, begun, hosts
from tests.page.conftest import BUILT, Open, picture, violations
from tests.page.simulated import served

_PATIENCE_MS = 1000 * PATIENCE_S


def test_who_has_how_much_of_a_tenant_and_a_storage_and_who_is_silent(
    folder: Path, opened: Open
) -> None:
    with real.running(real.Etcd(folder / "etcd")) as etcd:
        (operator := folder / "operator.toml").write_text(f"[fleet]\netcd = {[*etcd.urls]}\n")
        limit = ("tenant", "set", "acme", "--limit", str(BUDGET))
        assert iokeel("fleet", *limit, "--config", operator).status == 0
        capacity = ("storage", "set", "san", "--capacity", str(2 * BUDGET))
        assert iokeel("fleet", *capacity, "--config", operator).status == 0
        san = "[storage.san]\ndrives = ['*/*']\n"
        with hosts(folder, etcd.urls, "a", "b", tables=san) as (there, monitor):
            eventually(begun(monitor), PATIENCE_S)
            with Cockpit(folder / "c", BUILT, there["a"].agent.socket) as cockpit:
                page = opened(cockpit.url)
                page.get_by_role("link", name="Fleet").click()
                row = page.get_by_role("grid", name="The fleet's tenants").locator("tbody tr")
                expect(row).to_have_count(1)
                expect(row).to_contain_text("acme")
                expect(row).to_contain_text("4,000")
                expect(row.get_by_role("listitem").first).to_contain_text("a, this host: ")
                storage = page.get_by_role("grid", name="The fleet's storages").locator("tbody tr")
                expect(storage).to_have_count(1)
                expect(storage).to_contain_text("san")
                expect(storage).to_contain_text("8,000")
                expect(storage.get_by_role("listitem").first).to_contain_text("a, this host: ")
                assert violations(page) == []
                picture(page, "fleet")
                row.get_by_role("link", name="acme", exact=True).click()
                expect(page.get_by_role("heading", name="Drives of acme")).to_be_visible()
                page.get_by_role("link", name="Fleet", exact=True).click()
                there["b"].agent.end()
                for budget in ("of tenant acme", "of storage san"):
                    alert = page.get_by_text(
                        "fleet: host b doesn't report, and stays charged"
                    ).filter(has_text=budget)
                    expect(alert).to_be_visible(timeout=_PATIENCE_MS)
                silent = row.get_by_role("listitem").filter(has_text="b, doesn't report: ")
                charged = int(silent.inner_text().rpartition(": ")[2].replace(",", ""))
                assert charged >= monitor.last["b"] / TOLERANCE - DRIVES
                assert violations(page) == []
                picture(page, "fleet-silent")
                etcd.end()
                page.get_by_role("link", name="Host").click()
                alert = page.get_by_text("fleet: etcd can't be used: ")
                expect(alert).to_be_visible(timeout=_PATIENCE_MS)
                picture(page, "fleet-without-etcd")


def test_a_host_alone_has_no_view_of_a_fleet(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with served(SimulatedApi([]).served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_text("No guest runs here")).to_be_visible()
        expect(page.get_by_role("link", name="Fleet")).to_have_count(0)
        page.goto(f"{cockpit.url}#/fleet")
        expect(page.get_by_text("This host is in no fleet")).to_be_visible()
        assert violations(page) == []
        picture(page, "fleet-none")
