"""The page as its Debian package puts it on a host."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from testing.cockpit import Cockpit
from testing.lab.host import Host
from testing.packages.page import build
from testing.simulated_api import SimulatedApi, steady_guest
from tests.page.conftest import Open, picture
from tests.page.simulated import passing, served


def test_the_package_puts_the_page_into_cockpits_menu(folder: Path, opened: Open) -> None:
    package = build(folder)
    simulated = SimulatedApi([steady_guest("db1", 500, 400)])
    simulated.run(60)
    with Host.bookworm() as host:
        host.run(["dpkg", "--install", package])
        listed = host.run(["cockpit-bridge", "--packages"]).stdout
        assert "/usr/share/cockpit/iokeel" in listed
        socket = host.dir / "agent.sock"
        with (
            served(passing(simulated), socket),
            Cockpit(host.dir / "cockpit", None, socket, popen=host.popen) as cockpit,
        ):
            page = opened(cockpit.shell_url, strict=False)
            page.get_by_role("link", name="Disk limits").click()
            frame = page.frame_locator("iframe[name*=iokeel]")
            expect(frame.get_by_role("link", name="db1 vda")).to_be_visible()
            picture(page, "in-cockpit")
