"""The command's side of the agent's API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import TypeAdapter

from iokeel.errors import ConnectionLost, IokeelError
from iokeel.report import VmReport

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_VMS = TypeAdapter(list[VmReport])


def vms(socket: Path) -> list[VmReport]:
    """Return all VMs' reports. Raises ConnectionLost."""
    return _VMS.validate_python(_get(socket, "/v1/vms", {}))


def why(socket: Path, domain: str, target: str | None) -> dict[str, list[str]]:
    """Return the steps of the last decision by drive. Raises IokeelError, ConnectionLost."""
    query = {"domain": domain} | ({"target": target} if target else {})
    return TypeAdapter(dict[str, list[str]]).validate_python(_get(socket, "/v1/why", query))


def _get(socket: Path, path: str, query: dict[str, str]) -> Any:
    try:
        return asyncio.run(_request(socket, path, query))
    except FileNotFoundError:
        raise _lost(socket, "is not there", "start the agent (systemctl start iokeel)") from None
    except PermissionError:
        raise _lost(socket, "permission denied", "run as root or in the socket's group") from None
    except (TimeoutError, aiohttp.ServerTimeoutError):
        raise _lost(socket, "the agent doesn't answer", "see its log") from None
    except (OSError, aiohttp.ClientError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise _lost(socket, text, "is the agent running?") from None


async def _request(socket: Path, path: str, query: dict[str, str]) -> Any:
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
        session.get(f"http://agent{path}", params=query) as response,
    ):
        answer = await response.json()
        if response.status != 200:
            raise IokeelError(*answer["error"].split(": ", 1))
        return answer


def _lost(socket: Path, what: str, mend: str) -> ConnectionLost:
    return ConnectionLost(str(socket), what, mend)
