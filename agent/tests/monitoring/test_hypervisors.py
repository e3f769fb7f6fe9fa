"""Which alerts the two hypervisors may have."""

from __future__ import annotations

import pytest

from tests.monitoring.hypervisors import unwanted
from tests.monitoring.prometheus import Alert


@pytest.mark.parametrize("state", ["pending", "firing"])
@pytest.mark.parametrize("name", ["IokeelRetuneStorm", "IokeelPolicyInvalid"])
def test_an_alert_where_all_is_well_may_only_be_pending_and_only_if_it_is_named(
    name: str, state: str
) -> None:
    alert, wrong = Alert("healthy", name, state), Alert("broken", "IokeelPolicyInvalid", state)
    may_be = (name, state) == ("IokeelRetuneStorm", "pending")
    assert unwanted([alert, wrong]) == (set() if may_be else {alert})
