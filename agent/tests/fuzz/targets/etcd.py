"""What etcd's members answer, on a real connection: replies, and the messages of a watch."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from iokeel.config.etcd_access import Access
from iokeel.errors import ConnectionLost, FleetRefused
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.handover import take
from iokeel.fleet.messages import Is
from iokeel.fleet.watch import changes
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b"header cluster_id revision kvs key value lease response_range responses".split()),
    *(b"succeeded ID TTL result token message error code grpc_code".split()),
    *(b"events type PUT DELETE created canceled".split()),
    *(b"compact_revision cancel_reason kv L2lva2VlbC9h eyJ2IjoxfQ== 200 400 401 503".split()),
    *(
        b'"5"',
        b"\n",
        b"\0",
        b"7",
        b"14",
        b"16",
        b"invalid auth token",
        b"etcdserver: user name is empty",
    ),
]
# More would measure the event loop.
_MOST_PIECES = 20


class _Member:
    """A member of etcd that answers whatever it is asked with a status and a body, in pieces."""

    def __init__(self) -> None:
        self.status, self.pieces = 200, [b""]

    def answer_with(self, data: bytes) -> None:
        """Take an input: a status in its first line if it is one, and a NUL between two pieces."""
        found = re.match(rb"([245]\d\d)\n", data)
        self.status = int(found[1]) if found else 200
        self.pieces = data[found.end() if found else 0 :].split(b"\0", _MOST_PIECES)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question, and end the connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(size[1]) if size else 0)
            writer.write(b"HTTP/1.1 %d -\r\nConnection: close\r\n\r\n" % self.status)
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError):  # the agent has enough
            pass


def etcd(data: bytes) -> None:
    """Each reply has keys and values, or is an error."""
    _MEMBER.answer_with(data)
    _LOOP.run_until_complete(_asked())


async def _asked() -> None:
    for etcd, ask in (
        (_ETCD, take(_ETCD, "/iokeel/a")),
        (_ETCD, _ETCD.keep_lease(5)),
        (_AS_USER, _AS_USER.read(["/iokeel/a"], ["/iokeel/b/"], [Is("/iokeel/a", None)])),
    ):
        etcd._token = None  # log in each time
        with only(ConnectionLost, FleetRefused):
            await ask


def watch(data: bytes) -> None:
    """Each message of a watch has changes of keys, or ends it."""
    _MEMBER.answer_with(data)
    _LOOP.run_until_complete(_watched())


async def _watched() -> None:
    with only(ConnectionLost, FleetRefused):
        async for found in changes(_ETCD, "/iokeel/"):
            for key, value in (found or {}).items():
                assert isinstance(key, str)
                assert value is None or isinstance(value, bytes)


async def _connected(access: Access) -> Etcd:
    return await Etcd(access).__aenter__()


_FOLDER = TemporaryDirectory(prefix="iokeel-fuzz-")
_PASSWORD = Path(_FOLDER.name) / "password"
_PASSWORD.write_text("secret\n")
_PASSWORD.chmod(0o600)
_MEMBER = _Member()
_LOOP = asyncio.new_event_loop()
_SERVER = _LOOP.run_until_complete(asyncio.start_server(_MEMBER.serve, "127.0.0.1", 0))
_URL = f"http://127.0.0.1:{_SERVER.sockets[0].getsockname()[1]}"
_USER = Access((_URL,), user="iokeel", password_file=_PASSWORD)
_ETCD, _AS_USER = (_LOOP.run_until_complete(_connected(a)) for a in (Access((_URL,)), _USER))

# A watch has no end. So much of it is taken at once, and then it is the event loop's turn.
_MOST_AT_ONCE = 1 << 16

TARGETS = [Target("etcd", etcd, 1 << 18, _WORDS), Target("watch", watch, _MOST_AT_ONCE, _WORDS)]
