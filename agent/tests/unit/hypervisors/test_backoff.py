"""How long the agent waits before it tries again."""

from itertools import islice

from iokeel.hypervisors.pace import delays


def test_waits_double_up_to_five_seconds_less_half_at_most() -> None:
    for wait_s, most_s in zip(islice(delays(), 8), (0.5, 1, 2, 4, 5, 5, 5, 5), strict=True):
        assert most_s / 2 <= wait_s <= most_s
