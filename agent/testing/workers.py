"""A pytest plugin: how several workers (--numprocesses) share the tests, and the machine.

A test marked `alone` measures a time or a rate. Such tests run last, and one at a time; what their
fixtures start may start beside another's. If some of a test's own steps needn't be alone, it asks
for the fixture `alone`, and enters it for those that must be. Tests that only compute take no time
that another process wants, so they run beside those that are alone.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from testing.turns import Turn

Alone = Callable[[], AbstractContextManager[None]]
"""The type of the fixture `alone`."""

# Two folders of the checkout, because every worker can lock them.
_QUEUE = Path(__file__).parent
_MACHINE = _QUEUE.parent
_WITH_HOSTS = ("tests/system/", "tests/lab/")
# A module's tests share what it starts, but no guest.
_BY_MODULE = ("tests/monitoring/", "tests/deploy/")
_COMPUTE = ("tests/unit/", "tests/fuzz/")
# They wait for threads and sockets.
_NOT_COMPUTE = (
    "tests/unit/cli/top/test_app.py",
    "tests/unit/hypervisors/libvirt/test_source.py",
    "tests/unit/test_limits_hold.py",
)
_SESSION = Path("/proc/self/autogroup")
_TURN = pytest.StashKey[Turn]()
# Of tests that wait for others, which may have to make their hosts' images first.
_WAITING_TIMEOUT_S = 1800
_SUITE = re.compile(r"[\[-](bookworm|trixie)[-\]]")


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGINT end what tests start, though whoever runs in a shell's background ignores it.

    Linux divides processors by sessions first (sched(7), autogroup), so each worker has its own.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        os.setsid()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that want to be alone last, and give time to those that wait for others.

    Those that only compute come between them, so that not all workers wait for their turn.
    """
    alone = [item for item in items if _wants_to_be_alone(item)]
    compute = [item for item in items if _computes(item) and not _wants_to_be_alone(item)]
    items[:] = [item for item in items if not (_wants_to_be_alone(item) or _computes(item))]
    modules = [[*tests] for _, tests in groupby(alone, lambda item: _module(item.nodeid))] or [[]]
    a_module = len(compute) / len(modules)
    for number, tests in enumerate(modules):
        items += tests
        items += compute[round(number * a_module) : round((number + 1) * a_module)]
    for item in items:
        if _wants_to_be_alone(item) or _computes(item):
            item.add_marker(pytest.mark.timeout(_WAITING_TIMEOUT_S), append=False)


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _wants_to_be_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _computes(item: pytest.Item) -> bool:
    return item.nodeid.startswith(_COMPUTE) and not item.nodeid.startswith(_NOT_COMPUTE)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the timeout, which must not count the wait
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and its fixtures in its turn, or if it only computes, in idle time."""
    if _computes(item):
        with _idle_time():
            return (yield)
    with Turn(_QUEUE, _MACHINE) as item.config.stash[_TURN]:
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test itself alone, if it is marked so."""
    if not _wants_to_be_alone(item) or "alone" in getattr(item, "fixturenames", ()):
        return (yield)
    with item.config.stash[_TURN].alone():
        return (yield)


@pytest.fixture(scope="session")
def alone(pytestconfig: pytest.Config) -> Alone:
    """A context in which no other test runs, for tests that are marked `alone`."""
    return lambda: pytestconfig.stash[_TURN].alone()


@contextmanager
def _idle_time() -> Iterator[None]:
    """Use a processor only while nobody else wants it."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _set_session_nice(19)
    try:
        yield
    finally:
        _set_session_nice(0)
        os.sched_setscheduler(0, policy, priority)


def _set_session_nice(nice: int) -> None:
    """Set how nice a worker's session is to others."""
    if os.geteuid() == 0 and _SESSION.exists() and os.getsid(0) == os.getpid():
        _SESSION.write_text(str(nice))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give tests out in their order, so that the first folders' do not end last."""
    config.option.loadscopereorder = False
    return _ByHost(config, log)


class _ByHost(LoadScopeScheduling):
    """Gives a worker all tests of a module that share a host, or what else the module starts.

    Any other test goes to whoever is free.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._scopes: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._scopes:
            self._scopes = _scopes(self.collection or ())
        return self._scopes[nodeid]


def _scopes(collection: Iterable[str]) -> dict[str, str]:
    """Return each test's scope. What a module has among the last tests is a scope of its own."""
    found, pieces, previous = {}, Counter[str](), ""
    for nodeid in collection:
        module = _module(nodeid)
        if module != previous:
            pieces[module] += 1
            previous = module
        if module.startswith(_WITH_HOSTS + _BY_MODULE):
            suite = _SUITE.search(nodeid) if module.startswith(_WITH_HOSTS) else None
            found[nodeid] = f"{module} {pieces[module]} {suite[1] if suite else ''}"
        else:
            found[nodeid] = nodeid
    return found
