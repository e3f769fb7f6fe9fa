"""Honest guests beside QEMUs that lie, flood and hang."""

from __future__ import annotations

import pytest

from benchmarks.hostile import run as hostile

SECONDS = 40.0
SEED = 7


@pytest.mark.timeout(300)
def test_whatever_a_qemu_does_other_guests_keep_their_limits_and_the_agent_its_size() -> None:
    result = hostile.run(SECONDS, SEED)
    assert 0.99 <= result.least_ratio
    assert result.most_ratio <= 1
    assert result.memory_mib <= hostile.MEMORY_MIB
    assert result.log_bytes_s <= hostile.LOG_BYTES_S
    assert result.state_mib <= hostile.STATE_MIB
    assert result.metrics_mib <= hostile.METRICS_MIB
    assert not result.faults
    assert len(result.tricks) > 5
