"""/metrics beside everything else that the agent does."""

import asyncio

from iokeel.host.disk_counters import Pressure
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
    await Metrics().text(Snapshot({}, {}, {}, {}, 0))
    beside.cancel()
    assert turns >= len(METRICS)


async def test_pressure_is_that_of_the_snapshot() -> None:
    text = (
        await Metrics().text(Snapshot({}, {}, {}, {}, 0, pressure=Pressure(0.25, 0.125)))
    ).decode()
    lines = [line for line in text.splitlines() if line.startswith("iokeel_host_io_pressure_ratio")]
    assert lines == [
        'iokeel_host_io_pressure_ratio{kind="some"} 0.25',
        'iokeel_host_io_pressure_ratio{kind="full"} 0.125',
    ]
