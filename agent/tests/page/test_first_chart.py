"""How soon a person sees a chart on a host with 200 drives.

The time is printed (pytest -s) but not held, because other programs may have the machine. What
makes it long is held: the files that the browser loads, and the questions before it.
"""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from testing.cockpit import Cockpit
from testing.simulated_api import SimulatedApi, mixed_guests
from tests.page.conftest import BUILT, Open
from tests.page.simulated import passing, served

# Marks the page with the ms after which the charts of a selector were drawn.
_WATCH = """
    new MutationObserver(() => {
        const charts = [...document.querySelectorAll('%s')].map(%s);
        const mark = document.documentElement?.dataset;
        if (mark && !mark.charted && charts.length && charts.every(Boolean)) {
            mark.charted = performance.now();
        }
    }).observe(document, { subtree: true, childList: true, attributes: true });
"""
_A_LINE = "(chart) => chart.getAttribute('d').split('L').length > 20"
_LOADED = """
    performance.getEntriesByType('resource').map((file) => file.name)
        .filter((name) => name.includes('/iokeel/') || name.includes('/base1/'))
"""


class Questions:
    """The paths that a page asks the agent for, as Cockpit's channels carry them."""

    def __init__(self, page: Page) -> None:
        self.paths: list[str] = []
        page.on("websocket", lambda socket: socket.on("framesent", self._note))

    def _note(self, frame: str | bytes) -> None:
        text = frame if isinstance(frame, str) else frame.decode(errors="replace")
        self.paths += re.findall(r'"path":"(/v1/[a-z]+)', text)


def charted(page: Page, url: str, charts: str, drawn: str) -> str:
    """Open a page, wait until its charts are drawn, and return how long that took in words."""
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.add_init_script(_WATCH % (charts, drawn))
    page.goto(url)
    marked = page.locator("html[data-charted]")
    expect(marked).to_have_count(1)
    found = {m["name"]: m["value"] for m in chromium.send("Performance.getMetrics")["metrics"]}
    after_ms = float(marked.get_attribute("data-charted") or "")
    return f"after {after_ms:.0f} ms, {1000 * found['TaskDuration']:.0f} ms of CPU in the page"


def test_the_first_chart_takes_few_files_and_questions(folder: Path, opened: Open) -> None:
    host = SimulatedApi(mixed_guests(200), 4)
    host.run(130)
    socket = folder / "agent.sock"
    with served(passing(host), socket), Cockpit(folder / "c", BUILT, socket) as cockpit:
        page = opened("about:blank")
        asked = Questions(page)
        took = charted(page, cockpit.url, ".iokeel-rate", _A_LINE)
        print(f"\n200 drives: the charts of 25 of them {took}")
        assert page.locator(".iokeel-rate").count() == 25
        assert asked.paths.count("/v1/history") == 1
        assert set(asked.paths) == {"/v1/host", "/v1/history"}
        files = page.evaluate(_LOADED)
        assert 3 <= len(files) <= 8, files

        page = opened("about:blank")
        asked = Questions(page)
        took = charted(page, f"{cockpit.url}#/drive/guest0003/vda", "canvas", "() => true")
        print(f"200 drives: the chart of one {took}")
        expect(page.get_by_role("img", name="Rate against limit")).to_be_visible()
        assert set(asked.paths) == {"/v1/host", "/v1/history", "/v1/why", "/v1/settings"}
