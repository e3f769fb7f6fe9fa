"""The agent's HTTP API on its unix socket, and /metrics on a loopback port too."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from iokeel.config.settings import Address, Config
from iokeel.core.counters import DriveId
from iokeel.errors import ConfigError, PolicyError
from iokeel.policy_xml.policy import parse_policy
from iokeel.report.explain import explain
from iokeel.report.prometheus import CONTENT_TYPE
from iokeel.report.records import storage_reports, vm_reports
from iokeel.words.quoting import shown

log = logging.getLogger(__name__)
_SOCKET_MODE = 0o660
# How long a stop waits for clients that are being answered.
_SHUTDOWN_S = 2.0
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
    shown_to_all = [web.get("/metrics", _metrics)]
    routes = [
        web.get("/v1/vms", _vms),
        web.get("/v1/storages", _storages),
        web.get("/v1/why", _why),
        web.post("/v1/hook", _hook),
    ]
    async with contextlib.AsyncExitStack() as stack:
        runner = await _runner(stack, agent, [*routes, *shown_to_all])
        await _on_socket(stack, runner, config.agent.socket)
        if config.agent.metrics_address is not None:
            runner = await _runner(stack, agent, shown_to_all)
            await _on_port(runner, config.agent.metrics_address)
        yield


async def _runner(
    stack: contextlib.AsyncExitStack, agent: Any, routes: Iterable[web.AbstractRouteDef]
) -> web.AppRunner:
    app = web.Application(client_max_size=_MOST_BYTES)
    app[_AGENT] = agent
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def _on_socket(stack: contextlib.AsyncExitStack, runner: web.AppRunner, path: Path) -> None:
    try:
        _clear(path)
        umask = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            await web.UnixSite(runner, str(path)).start()
        finally:
            os.umask(umask)
    except OSError as error:
        what = f"can't be served, {_reason(error)}"
        mend = "set [agent] socket to a path in a folder of the agent's own"
        raise ConfigError(str(path), what, mend) from None
    stack.callback(path.unlink, missing_ok=True)


async def _on_port(runner: web.AppRunner, address: Address) -> None:
    try:
        await web.TCPSite(runner, *address).start()
    except OSError as error:
        what = f"{address.host} port {address.port} can't be served, {_reason(error)}"
        raise ConfigError("[agent] metrics_address", what, "give a port that is free") from None


def _clear(path: Path) -> None:
    """Make way for the socket: remove one that nobody serves any more, and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise ConfigError(str(path), "is there and is no socket", "set another [agent] socket")
    if there.st_uid != os.geteuid():
        raise ConfigError(
            str(path), "belongs to another user", "remove it or set another [agent] socket"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # so many are waiting that no more are let in
            pass
    raise ConfigError(str(path), "another process serves it", "stop that agent first")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


async def _vms(request: web.Request) -> web.Response:
    return _list(vm_reports(request.app[_AGENT]))


async def _storages(request: web.Request) -> web.Response:
    return _list(storage_reports(request.app[_AGENT]))


def _list(reports: Iterable[BaseModel]) -> web.Response:
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
        wrong = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in wrong["loc"]) or "the body"
        return _error(400, f"not a hook's message: {where}: {wrong['msg']}")
    log.debug("hook: %s of domain %s", shown(message.operation), shown(message.domain))
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
