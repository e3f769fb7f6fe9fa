"""The command's side of the agent's API."""

from __future__ import annotations

import errno
import socket as sockets
from collections.abc import Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec

from iokeel.errors import ConnectionLost
from iokeel.report.records import (
    API,
    HistoryReport,
    RecommendReport,
    Refusal,
    RulesReport,
    StorageReport,
    VmReport,
    WeeksReport,
)
from iokeel.words.quoting import reason

# An agent answers from memory, between two steps of its ticks. One that takes longer hangs.
_TIMEOUT_S = 5.0
# It reads weeks of 1,000 drives in some seconds, beside its ticks.
_READS_S = 120.0
_SEE_LOG = "see `journalctl -u iokeel`"
T = TypeVar("T")
_Query: TypeAlias = Sequence[tuple[str, str]]


def vms(socket: Path) -> list[VmReport]:
    """Return the reports of all running VMs. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "vms", [], list[VmReport])


def storages(socket: Path) -> list[StorageReport]:
    """Return the reports of all storages. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "storages", [], list[StorageReport])


def why(socket: Path, domain: str, target: str | None) -> dict[str, list[str]]:
    """Return the steps of the last decision on a drive, or on each of a VM's, by target.

    Raises IokeelError, ConnectionLost.
    """
    query = [("domain", domain), *([("target", target)] if target is not None else [])]
    return _ask(socket, "why", query, dict[str, list[str]])


def history(
    socket: Path,
    seconds: float,
    drive: tuple[str, str] | None = None,
    series: Sequence[str] = (),
) -> HistoryReport:
    """Return the last so many seconds of a drive, by domain and target, or of all drives.

    series: only these; () for all. Raises IokeelError, ConnectionLost.
    """
    query = [("seconds", f"{seconds:g}"), *(("series", name) for name in series)]
    if drive is not None:
        query += zip(("domain", "target"), drive, strict=True)
    return _ask(socket, "history", query, HistoryReport)


def rules(socket: Path) -> RulesReport:
    """Return the rules and the guests as rules see them. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "rules", [], RulesReport)


def recommend(
    socket: Path, seconds: int, limit: int | None, domains: Sequence[str]
) -> RecommendReport:
    """Return what drives did in the last so many seconds, and what limits would have held them.

    limit: in place of the classes'. domains: only these; () for all. Raises IokeelError,
    ConnectionLost.
    """
    query = [("seconds", str(seconds)), *(("domain", domain) for domain in domains)]
    if limit is not None:
        query.append(("limit", str(limit)))
    return _ask(socket, "recommend", query, RecommendReport, _READS_S)


def report(socket: Path, seconds: int) -> WeeksReport:
    """Return the report of the last so many seconds. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "report", [("seconds", str(seconds))], WeeksReport, _READS_S)


def _ask(
    socket: Path,
    path: str,
    query: _Query,
    kind: type[T],
    timeout_s: float = _TIMEOUT_S,
) -> T:
    try:
        status, body = _request(socket, path, query, timeout_s)
        if status == HTTPStatus.OK:
            return msgspec.json.decode(body, type=kind)
        refused = msgspec.json.decode(body, type=Refusal).error.error()
        if not str(refused).isprintable():
            raise ValueError
    except TimeoutError:
        raise ConnectionLost(str(socket), "the agent doesn't answer", _SEE_LOG) from None
    except (RemoteDisconnected, ConnectionResetError):
        what = "the agent ended before it had answered"
        raise ConnectionLost(str(socket), what, _SEE_LOG) from None
    except OSError as error:
        raise ConnectionLost(str(socket), *_not_connected(error)) from None
    except (HTTPException, ValueError, RecursionError, OverflowError, MemoryError):
        what = "the answer is not from an agent of this version"
        mend = "check the socket, or restart the agent after an upgrade"
        raise ConnectionLost(str(socket), what, mend) from None
    raise refused


def _not_connected(error: OSError) -> tuple[str, str]:
    """Return why there is no connection, and the mend."""
    start = "start the agent (systemctl start iokeel)"
    match error.errno:
        case errno.ENOENT:
            return "is not there", f"{start}, or give its socket by --socket"
        case errno.ECONNREFUSED:
            return "no agent serves it", start
        case errno.EACCES | errno.EPERM:
            return "permission denied", "run as root or as a member of the socket's group"
    return reason(error), "give the agent's socket by --socket"


def _request(socket: Path, path: str, query: _Query, timeout_s: float) -> tuple[int, bytes]:
    with closing(_UnixConnection(socket, timeout_s)) as connection:
        connection.request("GET", f"{API}/{path}?{urlencode(query)}")
        response = connection.getresponse()
        return response.status, response.read()


class _UnixConnection(HTTPConnection):
    """HTTP on a unix socket. aiohttp can do that as well, but takes 0.2 s to import."""

    def __init__(self, socket: Path, timeout_s: float) -> None:
        super().__init__("agent", timeout=timeout_s)
        self._socket = socket

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket))
