"""What an agent leaves behind when it stops, for tests of the law."""

from __future__ import annotations

from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.values.observation import SetLimits
from iokeel.core.values.state import State


def left_at_stop(state: State) -> list[SetLimits]:
    """Return the orders of an agent that stops in this state. The law fails on none."""
    orders, failures = static_orders(state, state.drives)
    assert not failures
    return orders
