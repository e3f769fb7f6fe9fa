"""A pytest plugin: how several workers (--numprocesses) share the tests, and the machine.

A test marked `alone` measures a time or a rate. It runs while no other test of the checkout does.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from testing.turns import turn

# Two folders of the checkout, because every worker can lock them.
_QUEUE = Path(__file__).parent
_MACHINE = _QUEUE.parent
_WITH_HOSTS = ("tests/system/", "tests/lab/")
_SUITE = re.compile(r"[\[-](bookworm|trixie)[-\]]")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the timeout, which must not count the wait
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and its fixtures in its turn."""
    with turn(_QUEUE, _MACHINE, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give tests out in their order, so that the first folders' do not end last."""
    config.option.loadscopereorder = False
    return _ByHost(config, log)


class _ByHost(LoadScopeScheduling):
    """Gives a worker all tests of one suite's hosts, or a module that starts hosts of its own.

    So no host starts twice, and at most two run. Any other test goes to whoever is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith(_WITH_HOSTS):
            return nodeid
        suite = _SUITE.search(nodeid)
        return suite[1] if suite else nodeid.partition("::")[0]
