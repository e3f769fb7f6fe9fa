"""The command's side of the agent's API."""

from __future__ import annotations

import asyncio
import errno
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import TypeAdapter

from iokeel.errors import ConnectionLost
from iokeel.report.records import Refusal, StorageReport, VmReport
from iokeel.words.os_errors import reason

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_VMS = TypeAdapter(list[VmReport])
_STORAGES = TypeAdapter(list[StorageReport])
_STEPS = TypeAdapter(dict[str, list[str]])
T = TypeVar("T")


def vms(socket: Path) -> list[VmReport]:
    """Return the reports of all running VMs. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "/v1/vms", {}, _VMS)


def storages(socket: Path) -> list[StorageReport]:
    """Return the reports of all storages. Raises IokeelError, ConnectionLost."""
    return _ask(socket, "/v1/storages", {}, _STORAGES)


def why(socket: Path, domain: str, target: str | None) -> dict[str, list[str]]:
    """Return the steps of the last decision on a drive, or on each of a VM's, by target.

    Raises IokeelError, ConnectionLost.
    """
    query = {"domain": domain} | ({"target": target} if target is not None else {})
    return _ask(socket, "/v1/why", query, _STEPS)


def _ask(socket: Path, path: str, query: dict[str, str], kind: TypeAdapter[T]) -> T:
    try:
        status, body = asyncio.run(_request(socket, path, query))
        if status == HTTPStatus.OK:
            return kind.validate_json(body)
        refusal = Refusal.model_validate_json(body)
    except (TimeoutError, aiohttp.ServerTimeoutError):
        raise ConnectionLost(str(socket), "the agent doesn't answer", "see its log") from None
    except aiohttp.ClientConnectorError as error:
        raise ConnectionLost(str(socket), *_not_connected(error.os_error)) from None
    except OSError as error:
        raise ConnectionLost(str(socket), *_not_connected(error)) from None
    except aiohttp.ServerDisconnectedError:
        what = "the agent ended before it had answered"
        raise ConnectionLost(str(socket), what, "see its log") from None
    except (aiohttp.ClientError, ValueError):
        what = "the answer is not from an agent of this version"
        mend = "check the socket, or restart the agent after an upgrade"
        raise ConnectionLost(str(socket), what, mend) from None
    raise refusal.error.error()


def _not_connected(error: OSError) -> tuple[str, str]:
    """Return why there is no connection, and the mend."""
    match error.errno:
        case errno.ENOENT:
            return "is not there", "start `iokeel agent`, or give its socket by --socket"
        case errno.ECONNREFUSED:
            return "nobody serves it", "start `iokeel agent`"
        case errno.EACCES | errno.EPERM:
            return "permission denied", "run as root or as a member of the socket's group"
    return reason(error), "give the agent's socket by --socket"


async def _request(socket: Path, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
        session.get(f"http://agent{path}", params=query) as response,
    ):
        return response.status, await response.read()
