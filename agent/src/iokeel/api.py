"""The agent's HTTP API on its unix socket, and /metrics on a loopback port too."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from iokeel.config import Config
from iokeel.errors import ConfigError, PolicyError
from iokeel.explain import explain
from iokeel.metadata import parse_policy
from iokeel.metrics import CONTENT_TYPE
from iokeel.report import vm_reports
from iokeel.workload import DriveId

log = logging.getLogger(__name__)
_SOCKET_MODE = 0o660
# The largest domain XML that the hook may send.
_MOST_BYTES = 16 << 20
_AGENT: web.AppKey[Any] = web.AppKey("agent")


class HookMessage(BaseModel):
    """What the libvirt hook tells: a domain's name, the operation, and at prepare its XML."""

    domain: str
    operation: str
    xml: str | None = None


@contextlib.asynccontextmanager
async def serve(agent: Any, config: Config) -> AsyncIterator[None]:
    """Serve an agent's API while the context lasts. Raises ConfigError where it can't."""
    async with contextlib.AsyncExitStack() as stack:
        runner = await _runner(stack, agent)
        for route in (web.get("/v1/vms", _vms), web.get("/v1/why", _why)):
            runner.app.router.add_routes([route])
        runner.app.router.add_post("/v1/hook", _hook)
        await _serve_socket(stack, runner, config.agent.socket)
        if config.agent.metrics_address is not None:
            await _serve_metrics(stack, agent, config.agent.metrics_address)
        yield


async def _serve_socket(
    stack: contextlib.AsyncExitStack, runner: web.AppRunner, path: Path
) -> None:
    try:
        _clear(path)
        umask = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            await runner.setup()
            await web.UnixSite(runner, str(path)).start()
        finally:
            os.umask(umask)
    except OSError as error:
        raise ConfigError(
            str(path),
            f"can't be served: {os.strerror(error.errno) if error.errno else error}",
            "set [agent] socket to a path in a folder of the agent's own",
        ) from None
    stack.callback(path.unlink, missing_ok=True)


async def _vms(request: web.Request) -> web.Response:
    reports = vm_reports(request.app[_AGENT])
    return web.json_response(text="[" + ",".join(r.model_dump_json() for r in reports) + "]")


async def _why(request: web.Request) -> web.Response:
    agent = request.app[_AGENT]
    domain, target = request.query.get("domain", ""), request.query.get("target")
    vm = agent.vms().get(domain)
    if vm is None:
        return _error(404, f"{domain}: no such running VM; see `iokeel stats`")
    if target is not None and target not in vm.drives:
        drives = ", ".join(sorted(vm.drives)) or "none"
        return _error(404, f"{domain}: has no drive {target}; it has {drives}")
    lines = {
        name: explain(DriveId(domain, name), vm, agent)
        for name in ([target] if target else sorted(vm.drives))
    }
    return web.json_response(lines)


async def _hook(request: web.Request) -> web.Response:
    agent = request.app[_AGENT]
    try:
        message = HookMessage.model_validate_json(await request.read())
    except ValidationError as error:
        return _error(400, f"not a hook's message: {error.errors()[0]['msg']}")
    log.debug("hook: %s %s", message.domain, message.operation)
    if message.xml is not None:
        try:
            parse_policy(message.xml, agent.config.classes, f"domain {message.domain}")
        except PolicyError as error:
            agent.metrics.errors["policy"] += 1
            log.warning("hook: %s", error)
            return web.json_response({"ok": False, "error": str(error)})
    agent.announced(message.domain)
    return web.json_response({"ok": True})


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(
        body=request.app[_AGENT].metrics.text(), headers={"Content-Type": CONTENT_TYPE}
    )


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
