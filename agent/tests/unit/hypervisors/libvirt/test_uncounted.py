"""Domains whose counters don't come."""

from __future__ import annotations

from iokeel.hypervisors.libvirt.changes import LATE_S, Uncounted


def test_a_domain_is_late_once_a_minute_from_its_first_minute_on() -> None:
    uncounted = Uncounted()
    late = [uncounted.note(["db1"], float(second)) for second in range(150)]
    assert [second for second, count in enumerate(late) if count] == [LATE_S, 2 * LATE_S]


def test_a_domain_that_is_busy_for_less_than_a_minute_at_a_time_is_never_late() -> None:
    uncounted = Uncounted()
    for second in range(600):
        assert uncounted.note(["db1"] if second % 59 else [], float(second)) == 0
