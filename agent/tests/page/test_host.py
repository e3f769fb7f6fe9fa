"""The page of a host and of a drive, over a simulated host: the real law, API and cockpit-ws."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.policy import DrivePolicy
from iokeel.errors import PolicyError
from iokeel.report.history import History
from iokeel.report.snapshot import series_values
from testing.cockpit import Cockpit
from testing.sim.guests import Guest, Phase
from testing.simulated_api import SimulatedApi, mixed_guests, steady_guest
from tests.page.conftest import BUILT, Open, picture, violations, wider_than_the_window
from tests.page.simulated import passing, served

MANY_POINTS = re.compile(r"M.*(L.*){20}")
DARK_PHONE = {"viewport": {"width": 390, "height": 2400}, "color_scheme": "dark", "has_touch": True}
PARTS_OF_ADDRESSES = ("a#b?c=d&e/f+g@h", "100%", "%23", ".", "..", ".hidden", "none")
NAMES = (
    "<img src=x onerror=\"document.title='run'\">",
    "\"quoted\" 'twice' &amp;",
    "\u202egnp.exe \u05d0\u05d1\u05d2",
    "bell\x07 escape\x1b[31m zero\u200bwidth",
    "db1 ",
    " db1",
    "db1\u00a0",
    "db  1",
    "long" * 50,
    *PARTS_OF_ADDRESSES,
)
SHOWN = (
    "<img src=x onerror=\"document.title='run'\">",
    "\"quoted\" 'twice' &amp;",
    "\\u202egnp.exe \u05d0\u05d1\u05d2",
    "bell\\x07 escape\\x1b[31m zero\\u200bwidth",
    "db1\\x20",
    "\\x20db1",
    "db1\\xa0",
    "db\\x20 1",
    "long" * 50,
    *PARTS_OF_ADDRESSES,
)


def small_host() -> SimulatedApi:
    """Return a host with a noisy neighbour, an error in a policy, and a drive with a policy."""
    guests = [
        steady_guest("noisy", inf, 6000, "acme"),
        steady_guest("web1", 300, 400, "acme", 1),
        steady_guest("web2", 200, 4000, "globex"),
        steady_guest("free", 50, None, None, 1),
    ]
    host = SimulatedApi(guests, 2)
    host.errors["web2"] = PolicyError("domain web2, line 1", "limit is '4k'", "write it like 500")
    host.run(130)
    return host


@pytest.fixture
def page(folder: Path, opened: Open) -> Iterator[Page]:
    """The page over that host."""
    socket = folder / "agent.sock"
    with served(passing(small_host()), socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        yield opened(cockpit.url)


def drives(page: Page) -> list[str]:
    """Return the names of the drives in the table, in its order."""
    expect(page.locator("table[aria-label=Drives] tbody tr").first).to_be_visible()
    return page.locator("table[aria-label=Drives] tbody a").all_inner_texts()


def sort(page: Page, column: str) -> None:
    page.locator("table[aria-label=Drives]").get_by_role("button", name=column, exact=True).click()


def test_what_is_wrong_comes_first_and_leads_to_the_drive(page: Page) -> None:
    alert = page.get_by_text("policy error: domain web2, line 1: limit is '4k'")
    expect(alert).to_be_visible()
    table = page.locator("table[aria-label=Storages]")
    alert_box, table_box = alert.bounding_box(), table.bounding_box()
    assert alert_box
    assert table_box
    assert alert_box["y"] < table_box["y"]
    page.get_by_role("link", name="Look at the drive").click()
    expect(page.get_by_role("heading", name="web2 vda")).to_be_visible()


def test_the_noisy_neighbour_is_the_first_drive_and_says_why(page: Page) -> None:
    assert drives(page) == ["noisy vda", "web1 vda", "web2 vda", "free vda"]
    row = page.locator("table[aria-label=Drives] tbody tr").first
    expect(row).to_contain_text("held")
    expect(row).to_contain_text("6,000")
    picture(page, "host")
    row.get_by_role("link").click()
    why = page.get_by_role("list", name="The last decision, step by step")
    expect(why).to_contain_text("The policy gives a limit of 6000 iops.")
    expect(page.get_by_role("img", name="Rate against limit")).to_be_visible()
    picture(page, "drive")


def test_charts_go_on_by_themselves(page: Page) -> None:
    chart = page.locator("table[aria-label=Drives] tbody tr").first.locator(".iokeel-rate")
    expect(chart).to_have_attribute("d", MANY_POINTS)
    before = chart.get_attribute("d")
    expect(chart).not_to_have_attribute("d", before or "")
    page.get_by_role("link", name="noisy").click()
    legend = page.locator(".u-value").first
    expect(legend).not_to_have_text("\u2013")
    before = legend.inner_text()
    expect(legend).not_to_have_text(before)


def test_drives_are_sorted_by_any_column_either_way(page: Page) -> None:
    assert len(drives(page)) == 4
    sort(page, "Drive")
    assert drives(page) == ["free vda", "noisy vda", "web1 vda", "web2 vda"]
    sort(page, "Drive")
    assert drives(page) == ["web2 vda", "web1 vda", "noisy vda", "free vda"]
    sort(page, "Used")
    assert drives(page) == ["noisy vda", "web1 vda", "web2 vda", "free vda"]
    sort(page, "State")
    assert drives(page)[:2] == ["web2 vda", "noisy vda"]


def test_a_held_drive_with_an_error_counts_as_held_for_its_tenant(
    folder: Path, opened: Open
) -> None:
    host, socket = small_host(), folder / "agent.sock"
    host.errors["noisy"] = host.errors["web2"]
    with served(host.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(f"{cockpit.url}#/tenants")
        row = page.locator("table[aria-label=Tenants] tbody tr").filter(has_text="acme")
        expect(row.locator("td[data-label=Held]")).to_have_text("1")
        expect(row.locator("td[data-label=State]")).to_contain_text("error")


def test_a_tenant_leads_to_its_drives_and_no_tenant_to_the_rest(page: Page) -> None:
    page.get_by_role("link", name="Tenants", exact=True).click()
    shown = page.locator("table[aria-label=Drives] tbody a")
    expect(page.get_by_role("link", name="acme", exact=True)).to_be_visible()
    expect(shown).to_have_count(0)
    for tenant, found in (
        ("acme", ["noisy vda", "web1 vda"]),
        ("no tenant", ["free vda"]),
        ("globex", ["web2 vda"]),
    ):
        page.get_by_role("link", name=tenant, exact=True).click()
        expect(page.get_by_role("heading", name=f"Drives of {tenant}")).to_be_visible()
        expect(shown).to_have_text(found)
    assert violations(page) == []
    page.get_by_role("link", name="Tenants", exact=True).click()
    expect(shown).to_have_count(0)


def test_drives_are_filtered_as_one_types_and_by_state(page: Page) -> None:
    field = page.get_by_role("textbox", name="Filter")
    for typed, found in (
        ("WEB", ["web1 vda", "web2 vda"]),
        ("globex", ["web2 vda"]),
        ("disk1", ["web1 vda", "free vda"]),
        ("zzz", []),
    ):
        field.fill(typed)
        expect(page.locator("table[aria-label=Drives] tbody a")).to_have_count(len(found))
        assert sorted(drives(page)) == sorted(found)
    expect(page.get_by_text("No drive fits the filter.")).to_be_visible()
    field.fill("")
    page.get_by_role("button", name="held 1").click()
    assert drives(page) == ["noisy vda"]


def test_the_keyboard_reaches_the_drives(page: Page) -> None:
    drives(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "noisy vda":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="noisy vda")).to_be_visible()


def test_names_are_shown_and_never_run(folder: Path, opened: Open) -> None:
    def phases() -> Iterator[Phase]:
        return iter([Phase(inf, 100)])

    guests = [Guest(name, DrivePolicy(limit=500), phases(), tenant=name) for name in NAMES]
    host = SimulatedApi(guests)
    host.errors[NAMES[0]] = PolicyError(f"domain {NAMES[0]}", f"class {NAMES[2]} is not known")
    host.run(5)
    socket = folder / "agent.sock"
    with served(passing(host), socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        assert sorted(drives(page)) == sorted(f"{name} vda" for name in SHOWN)
        assert page.title() == "Disk limits"
        assert page.locator("main img, [onerror]").count() == 0
        picture(page, "names")
        assert violations(page) == []
        for name in SHOWN:
            page.goto(cockpit.url)
            page.get_by_role("link", name=f"{name} vda", exact=True).click()
            expect(page.get_by_role("heading", name=f"{name} vda", exact=True)).to_be_visible()
            expect(page.get_by_text("The policy gives a limit of 500 iops.")).to_be_visible()
        picture(page, "names-drive")
        page.goto(f"{cockpit.url}#/drive/100%25/vda")  # as a person may type it
        expect(page.get_by_role("heading", name="100% vda", exact=True)).to_be_visible()
        page.goto(f"{cockpit.url}#/tenants")
        for name in SHOWN:
            page.get_by_role("link", name=name, exact=True).click()
            links = page.locator("table[aria-label=Drives] tbody a")
            expect(links).to_have_text([f"{name} vda"])
        assert page.title() == "Disk limits"


def test_the_policy_of_a_guest_without_libvirt_is_read_only(folder: Path, opened: Open) -> None:
    host, socket = small_host(), folder / "agent.sock"
    host.over_qmp.add("noisy")
    with served(host.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(f"{cockpit.url}#/drive/web1/vda")
        change = page.get_by_role("button", name="Change its policy")
        expect(change).to_be_visible()
        page.goto(f"{cockpit.url}#/drive/noisy/vda")
        read_only = page.get_by_text("Read only: its policy is in the agent's configuration.")
        expect(read_only).to_be_visible()
        expect(change).to_have_count(0)
        assert violations(page) == []


def test_a_gap_in_the_history_stays_a_gap(folder: Path, opened: Open) -> None:
    host = SimulatedApi([steady_guest("db1", 300, 400)])
    host.run(10)
    host.history = History()
    now_ns, known = time.monotonic_ns(), series_values(host.fleet.state)
    for age_s in range(110, 0, -2):
        values = [nan] * len(known) if 40 < age_s < 80 else known
        host.history.add(now_ns - age_s * NS_PER_S, host.fleet.state.drives, values)
    socket = folder / "agent.sock"
    with served(host.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        chart = page.locator(".iokeel-rate")
        expect(chart).to_have_attribute("d", re.compile(r"^M[^M]*L[^M]*M[^M]*L[^M]*$"))
        page.get_by_role("link", name="db1 vda").click()
        summary = "Rate against limit, iops. rate: 300 to 300, allowed: 400 to 400"
        expect(page.get_by_role("img", name=summary)).to_be_visible()
        picture(page, "gap")


def test_a_thousand_drives_are_shown_a_page_at_a_time(folder: Path, opened: Open) -> None:
    host = SimulatedApi(mixed_guests(1000), 4)
    host.run(6)
    socket = folder / "agent.sock"
    with served(host.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        assert len(drives(page)) == 25
        expect(page.get_by_role("button", name="1 - 25 of 1000")).to_be_visible()
        picture(page, "thousand")
        sort(page, "Drive")
        assert drives(page)[0] == "guest0000 vda"
        page.get_by_role("button", name="Go to next page").first.click()
        assert drives(page)[0] == "guest0025 vda"
        page.get_by_role("textbox", name="Filter").fill("guest0999")
        expect(page.locator("table[aria-label=Drives] tbody a")).to_have_count(1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": {"width": 390, "height": 2400}}),
        ("dark-phone", DARK_PHONE),
    ],
)
def test_anybody_can_read_it(
    folder: Path, opened: Open, name: str, options: dict[str, object]
) -> None:
    socket = folder / "agent.sock"
    with served(passing(small_host()), socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url, **options)
        drives(page)
        for view, path in (("host", ""), ("drive", "#/drive/noisy/vda"), ("tenants", "#/tenants")):
            page.goto(cockpit.url + path)
            expect(page.locator("h2").first).to_be_visible()
            if view == "drive":
                expect(page.get_by_role("list", name="The last decision")).to_be_visible()
            assert violations(page) == [], view
            assert wider_than_the_window(page) == 0, view
            picture(page, f"{view}-{name}")


def test_figures_are_in_the_persons_own_locale(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with served(small_host().served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url, locale="de-DE")
        expect(page.locator("table[aria-label=Drives] tbody tr").first).to_contain_text("6.000")
