"""The table of `iokeel history`."""

from __future__ import annotations

from iokeel.cli.commands.history import history_table
from iokeel.report.records import DriveHistory, HistoryReport


def test_each_sample_has_a_time_of_its_own() -> None:
    ages_s = [float(age) for age in range(598, -1, -2)]
    names = ("normalized_iops", "allowed_iops", "latency_s", "wait_s", "credit_s")
    series: dict[str, list[float | None]] = {name: [None] * len(ages_s) for name in names}
    found = HistoryReport(
        ages_s=ages_s, drives=[DriveHistory(domain="db1", target="vda", series=series)]
    )
    times = [row[0] for row in history_table(found).rows]
    assert len({*times}) == 300
    assert (times[0], times[-61], times[-31], times[-1]) == ("9:58", "2:00", "1:00", "0:00")
