"""The connection for events, to a real libvirtd that hangs and goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer
from iokeel.hypervisors.libvirt.events import Events
from testing.lab.host import Host
from testing.waiting import until


@pytest.fixture
def host() -> Iterator[Host]:
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


def sockets() -> int:
    """Return how many sockets this process has open."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(link.startswith("socket:") for link in links)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_connection_that_nobody_uses_is_closed(host: Host, hangs: bool) -> None:
    libvirt, before = Calls(host.uri), sockets()
    events = Events(libvirt, lambda _: None, lambda *_: None, lambda _: None)

    def all_closed() -> bool:
        libvirt.close()
        return sockets() == before

    for _ in range(3):
        if hangs:
            host.signal_libvirtd(signal.SIGSTOP)
            with pytest.raises(NoAnswer):
                await events.connect(0.2)
        else:
            await events.connect(30)
            assert events.connected
        await until(lambda: sockets() > before)
        events.disconnect()
        assert not events.connected
    host.signal_libvirtd(signal.SIGCONT)
    await until(all_closed, 60)
    await events.connect(30)
    events.disconnect()
    await until(all_closed, 60)
