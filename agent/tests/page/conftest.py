"""Fixtures of the page's tests: real cockpit-ws, Debian's chromium, pictures of what it shows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from testing.lab.host import PROJECT

#: Opens a page of the browser; its options are playwright's for a context.
Open: TypeAlias = Callable[..., Page]

BUILT = PROJECT / "build/page"
PICTURES = PROJECT / "build/page-pictures"
_AXE = PROJECT / "agent/cockpit/node_modules/axe-core/axe.min.js"
_TIMEOUT_MS = 20_000
expect.set_options(timeout=_TIMEOUT_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium, without a window."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens pages that may break no rule: no script fails, and nothing is refused by the policy.

    strict=False: Cockpit's own frame is around it, whose faults aren't ours.
    """
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_page(url: str, *, strict: bool = True, **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 1600}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        if not strict:
            page.goto(url)
            return page
        page.on("pageerror", lambda error: wrong.append(f"{error} {error.stack}"))
        page.on("console", lambda said: _note(said.type, said.text, wrong))
        page.goto(url)
        return page

    yield open_page
    seen = [*wrong]  # Cockpit's own script may complain of a page that is closed
    for context in contexts:
        context.close()
    assert seen == []


def _note(kind: str, text: str, wrong: list[str]) -> None:
    if kind == "error" or "Content Security Policy" in text:
        wrong.append(text)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets, that all users can enter."""
    with tempfile.TemporaryDirectory(prefix="page-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def picture(page: Page, name: str) -> None:
    """Keep a picture of what a page shows, for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with a page: each rule, with the elements that break it."""
    page.evaluate(_AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {rule['help']}: {[node['html'] for node in rule['nodes']]}"
        for rule in found["violations"]
    ]


def wider_than_the_window(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return max(0, found)
