"""A pytest plugin: which tests `make test` runs, and which only `make test-all`.

`make test` is to take eight minutes on two cores: pure functions, what speaks to one outside thing,
and the agent with real libvirt, QEMU, fio and etcd where that matters most. All others are marked
`thorough`: many guests, long measurements, benchmarks, packages. What benchmarks test of themselves
is marked `bench` and is not among what a change has to pass (`make test-bench`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

_ESSENTIAL = (
    "tests/unit/",
    "tests/edges/cli/",
    "tests/edges/config/",
    "tests/edges/host/",
    "tests/edges/hypervisors/test_qmp",
    "tests/edges/libvirt_xml/",
    "tests/edges/report/",
    "tests/edges/fleet/test_etcd.py",
    "tests/edges/fleet/test_agents.py",
    "tests/edges/test_hook.py",
    "tests/edges/test_service.py",
    "tests/system/test_agent.py",
    "tests/system/test_hook.py",
    "tests/system/test_vm_limit.py",
)
_LONG = (
    "tests/edges/cli/test_platforms.py",
    "tests/edges/fleet/test_agents.py::test_the_last_releases_agent",
    "tests/unit/core/fleet/test_model.py",
    "tests/unit/core/measure/test_zeroes.py::test_zeroes_stop_a_drive",
    "tests/unit/core/test_random_hosts.py",
)
_BENCH = "tests/lab/test_bench_"
_JUDGE = "tests/lab/test_bench_virtual.py"  # compares the law with the committed figures
_DISKSIM = Path(__file__).parents[2] / "benchmarks/disksim"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves out."""
    for item in items:
        if not item.nodeid.startswith(_ESSENTIAL) or item.nodeid.startswith(_LONG):
            item.add_marker(pytest.mark.thorough)
        of_bench = item.nodeid.startswith(_BENCH) and not item.nodeid.startswith(_JUDGE)
        if of_bench or item.path.is_relative_to(_DISKSIM):
            item.add_marker(pytest.mark.bench)
