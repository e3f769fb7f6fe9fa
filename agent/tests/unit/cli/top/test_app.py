"""The screen of `iokeel top` by its keys, over a simulated host's API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from math import inf
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from textual.pilot import Pilot
from textual.widgets import Input, Static

from iokeel.cli.top.app import TopApp
from iokeel.cli.top.picture import Picture
from iokeel.cli.top.table import RowsTable
from iokeel.core.values.policy import DrivePolicy
from iokeel.errors import PolicyError
from testing.sim.guests import Guest, Phase
from testing.simulated_api import SimulatedApi, steady_guest
from testing.waiting import until

NASTY = "[red]x[/]\x1b[31m\u202e"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the API may take long to answer."""
    monkeypatch.setattr("iokeel.cli.client._TIMEOUT_S", 120.0)


def small_host() -> SimulatedApi:
    """Return a host with four guests on two disks: one at its limit, one without a limit."""
    guests = [
        steady_guest("db1", inf, 1000, "acme"),
        steady_guest("web1", 300, 400, "acme", 1),
        steady_guest("web2", 200, 4000, "globex"),
        steady_guest("free", 50, None, None, 1),
    ]
    host = SimulatedApi(guests, 2)
    host.run(130)
    return host


@contextlib.asynccontextmanager
async def shown(
    host: SimulatedApi, socket: Path, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    """Run the screen while the API is served."""
    async with host.served(socket), running(host, socket, size) as top:
        yield top


@contextlib.asynccontextmanager
async def running(
    host: SimulatedApi, socket: Path, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    snapshot = host.snapshot()
    app = TopApp(socket, Picture.of(snapshot.vm_reports(), snapshot.storage_reports()))
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def names(app: TopApp) -> list[str]:
    return [row.key[1] for row in app.query_one(RowsTable).rows]


def lines(app: TopApp) -> list[str]:
    """Return the table as text."""
    table = app.query_one(RowsTable)
    return [table.render_line(y).text for y in range(table.size.height)]


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


# Views, order and filter


async def test_it_begins_with_the_busiest_drive_and_two_minutes_of_rates(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await until(lambda: lines(app)[1].count("█") > 10)
        assert names(app) == ["db1", "web1", "web2", "free"]
        heading, first, *_ = lines(app)
        assert heading.split() == [
            *("VM", "drive", "state", "iops", "allowed", "used", "2", "min"),
            *("ms", "ms", "wait", "credit"),
        ]
        assert first.split()[:7] == ["db1", "vda", "held", "1000", "1000", "100", "%"]
        await pilot.pause()


async def test_digits_show_drives_storages_and_tenants(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("2")
        await until(lambda: names(app) == ["disk0", "disk1"])
        assert text(app, "bar").startswith("1 drives 2 storages 3 tenants  2: 1 held  by iops")
        await pilot.press("3")
        await until(lambda: names(app) == ["acme", "globex", ""])
        assert lines(app)[1].split()[:6] == ["acme", "2", "2", "held", "1300", "1400"]
        await pilot.press("1")
        await until(lambda: names(app)[0] == "db1")


async def test_arrows_sort_by_any_column_and_r_turns_the_order_round(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("right")
        await until(lambda: "by allowed" in text(app, "bar"))
        assert names(app) == ["web2", "db1", "web1", "free"]
        await pilot.press("r")
        # What isn't known stays last.
        await until(lambda: names(app) == ["web1", "db1", "web2", "free"])
        await pilot.press("greater_than_sign")
        await until(lambda: "by used" in text(app, "bar"))
        assert names(app) == ["db1", "web1", "web2", "free"]
        await pilot.press("left", "left", "left")
        await until(lambda: "by state" in text(app, "bar"))
        await pilot.press("left", "less_than_sign")
        await until(lambda: "by VM" in text(app, "bar"))
        assert names(app) == ["db1", "free", "web1", "web2"]
        await pilot.press("left")
        await until(lambda: "by writes/s" in text(app, "bar"))


@pytest.mark.parametrize(
    ("typed", "found"),
    [("web", ["web1", "web2"]), ("ACME", ["db1", "web1"]), ("disk1", ["web1", "free"]), ("q1", [])],
)
async def test_a_filter_works_as_one_types(socket: Path, typed: str, found: list[str]) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("slash", *typed)
        await until(lambda: names(app) == found)
        assert f"{len(found)} of 4" in text(app, "bar")
        await pilot.press("enter")
        await until(lambda: app.focused is app.query_one(RowsTable))
        assert names(app) == found
        assert ("nothing here" in lines(app)[1]) is (not found)
        await pilot.press("escape")
        await until(lambda: len(names(app)) == 4)


async def test_the_chosen_row_stays_chosen_when_the_order_changes(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        table = app.query_one(RowsTable)

        def chosen() -> str:
            assert table.chosen is not None
            return table.chosen.key[1]

        await pilot.press("down", "down")
        await until(lambda: chosen() == "web2")
        await pilot.press("r")
        await until(lambda: names(app)[0] == "free")
        assert chosen() == "web2"
        await pilot.press("home")
        await until(lambda: chosen() == "free")
        await pilot.press("r")
        await until(lambda: names(app)[0] == "db1")
        assert chosen() == "db1"


async def test_the_chosen_row_is_visible_among_a_hundred(socket: Path) -> None:
    guests = [steady_guest(f"g{n:03}", n, 1000) for n in range(100)]
    async with shown(SimulatedApi(guests), socket) as (app, pilot):
        await pilot.press("end")
        await until(lambda: any("g099" in line for line in lines(app)))
        await pilot.press("pageup")
        await until(lambda: any("g078" in line for line in lines(app)))
        await pilot.resize_terminal(20, 6)
        await until(lambda: len(lines(app)) < 6 and any("g078" in line for line in lines(app)))


# Beside the table


async def test_enter_explains_the_row_live(socket: Path) -> None:
    host = small_host()
    async with shown(host, socket) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: "a limit of 1000 iops" in text(app, "text"))
        assert text(app, "text").startswith("db1/vda\n1. ")
        await pilot.press("down")
        await until(lambda: text(app, "text").startswith("web1/vda\n"))
        host.fleet.guests[1].policy = DrivePolicy(limit=250)
        host.run(3)
        await until(lambda: "a limit of 250 iops" in text(app, "text"))
        await pilot.press("enter")
        await until(lambda: not app.query_one("#beside").display)


async def test_a_storage_and_a_tenant_show_their_busiest_drives(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("2", "enter")
        await until(lambda: "db1/vda: 1000 of 1000 iops, 100 %" in text(app, "text"))
        assert text(app, "text").startswith("disk0\nIt keeps its promises.\n")
        await pilot.press("3")
        await until(lambda: text(app, "text").startswith("acme\n"))


async def test_a_question_mark_shows_every_key(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("question_mark")
        await until(lambda: "reverse the order" in text(app, "text"))
        await pilot.press("escape")
        await until(lambda: not app.query_one("#beside").display)


@pytest.mark.parametrize(("width", "beside"), [(120, True), (80, False), (20, False)])
async def test_the_text_is_beside_the_table_or_below_it(
    socket: Path, width: int, beside: bool
) -> None:
    async with shown(small_host(), socket, (width, 24)) as (app, pilot):
        await pilot.press("question_mark")
        await until(lambda: placed(app) == (beside, not beside))


def placed(app: TopApp) -> tuple[bool, bool]:
    """Return whether the text is beside the table, and whether it is below it."""
    table, panel = app.query_one(RowsTable).region, app.query_one("#beside").region
    return panel.x >= table.right, panel.y >= table.bottom


# Pause, copy, quit


async def test_a_pause_shows_what_was_and_space_goes_on(socket: Path) -> None:
    host = small_host()
    async with shown(host, socket) as (app, pilot):
        await pilot.press("space")
        await until(lambda: "paused" in text(app, "line"))
        host.errors["db1"] = PolicyError("domain db1", "limit is -5", "give 1 to 100000000")
        await pilot.pause(1.5)
        assert "held" in lines(app)[1]
        await pilot.press("space")
        await until(lambda: "error" in lines(app)[1])


async def test_the_row_and_its_explanation_are_copied(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: "Last look" in text(app, "text"))
        await pilot.press("c")
        heading, row, title, *_ = await until(lambda: app.clipboard.splitlines())
        assert heading.split("\t")[:3] == ["VM", "drive", "state"]
        assert row.split("\t")[:3] == ["db1", "vda", "held"]
        assert title == "db1/vda"
        assert "copied" in text(app, "line")


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c"])
async def test_it_quits(socket: Path, key: str) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press(key)
        await until(lambda: not app.is_running)
        assert app.return_code == 0


async def test_keys_are_text_while_one_types_a_filter(socket: Path) -> None:
    async with shown(small_host(), socket) as (app, pilot):
        await pilot.press("slash", "q", "2", "space", "c")
        await until(lambda: app.query_one(Input).value == "q2 c")
        assert app.is_running


# The agent


async def test_an_agent_that_stops_is_told_and_its_return_is_followed(socket: Path) -> None:
    host = small_host()
    async with host.served(socket):
        context = running(host, socket)
        app, _ = await context.__aenter__()
    told = f"{socket}: is not there; start the agent (systemctl start iokeel)"
    await until(lambda: told in text(app, "line"))
    assert text(app, "line").startswith("no answer for ")
    assert names(app)[0] == "db1", "what was known is still shown"
    host.errors["web1"] = PolicyError("domain web1", "limit is -5", "give 1 to 100000000")
    async with host.served(socket):
        await until(lambda: "error" in lines(app)[2])
        assert "no answer" not in text(app, "line")
        await context.__aexit__(None, None, None)


async def test_an_agent_without_a_history_is_shown_all_the_same(socket: Path) -> None:
    host = small_host()
    runner = web.AppRunner(old_agent(host))
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    async with running(host, socket) as (app, _):
        await until(lambda: "nothing is known of the time before" in text(app, "line"))
        assert "not from an agent of this version" in text(app, "line")
        await until(lambda: lines(app)[1].count("█") == 1)
        assert names(app)[0] == "db1"
        await runner.cleanup()
        async with host.served(socket):  # upgraded meanwhile
            await until(lambda: lines(app)[1].count("█") > 10)


def old_agent(host: SimulatedApi) -> web.Application:
    """Return the API as it was before it had a history."""

    async def vms(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(host.snapshot().vm_reports()))

    async def storages(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(host.snapshot().storage_reports()))

    app = web.Application()
    app.add_routes([web.get("/v1/vms", vms), web.get("/v1/storages", storages)])
    return app


async def test_names_are_shown_and_never_run(socket: Path) -> None:
    phases: Iterator[Phase] = iter([Phase(inf, 100)])
    host = SimulatedApi([Guest(NASTY, DrivePolicy(limit=500), phases, tenant="[bold]t")])
    host.run(5)
    async with shown(host, socket, (200, 24)) as (app, pilot):
        escaped = "[red]x[/]\\x1b[31m\\u202e"
        assert lines(app)[1].startswith(escaped)
        await pilot.press("enter")
        await until(lambda: text(app, "text").startswith(f"{escaped}/vda\n1."))
        await pilot.press("3")
        await until(lambda: lines(app)[1].startswith("[bold]t "))


async def test_a_look_may_end_after_the_screen(socket: Path) -> None:
    host = small_host()
    async with host.served(socket):
        async with running(host, socket) as (app, pilot):
            await pilot.press("enter")
        with app._context():  # as of the app's own tasks
            await app._look()


async def test_a_host_without_drives_is_no_error(socket: Path) -> None:
    async with shown(SimulatedApi([]), socket) as (app, pilot):
        await pilot.press("enter", "down", "c", "2", "3", "end")
        assert "nothing here" in lines(app)[1]
