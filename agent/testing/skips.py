"""A pytest plugin: with IOKEEL_SKIPS=few, a test that is skipped fails, as a change's checks want.

Only what no package and no right can mend is skipped then: a kernel, or a machine that is too busy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator

import pytest

_MACHINE = re.compile(
    r"kernel has no (BFQ|blkio|/proc/pressure/io)"
    r"|is not a block device$"
    r"|are one filesystem$"
    r"|hypervisor took \d+ % of its processors$"
    r"|machine was too busy to tell$"
    r"|has no caveat any more$"  # a committed result, not of the machine
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge a test that is skipped."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a file or folder that is skipped."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("IOKEEL_SKIPS") != "few" or not report.skipped:
        return
    assert isinstance(report.longrepr, tuple)
    path, line, why = report.longrepr
    if not _MACHINE.search(why):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {why} (with IOKEEL_SKIPS=few, that fails)"
