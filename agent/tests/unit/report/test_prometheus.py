"""/metrics beside everything else that the agent does."""

import asyncio

from iokeel.report.metric_table import METRICS
from iokeel.report.prometheus import Metrics
from iokeel.report.snapshot import Snapshot


async def test_the_event_loop_has_a_turn_after_each_metric() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await Metrics().text(Snapshot({}, {}, {}, 0))
    beside.cancel()
    assert turns >= len(METRICS)
