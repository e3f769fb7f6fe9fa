"""The agent's HTTP API on its unix socket, and /metrics on a loopback port too."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import msgspec
from aiohttp import web
from pydantic import BaseModel

from iokeel.config.settings import Address, AgentConfig
from iokeel.core.counters import DriveId
from iokeel.core.policy import DrivePolicy
from iokeel.errors import ConfigError, IokeelError, PolicyError
from iokeel.policy_xml.policy import parse_policy
from iokeel.report.explain import explain
from iokeel.report.prometheus import CONTENT_TYPE, Metrics
from iokeel.report.records import ErrorReport, Refusal
from iokeel.report.snapshot import TakeSnapshot
from iokeel.report.to_records import storage_reports, vm_reports
from iokeel.words.os_errors import reason
from iokeel.words.quoting import shown, shown_path

log = logging.getLogger(__name__)
_SOCKET_MODE = 0o660
# At a stop, clients have this long to take their answers.
_SHUTDOWN_S = 2.0
# The longest message of a hook: twice the longest XML (policy_xml/xml.py), for JSON's escapes.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Api:
    """What the API needs of the agent.

    classes: the policy classes by name. announce: called with the name of a VM that a hook says
    comes, goes or changes.
    """

    classes: Mapping[str, DrivePolicy]
    take_snapshot: TakeSnapshot
    announce: Callable[[str], None]
    metrics: Metrics


_API = web.AppKey("api", Api)


class HookMessage(msgspec.Struct):
    """What the libvirt hook sends: a domain's name, the operation, and at prepare its XML."""

    domain: str
    operation: str
    xml: str | None = None


HOOK_MESSAGE = msgspec.json.Decoder(HookMessage)


@contextlib.asynccontextmanager
async def serve(api: Api, config: AgentConfig) -> AsyncIterator[None]:
    """Serve the API while the context lasts.

    Raises ConfigError if the socket or the port can't be served.
    """
    public = [web.get("/metrics", _metrics)]
    private = [
        web.get("/v1/vms", _vms),
        web.get("/v1/storages", _storages),
        web.get("/v1/why", _why),
        web.post("/v1/hook", _hook),
    ]
    async with contextlib.AsyncExitStack() as stack:
        runner = await _runner(stack, api, [*private, *public])
        await _on_socket(stack, runner, config.socket)
        if config.metrics_address is not None:
            runner = await _runner(stack, api, public)
            await _on_port(runner, config.metrics_address)
        yield


async def _runner(
    stack: contextlib.AsyncExitStack, api: Api, routes: Iterable[web.AbstractRouteDef]
) -> web.AppRunner:
    app = web.Application(client_max_size=_MOST_BYTES)
    app[_API] = api
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
        what = f"can't be served, {reason(error)}"
        mend = "set [agent] socket to a path in a folder of the agent's own"
        raise ConfigError(str(path), what, mend) from None
    stack.callback(path.unlink, missing_ok=True)


async def _on_port(runner: web.AppRunner, address: Address) -> None:
    try:
        await web.TCPSite(runner, *address).start()
    except OSError as error:
        what = f"{address.host} port {address.port} can't be served, {reason(error)}"
        raise ConfigError("[agent] metrics_address", what, "give a free port") from None


def _clear(path: Path) -> None:
    """Remove a socket that nobody serves any more, and nothing else.

    Raises ConfigError if something else is in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise ConfigError(str(path), "exists and is not a socket", "set another [agent] socket")
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
        except BlockingIOError:  # it is served, and its queue of clients is full
            pass
    raise ConfigError(str(path), "another process serves it", "stop that agent first")


async def _vms(request: web.Request) -> web.Response:
    return _list(vm_reports(request.app[_API].take_snapshot()))


async def _storages(request: web.Request) -> web.Response:
    return _list(storage_reports(request.app[_API].take_snapshot(domains=())))


async def _why(request: web.Request) -> web.Response:
    domain, target = request.query.get("domain", ""), request.query.get("target")
    snapshot = request.app[_API].take_snapshot(domains=(domain,))
    vm = snapshot.vms.get(domain)
    if vm is None:
        error = IokeelError(domain, "no such running VM", "see `iokeel stats`")
        return _refused(HTTPStatus.NOT_FOUND, error)
    if target is not None and target not in vm.drives:
        drives = ", ".join(vm.drives) or "none"
        error = IokeelError(domain, f"has no drive {target}", f"it has {drives}")
        return _refused(HTTPStatus.NOT_FOUND, error)
    targets = vm.drives if target is None else (target,)
    return web.json_response({t: explain(snapshot, DriveId(domain, t)) for t in targets})


async def _hook(request: web.Request) -> web.Response:
    """Answer a hook. It shows the error to a person and needs no more than its text."""
    api = request.app[_API]
    try:
        message = HOOK_MESSAGE.decode(await request.read())
    except (msgspec.DecodeError, ValueError, RecursionError) as wrong:  # ValueError: not UTF-8
        error = IokeelError("hook message", shown_path(wrong))
        return _refused(HTTPStatus.BAD_REQUEST, error)
    log.debug("hook: %s of domain %s", shown(message.operation), shown(message.domain))
    if message.xml is not None:
        try:
            parse_policy(message.xml, api.classes, f"domain {shown_path(message.domain)}")
        except PolicyError as policy_error:
            api.metrics.errors["policy"] += 1
            log.warning("hook: %s", policy_error)
            return web.json_response({"ok": False, "error": str(policy_error)})
    api.announce(message.domain)
    return web.json_response({"ok": True})


async def _metrics(request: web.Request) -> web.Response:
    api = request.app[_API]
    body = await api.metrics.text(api.take_snapshot())
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _list(reports: Iterable[BaseModel]) -> web.Response:
    return web.json_response(text="[" + ",".join(r.model_dump_json() for r in reports) + "]")


def _refused(status: HTTPStatus, error: IokeelError) -> web.Response:
    refusal = Refusal(error=ErrorReport.of(error))
    return web.json_response(text=refusal.model_dump_json(), status=status)
