"""The command's side of the agent's API."""

from __future__ import annotations

import asyncio
import errno
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import TypeAdapter

from iokeel.errors import ConnectionLost, IokeelError
from iokeel.report.records import StorageReport, VmReport

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_VMS = TypeAdapter(list[VmReport])
_STORAGES = TypeAdapter(list[StorageReport])
_STEPS = TypeAdapter(dict[str, list[str]])
_ERROR = TypeAdapter(dict[str, str])
T = TypeVar("T")


def vms(socket: Path) -> list[VmReport]:
    """Return all VMs' reports. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "/v1/vms", {}, _VMS)


def storages(socket: Path) -> list[StorageReport]:
    """Return all storages' reports. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "/v1/storages", {}, _STORAGES)


def why(socket: Path, domain: str, target: str | None) -> dict[str, list[str]]:
    """Return the steps of the last decision by drive. Raises IokeelError, ConnectionLost."""
    query = {"domain": domain} | ({"target": target} if target is not None else {})
    return _ask(socket, "/v1/why", query, _STEPS)


def _ask(socket: Path, path: str, query: dict[str, str], kind: TypeAdapter[T]) -> T:
    try:
        status, body = asyncio.run(_request(socket, path, query))
        if status == HTTPStatus.OK:
            return kind.validate_json(body)
        where, _, what = _ERROR.validate_json(body)["error"].partition(": ")
    except (TimeoutError, aiohttp.ServerTimeoutError):
        raise ConnectionLost(str(socket), "the agent doesn't answer", "see its log") from None
    except aiohttp.ClientConnectorError as error:
        raise ConnectionLost(str(socket), *_not_connected(error.os_error)) from None
    except OSError as error:
        raise ConnectionLost(str(socket), *_not_connected(error)) from None
    except aiohttp.ServerDisconnectedError:
        what = "the agent ended in the middle of its answer"
        raise ConnectionLost(str(socket), what, "see its log") from None
    except (aiohttp.ClientError, KeyError, ValueError):
        what = "what answers is not this version's agent"
        raise ConnectionLost(str(socket), what, "see the agent's log, and restart it") from None
    raise IokeelError(where, what)


def _not_connected(error: OSError) -> tuple[str, str]:
    """Return why there is no connection, and the mend."""
    match error.errno:
        case errno.ENOENT:
            return "is not there", "start the agent (systemctl start iokeel), or give --socket"
        case errno.ECONNREFUSED:
            return "nobody serves it", "start the agent (systemctl start iokeel)"
        case errno.EACCES | errno.EPERM:
            return "permission denied", "run as root or in the socket's group"
    return error.strerror or str(error), "give the agent's socket by --socket"


async def _request(socket: Path, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
        session.get(f"http://agent{path}", params=query) as response,
    ):
        return response.status, await response.read()
