"""What the page shows if there is nothing to show, or nobody to ask."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import Future
from math import inf
from pathlib import Path

import msgspec
from aiohttp import web
from playwright.sync_api import expect

from iokeel.report.snapshot import Snapshot
from testing.cockpit import Cockpit
from testing.simulated_api import SimulatedApi, steady_guest
from testing.waiting import eventually
from tests.page.conftest import BUILT, Open, picture, violations
from tests.page.simulated import Served, served

FAILS_AFTER_S = 5
Handler = Callable[[web.Request], Awaitable[web.Response]]

# Hides the page, or shows it again, as changing the browser's tab does.
_HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
# Notes the domains that the page shows, in their order.
_NOTE_DOMAINS = """
    window.noted = [];
    new MutationObserver(() => {
        const found = document.querySelector("table[aria-label=Drives] tbody a")?.innerText;
        if (found && found !== noted.at(-1)) noted.push(found);
    }).observe(document, { subtree: true, childList: true, characterData: true });
"""


def host(domain: str = "db1") -> SimulatedApi:
    found = SimulatedApi([steady_guest(domain, inf, 1000)])
    found.run(5)
    return found


class FaultyApi(SimulatedApi):
    """A simulated host whose agent has a fault, until `mended`."""

    mended = False

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        if not self.mended:
            raise RuntimeError("a fault")
        return super().snapshot(domains)


def answering(path: str, handler: Handler) -> Served:
    """Return what serves one path, as no agent of this version does."""

    @contextlib.asynccontextmanager
    async def serving(socket: Path) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes([web.get(path, handler)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        yield
        await runner.cleanup()
        socket.unlink(missing_ok=True)

    return serving


def test_a_host_without_guests_is_no_error(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with served(SimulatedApi([]).served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_text("No guest runs here")).to_be_visible()
        assert violations(page) == []
        picture(page, "empty")


def test_an_agent_that_takes_its_time_is_waited_for(folder: Path, opened: Open) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    socket, slowly = folder / "agent.sock", answering("/{path:.*}", slow)
    with served(slowly, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_text("Asking the agent")).to_be_visible()
        assert violations(page) == []
        picture(page, "loading")
        expect(page.get_by_role("heading", name="The agent doesn't answer")).to_be_visible()
        picture(page, "silent")


def test_a_page_that_was_hidden_while_it_asked_goes_on_as_one(folder: Path, opened: Open) -> None:
    asked: list[Future[bytes]] = []

    async def held(request: web.Request) -> web.Response:
        asked.append(Future())
        return web.Response(body=await asyncio.wrap_future(asked[-1]))

    def wait_for(count: int) -> None:
        eventually(lambda: len(asked) >= count, what=f"question {count}")

    def answer(number: int, domain: str) -> None:
        asked[number - 1].set_result(msgspec.json.encode(host(domain).snapshot().host_report()))

    socket, slowly = folder / "agent.sock", answering("/v1/host", held)
    with served(slowly, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        wait_for(1)
        page.evaluate(_NOTE_DOMAINS)
        page.evaluate(_HIDE, True)
        page.evaluate(_HIDE, False)
        wait_for(2)
        answer(2, "second")
        expect(page.get_by_role("link", name="second vda")).to_be_visible()
        wait_for(3)
        answer(1, "first")
        answer(3, "third")
        expect(page.get_by_role("link", name="third vda")).to_be_visible()
        for count in (4, 5, 6):
            wait_for(count)
            assert len(asked) == count
            answer(count, "third")
        assert page.evaluate("noted") == ["second vda", "third vda"]


def test_an_agent_that_does_not_run_is_told_and_its_start_is_seen(
    folder: Path, opened: Open
) -> None:
    socket = folder / "agent.sock"
    with Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_text("The agent doesn't run")).to_be_visible()
        expect(page.get_by_text("systemctl start iokeel")).to_be_visible()
        assert violations(page) == []
        picture(page, "stopped")
        with served(host().served, socket):
            expect(page.get_by_role("link", name="db1 vda")).to_be_visible()
            page.get_by_role("link", name="db1 vda").click()
            expect(page.get_by_text("The policy gives a limit of 1000 iops.")).to_be_visible()
        # What was there stays, with a word about its age.
        expect(page.get_by_text("What is shown is from")).to_be_visible()
        expect(page.get_by_text("The policy gives a limit of 1000 iops.")).to_be_visible()
        picture(page, "stopped-later")
        with served(host().served, socket):
            expect(page.get_by_text("What is shown is from")).to_have_count(0)


def test_old_figures_are_from_the_last_answer_not_the_first_failure(
    folder: Path, opened: Open
) -> None:
    answered_s: list[float] = []

    async def once(request: web.Request) -> web.Response:
        if answered_s:
            await asyncio.sleep(FAILS_AFTER_S)
            return web.Response(text="not of this version")
        answered_s.append(time.time())
        return web.Response(body=msgspec.json.encode(host().snapshot().host_report()))

    socket = folder / "agent.sock"
    with (
        served(answering("/v1/host", once), socket),
        Cockpit(folder / "c", BUILT, socket) as cockpit,
    ):
        page = opened(cockpit.url, locale="de-DE", timezone_id="UTC")
        line = page.get_by_text("What is shown is from").inner_text()
        clock = re.search(r"from (\d+):(\d+):(\d+)", line)
        assert clock, line
        hours, minutes, seconds = map(int, clock.groups())
        after_s = 3600 * hours + 60 * minutes + seconds - int(answered_s[0])
        assert after_s % 86400 < FAILS_AFTER_S


def test_an_agent_of_another_version_is_no_riddle(folder: Path, opened: Open) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.json_response([{"domain": "db1", "disks": []}])

    socket, otherwise = folder / "agent.sock", answering("/v1/host", other)
    with served(otherwise, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_text("The agent is of another version than this page")).to_be_visible()
        assert violations(page) == []
        picture(page, "version")


def test_a_drive_that_is_not_there_is_told(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with served(host().served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(f"{cockpit.url}#/drive/db9/vda")
        expect(page.get_by_role("heading", name="There is no such drive")).to_be_visible()
        expect(page.get_by_text("db9: no such running VM; see `iokeel stats`")).to_be_visible()
        picture(page, "no-drive")


def test_a_fault_of_the_agent_is_told_as_one(folder: Path, opened: Open) -> None:
    faulty, socket = FaultyApi([steady_guest("db1", inf, 1000)]), folder / "agent.sock"
    faulty.run(5)
    with served(faulty.served, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_role("heading", name="The agent has a fault")).to_be_visible()
        said = page.get_by_text("the agent: can't answer this because of a fault")
        expect(said).to_be_visible()
        assert violations(page) == []
        picture(page, "fault")
        faulty.mended = True
        page.get_by_role("link", name="db1 vda").click()
        expect(page.get_by_text("The policy gives a limit of 1000 iops.")).to_be_visible()
        faulty.mended = False
        expect(page.get_by_text("The agent has a fault. What is shown is from")).to_be_visible()
        expect(said).to_be_visible()
        assert violations(page) == []
        picture(page, "fault-later")


def test_a_fault_without_words_is_told_by_its_status(folder: Path, opened: Open) -> None:
    async def failing(request: web.Request) -> web.Response:
        raise web.HTTPServiceUnavailable

    socket, failed = folder / "agent.sock", answering("/v1/host", failing)
    with served(failed, socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened(cockpit.url)
        expect(page.get_by_role("heading", name="The agent has a fault")).to_be_visible()
        expect(page.get_by_text("the answer has status 503")).to_be_visible()


def test_a_user_without_rights_is_told_whom_to_ask(folder: Path, opened: Open) -> None:
    socket = folder / "agent.sock"
    with (
        served(host().served, socket),
        Cockpit(folder / "c", BUILT, socket, reader=True) as cockpit,
    ):
        page = opened(cockpit.url)
        expect(page.get_by_text("You may not see the agent")).to_be_visible()
        assert violations(page) == []
        picture(page, "denied")
        socket.chmod(0o666)  # as if the user were in the socket's group
        page.reload()
        page.get_by_role("link", name="db1 vda").click()
        expect(page.get_by_text("Read only")).to_be_visible()
        expect(page.get_by_role("button", name="Change its policy")).to_have_count(0)
        picture(page, "reader")
