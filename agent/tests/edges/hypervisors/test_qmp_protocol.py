"""The QMP protocol, a byte at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iokeel.hypervisors.qemu.bounds import MOST_LISTED
from iokeel.hypervisors.qemu.drives import BlockStats, Object
from iokeel.hypervisors.qmp.connection import ANYTHING, QmpConnection, decoder
from iokeel.hypervisors.qmp.faults import MonitorLost
from testing.hypervisors.qmp_server import GREETING
from tests.edges.hypervisors.sources import json_values


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


def feed(connection: QmpConnection, data: bytes) -> None:
    """Hand over bytes as asyncio does."""
    while data and not connection.lost.done():
        buffer = connection.get_buffer(-1)
        part, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(part)] = part
        connection.buffer_updated(len(part))


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


STATS = dict.fromkeys(
    ("rd_operations", "rd_bytes", "wr_operations", "wr_bytes", "rd_total_time_ns",
     "wr_total_time_ns"), 4,
)  # fmt: skip


@given(
    st.lists(st.sampled_from(["answer", "error", "event"]), max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
)
@example(["answer", "answer"], list(range(1, 400)), b"\r\n")
def test_replies_in_any_pieces_are_the_same_replies(
    kinds: list[str], cuts: list[int], end: bytes
) -> None:
    async def run() -> None:
        events: list[str] = []
        took: list[Any] = []
        connection, transport = QmpConnection(Path("x"), events.append), _Transport()
        connection.connection_made(transport)
        data, asked, counters = GREETING, 0, decoder(list[BlockStats])
        for kind in kinds:
            if kind == "event":
                data += b'{"event": "E", "data": {"return": []}}' + end
                continue
            asked += 1
            connection.ask(b'"execute":"x"', counters, took.append)
            value: dict[str, Any] = {"return": [{"device": "", "qdev": "q", "stats": STATS}]}
            if kind == "error":
                value = {"error": {"class": "GenericError", "desc": "no"}}
            data += json.dumps({**value, "id": asked}).encode() + end
        for piece in pieces(data, cuts):
            feed(connection, piece)
        assert len(events) == kinds.count("event")
        replies = ["error" if reply.error else "answer" for reply in took]
        assert replies == [kind for kind in kinds if kind != "event"]
        assert all(r.answer[0].stats.wr_bytes == 4 for r in took if not r.error)
        assert [json.loads(line)["id"] for line in transport.sent] == [*range(1, asked + 1)]
        assert not connection.lost.done()

    asyncio.run(run())


@given(st.lists(st.binary(max_size=80) | json_values.map(lambda v: json.dumps(v).encode())))
@example([b'{"return": [{"stats": {"rd_operations": 1e400}}], "id": 1}'])
@example([b'{"event": 5}'])
@example([b'{"return": [], "id": ' + b"9" * 6000 + b"}"])
@example([b'{"return": [], "error": {"class": "\xff", "desc": ""}, "id": 1}'])
@example([b'{"return": [], "id": 1}', b'{"return": [], "id": 1}'])
def test_whatever_comes_every_question_gets_one_end(sent: list[bytes]) -> None:
    async def run() -> None:
        took: list[Any] = []
        connection = QmpConnection(Path("x"), lambda _: None)
        connection.connection_made(_Transport())
        for _ in range(3):
            connection.ask(b'"execute":"x"', decoder(list[BlockStats]), took.append)
        feed(connection, b"\n".join(sent) + b"\n")
        connection.connection_lost(None)
        assert len(took) == 3
        assert "\n" not in str(connection.lost.result())

    asyncio.run(run())


async def test_what_is_asked_after_the_end_gets_the_end() -> None:
    connection = QmpConnection(Path("x"), lambda _: None)
    connection.connection_made(_Transport())
    connection.close()
    with pytest.raises(MonitorLost):
        await connection.execute("query-block", {}, ANYTHING, 1.0)


async def test_blank_lines_are_not_decoded() -> None:
    decoded: list[bytes] = []

    class Decoder:
        def decode(self, line: bytes) -> Any:
            decoded.append(line)
            return ANYTHING.decode(line)

    took: list[Any] = []
    connection = QmpConnection(Path("x"), lambda _: None)
    connection.connection_made(_Transport())
    connection.ask(b'"execute":"x"', Decoder(), took.append)  # type: ignore[arg-type]
    feed(connection, b"\n\r\n \t\n" * 5 + b'{"return": 5, "id": 1}\r\n')
    assert decoded == [b'{"return": 5, "id": 1}']
    assert took[0].answer == 5


async def test_a_list_that_no_qemu_has_ends_the_connection() -> None:
    took: list[Any] = []
    connection = QmpConnection(Path("x"), lambda _: None)
    connection.connection_made(_Transport())
    for number in (1, 2):
        connection.ask(b'"execute":"x"', decoder(list[Object], MOST_LISTED), took.append)
        each = b'{"name": "a", "type": "b"}'
        listed = b",".join([each] * (MOST_LISTED + number - 1))
        feed(connection, b'{"return": [%b], "id": %d}\n' % (listed, number))
    assert len(took[0].answer) == MOST_LISTED
    assert isinstance(took[1], MonitorLost)
    assert "length <= 2000" in str(took[1])
