"""The agent's HTTP API on its unix socket, and /metrics on a port too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import sqlite3
import stat
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from iokeel import __version__
from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig
from iokeel.core.values.policy import MOST_IOPS
from iokeel.errors import ConfigError, IokeelError, PolicyError, TargetsMissing
from iokeel.host.process import peer
from iokeel.libvirt_xml.ceiling import ceiling_of
from iokeel.libvirt_xml.policy import check_targets, parse_policy
from iokeel.report.explain import explain
from iokeel.report.history import History
from iokeel.report.metrics.prometheus import CONTENT_TYPE, Metrics
from iokeel.report.promises import policy_report, settings_report, waits_of
from iokeel.report.recommend import limits_of, recommend
from iokeel.report.records import (
    API,
    API_VERSION,
    SERIES,
    SPAN_S,
    WEEK_S,
    ErrorReport,
    HistoryReport,
    HookReport,
    HostReport,
    PolicyReport,
    RecommendReport,
    Refusal,
    RulesReport,
    SettingsReport,
    StorageReport,
    VmReport,
    WeeksReport,
)
from iokeel.report.rules import rules_report
from iokeel.report.snapshot import Snapshot, TakeSnapshot
from iokeel.report.weeks import weeks_report
from iokeel.store.weeks import HOUR_S, Hour
from iokeel.words.quoting import did_you_mean, reason, shown, shown_path

# Anybody on the host may ask for metrics without pause. They may take this part of the time.
_METRICS_RATIO = 0.1
_LEAST_S = 1.0
log = logging.getLogger(__name__)
# aiohttp would log each malformed request with a traceback. Faults of our own are logged below.
_PEERS = log.getChild("peers")
_PEERS.setLevel(logging.CRITICAL)
_SOCKET_MODE = 0o660
# A socket that can't be served is tried again after this.
_SERVE_AGAIN_S = 60.0
# At a stop, clients have this long to take their answers.
_SHUTDOWN_S = 2.0
# A connection without a request is closed after this. Prometheus asks every 15 s.
_IDLE_S = 30.0
_ELSEWHERE = "set [agent] socket to a path in a folder of the agent's own"
# The longest message of a hook: twice the longest XML (libvirt_xml/xml.py), for JSON's escapes.
_MOST_BYTES = 4 << 20
# The histories of so many drives are made between two turns of the event loop: a few ms.
_DRIVES_AT_ONCE = 50


class OnceALook:
    """An answer as JSON, kept until the agent has looked at its drives again.

    Pages in Cockpit ask for the host every two seconds: if five are open, four find it made.
    """

    def __init__(self, looks: Callable[[], int], make: Callable[[], msgspec.Struct]) -> None:
        """looks: returns how often the agent has looked so far. make: makes the answer."""
        self._looks, self._make = looks, make
        self._at = -1
        self._made = b""

    def get(self) -> bytes:
        """Return the answer, made now if there is none since the last look."""
        if (looks := self._looks()) != self._at:
            self._at, self._made = looks, msgspec.json.encode(self._make())
        return self._made


class OnceAWhile:
    """Metrics, kept for a second, or for longer if they take long to make."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        self._make = make
        self._making: asyncio.Task[bytes] | None = None
        self._again_at = 0.0

    async def get(self) -> bytes:
        """Return the metrics, made now if nobody has asked for a while."""
        if self._making is None or (self._making.done() and time.monotonic() >= self._again_at):
            self._making = asyncio.create_task(self._made())
        return await asyncio.shield(self._making)

    async def _made(self) -> bytes:
        began = time.monotonic()
        try:
            return await self._make()
        finally:
            ended = time.monotonic()
            self._again_at = ended + max(_LEAST_S, (ended - began) / _METRICS_RATIO)


@dataclass(frozen=True, slots=True)
class Api:
    """What the API needs of the agent.

    config: returns the configuration that is in force. announce: called with the name of a VM that
    a hook says comes, goes or changes. looks: returns how often the agent has looked at its drives.
    hours: yields hours of the history of weeks, from one to before another; for a thread.
    """

    config: Callable[[], Config]
    take_snapshot: TakeSnapshot
    announce: Callable[[str], None]
    metrics: Metrics
    history: History
    looks: Callable[[], int]
    hours: Callable[[int, int], Iterator[Hour]] = lambda since, until: iter(())


_API = web.AppKey("api", Api)
_HOST = web.AppKey("host", OnceALook)
# One question to the history of weeks at a time: each takes a thread for seconds.
_READING = web.AppKey("reading", asyncio.Lock)
_METRICS = web.AppKey("metrics", OnceAWhile)
# The connections whose requests are being answered, the longest one first.
_BUSY = web.AppKey("busy", dict[asyncio.BaseProtocol, None])


class _Served(ConfigError):
    """Another process serves the agent's socket: an agent, as a rule. Two would be at odds."""


class HookMessage(msgspec.Struct):
    """What the libvirt hook sends: a domain's name, the operation, and at prepare its XML."""

    domain: str
    operation: str
    xml: str | None = None


HOOK_MESSAGE = msgspec.json.Decoder(HookMessage)


@contextlib.asynccontextmanager
async def serve(api: Api, config: AgentConfig) -> AsyncIterator[None]:
    """Serve the API while the context lasts.

    If the socket or the port can't be served, the log says so, and it is tried again each minute.
    Raises ConfigError if another process serves the socket.
    """
    public = [web.get("/metrics", _shared_metrics)]
    private = [web.route(route.method, route.path, route.handler) for route in ROUTES]
    private.append(web.route("*", f"/v{{other:(?!{API_VERSION}/).*}}", _of_another_version))
    async with contextlib.AsyncExitStack() as stack:
        runner = await _runner(stack, api, private)
        await _opened(stack, partial(_open, stack, runner, config.socket), "socket", api.metrics)
        if (address := config.metrics_address) is not None:
            from iokeel.report.port import Port

            port = Port(address, config.metrics_web_config, api.metrics)
            runner = await _runner(stack, api, public, port.asked)
            server, busy = runner.server, runner.app[_BUSY]
            assert server is not None
            opens = partial(port.open, stack, server, busy)
            await _opened(stack, opens, "metrics_address", api.metrics)
        yield


async def _runner(
    stack: contextlib.AsyncExitStack,
    api: Api,
    routes: Iterable[web.AbstractRouteDef],
    *middlewares: Middleware,
) -> web.AppRunner:
    app = web.Application(client_max_size=_MOST_BYTES, middlewares=[_answered, *middlewares])
    app[_API] = api
    app[_METRICS], app[_BUSY] = OnceAWhile(lambda: _made(api)), {}
    app[_READING] = asyncio.Lock()
    app[_HOST] = OnceALook(api.looks, lambda: api.take_snapshot().host_report())
    app.add_routes(routes)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_PEERS,
        shutdown_timeout=_SHUTDOWN_S,
        keepalive_timeout=_IDLE_S,
        handler_cancellation=bool(middlewares),  # no password waits longer than who sent it
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def _opened(
    stack: contextlib.AsyncExitStack,
    opens: Callable[[], Awaitable[None]],
    key: str,
    metrics: Metrics,
) -> None:
    """Open the socket or the port now, or in a task that tries it again until it can be served."""

    async def try_again(told: str) -> None:
        while True:
            await asyncio.sleep(_SERVE_AGAIN_S)
            try:
                await opens()
            except ConfigError as error:
                metrics.errors["config"] += 1
                if str(error) != told:
                    log.error("%s", error)
                    told = str(error)
            else:
                log.info("[agent] %s: is served now", key)
                return

    try:
        await opens()
    except _Served:
        raise
    except ConfigError as error:  # guests need limits all the same
        metrics.errors["config"] += 1
        log.error("%s", error)
        task = asyncio.create_task(try_again(str(error)))
        stack.callback(task.cancel)


async def _open(stack: contextlib.AsyncExitStack, runner: web.AppRunner, path: Path) -> None:
    """Serve the socket until the stack ends. Raises ConfigError."""
    assert runner.server is not None
    try:
        _clear(path)
        umask = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            served = await asyncio.get_running_loop().create_unix_server(runner.server, path)
        finally:
            os.umask(umask)
    except OSError as error:
        raise ConfigError(str(path), f"can't be served, {reason(error)}", _ELSEWHERE) from None
    stack.callback(path.unlink, missing_ok=True)
    stack.callback(served.close)


def check_socket(path: Path) -> None:
    """Raise ConfigError if something else is in the place of a socket or of its folder."""
    with contextlib.suppress(OSError):  # the agent's user may see more
        above = next(folder for folder in path.parents if os.path.lexists(folder))
        if not above.is_dir():
            raise ConfigError(str(path), f"can't be served, {above} is not a folder", _ELSEWHERE)
        _is_there(path)


def _is_there(path: Path) -> bool:
    """Return whether there is a socket. Raises ConfigError if it is something else, or OSError."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(there.st_mode):
        raise ConfigError(str(path), "exists and is not a socket", "set another [agent] socket")
    return True


def _clear(path: Path) -> None:
    """Remove a socket that nobody serves any more, and nothing else.

    Raises ConfigError if something else is in its place, or OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _is_there(path):
        return
    if path.lstat().st_uid != os.geteuid():
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
    raise _Served(str(path), "another process serves it", "stop that agent first")


@web.middleware
async def _answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request also if that fails by a fault of the agent's own, and count the fault."""
    busy = request.app[_BUSY]
    busy[request.protocol] = None
    try:
        response = await handler(request)
        await response.prepare(request)
        await response.write_eof()  # until then it is busy
        return response
    except (web.HTTPException, web.RequestPayloadError, ConnectionError):  # the client's fault
        raise
    except Exception:
        request.app[_API].metrics.errors["internal"] += 1
        log.exception("%s: internal error, please report it", request.path)
        mend = "report what `journalctl -u iokeel` says"
        error = IokeelError("the agent", "can't answer this because of a fault", mend)
        return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, error)
    finally:
        busy.pop(request.protocol, None)


async def _host(request: web.Request) -> web.Response:
    """The host at one moment: its VMs, its storages, its part in the fleet."""
    return _body(request.app[_HOST].get())


async def _vms(request: web.Request) -> web.Response:
    """All running VMs with their drives, by name."""
    return _json(request.app[_API].take_snapshot().vm_reports())


async def _storages(request: web.Request) -> web.Response:
    """What several drives share."""
    return _json(request.app[_API].take_snapshot(domains=()).storage_reports())


async def _why(request: web.Request) -> web.Response:
    """The steps of the last decision on each drive of a VM, or on one, in words, by target."""
    domain, target = request.query.get("domain", ""), request.query.get("target")
    snapshot = request.app[_API].take_snapshot(domains=(domain,))
    if (error := _absent(snapshot, domain, target)) is not None:
        return _refused(HTTPStatus.NOT_FOUND, error)
    drives = [drive for drive in snapshot.drives if target is None or drive.target == target]
    return web.json_response({drive.target: explain(snapshot, drive) for drive in drives})


async def _history(request: web.Request) -> web.Response:
    """The last ten minutes of all drives, of a VM's, or of one.

    Those of a VM or of one drive come with the changes of their limits.
    """
    api, query = request.app[_API], request.query
    domain, target = query.get("domain"), query.get("target")
    only = None
    if domain is not None:
        snapshot = api.take_snapshot(domains=(domain,))
        if (error := _absent(snapshot, domain, target)) is not None:
            return _refused(HTTPStatus.NOT_FOUND, error)
        only = [drive for drive in snapshot.drives if target is None or drive.target == target]
    try:
        seconds, series = _seconds(query.get("seconds")), query.getall("series", SERIES)
        for name in series:
            if name not in SERIES:
                raise IokeelError(
                    "series", f"{shown(name)} is not known", did_you_mean(name, SERIES)
                )
    except IokeelError as wrong:
        return _refused(HTTPStatus.BAD_REQUEST, wrong)
    now_ns = time.monotonic_ns()
    span = api.history.span(now_ns, seconds)
    drives = []
    for number, drive in enumerate(span.drives if only is None else only):
        report = span.report(drive, series)
        if only is not None:
            report.orders = api.history.orders(drive, now_ns, seconds)
        drives.append(report)
        if number % _DRIVES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return _json(HistoryReport(ages_s=span.ages_s, drives=drives))


def _seconds(text: str | None) -> float:
    """Return a span of the history; the whole if none is given. Raises IokeelError."""
    with contextlib.suppress(ValueError):
        seconds = SPAN_S if text is None else float(text)
        if 0 < seconds <= SPAN_S:
            return seconds
    raise IokeelError("seconds", f"is {shown(text)}", f"give a number from 1 to {SPAN_S}")


def _absent(snapshot: Snapshot, domain: str, target: str | None) -> IokeelError | None:
    """Return the error if a snapshot of a VM doesn't have it, or its drive."""
    if domain not in snapshot.vms:
        return IokeelError(shown_path(domain), "no such running VM", "see `iokeel stats`")
    targets = [drive.target for drive in snapshot.drives]
    if target is not None and target not in targets:
        drives = ", ".join(map(shown_path, targets)) or "none"
        what = f"has no drive {shown_path(target)}"
        return IokeelError(shown_path(domain), what, f"it has {drives}")
    return None


async def _recommend(request: web.Request) -> web.Response:
    """Answer with what drives did in the last `seconds`, and for how long limits had held them.

    limit: that one in place of the classes'. domain: only these VMs.
    """
    api, query = request.app[_API], request.query
    try:
        classes = limits_of(api.config().classes)
        limit = query.get("limit")
        limits = classes if limit is None else {limit: _whole("limit", limit)}
    except IokeelError as wrong:
        return _refused(HTTPStatus.BAD_REQUEST, wrong)
    domains = query.getall("domain", ())
    return await _of_weeks(request, lambda hours, *_: recommend(hours, limits, domains))


async def _report(request: web.Request) -> web.Response:
    """Answer with the report of the last `seconds`."""
    return await _of_weeks(request, weeks_report)


async def _of_weeks(
    request: web.Request, make: Callable[[Iterator[Hour], int, int], msgspec.Struct]
) -> web.Response:
    """Answer with what is made in a thread of the hours of the last `seconds`.

    make: also gets the first hour, and the one after the last.
    """
    api = request.app[_API]
    try:
        seconds = _whole("seconds", request.query.get("seconds", str(WEEK_S)))
    except IokeelError as wrong:
        return _refused(HTTPStatus.BAD_REQUEST, wrong)
    if not api.config().history.keep_days:
        mend = "set keep_days of [history], and wait for some hours"
        return _refused(HTTPStatus.NOT_FOUND, IokeelError("history", "isn't recorded", mend))
    now = int(time.time()) // HOUR_S + 1
    since = now - ceil(seconds / HOUR_S)
    async with request.app[_READING]:
        try:
            found = await asyncio.to_thread(make, api.hours(since, now), since, now)
        except sqlite3.Error as error:
            what, mend = f"can't be read, {error}", "see what journalctl -u iokeel says of it"
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, IokeelError("history", what, mend))
    return _json(found)


def _whole(name: str, text: str) -> int:
    """Return a whole number from 1 to MOST_IOPS. Raises IokeelError."""
    if re.fullmatch("[0-9]{1,9}", text, re.ASCII) and 1 <= int(text) <= MOST_IOPS:
        return int(text)
    mend = f"give a whole number from 1 to {MOST_IOPS}"
    raise IokeelError(name, f"is {shown(text)}", mend)


async def _hook(request: web.Request) -> web.Response:
    """What libvirt's hook tells, as root: a domain comes, goes or changes.

    The hook shows the error to a person and needs no more than its text.
    """
    api = request.app[_API]
    if (user := _user_of(request)) not in (0, os.geteuid()):
        mend = "run it as root, as libvirtd does"
        return _refused(
            HTTPStatus.FORBIDDEN,
            IokeelError("hook message", f"from user {user}, who isn't root", mend),
        )
    try:
        message = HOOK_MESSAGE.decode(await request.read())
    except (ValueError, RecursionError) as wrong:
        error = IokeelError("hook message", shown_path(wrong))
        return _refused(HTTPStatus.BAD_REQUEST, error)
    log.debug("hook: %s of domain %s", shown(message.operation), shown(message.domain))
    if message.xml is not None:
        try:
            parse_policy(message.xml, api.config().classes, f"domain {shown_path(message.domain)}")
        except PolicyError as policy_error:
            api.metrics.errors["policy"] += 1
            log.warning("hook: %s", policy_error)
            return _json(HookReport(ok=False, error=str(policy_error)))
    api.announce(message.domain)
    return _json(HookReport(ok=True))


def _user_of(request: web.Request) -> int | None:
    """Return the user id of who asks over the socket; None if the connection has ended."""
    connected = request.get_extra_info("socket")
    return None if connected is None else peer(connected).uid


async def _settings(request: web.Request) -> web.Response:
    """The settings that give a policy its meaning, and the API's version."""
    return _json(settings_report(request.app[_API].config()))


async def _rules(request: web.Request) -> web.Response:
    """The rules that are in force, and the guests as rules see them."""
    api = request.app[_API]
    return _json(rules_report(api.config().rules, api.take_snapshot()))


async def _policy(request: web.Request) -> web.Response:
    """Whether a policy, as XML, could be used for a VM, and its promises. Nothing changes."""
    api, domain = request.app[_API], request.query.get("domain", "")
    snapshot = api.take_snapshot(domains=(domain,))
    if (absent := _absent(snapshot, domain, None)) is not None:
        return _refused(HTTPStatus.NOT_FOUND, absent)
    targets = [drive.target for drive in snapshot.drives]
    xml, config = await request.read(), api.config()
    where = f"domain {shown_path(domain)}"
    try:
        policy = parse_policy(xml, config.classes, where)
    except PolicyError as error:
        return _json(PolicyReport(error=ErrorReport.of(error)))
    more = None
    if (ceiling := ceiling_of(config.ceilings, domain)) is not None:
        policy, more = ceiling.hold(policy, targets, where)
    report = policy_report(policy, targets)
    report.warning = None if more is None else ErrorReport.of(more)
    if policy is not None:
        on = {drive.target: drive.storage for drive in snapshot.drives.values()}
        report.large_waits_s, report.long_waits = waits_of(policy, targets, config, on)
        try:
            check_targets(policy, targets, where)
        except TargetsMissing as missing:
            # The agent keeps only drives that can be limited.
            what = f"{missing.what}, or it can't be limited"
            report.warning = ErrorReport(where=missing.where, what=what, mend=missing.mend)
    return _json(report)


async def _of_another_version(request: web.Request) -> web.Response:
    """Refuse what is asked by another version of the API."""
    what = f"answers by version {API_VERSION} of the API, and {shown(request.path)} is of another"
    mend = "restart the agent after an upgrade; else ask by the command, or page, of its version"
    error = IokeelError(f"the agent, iokeel {__version__}", what, mend)
    return _refused(HTTPStatus.NOT_FOUND, error)


async def _metrics(request: web.Request) -> web.Response:
    """The metrics of docs/metrics.md, in Prometheus' text format."""
    return _text(await _made(request.app[_API]))


async def _shared_metrics(request: web.Request) -> web.Response:
    return _text(await request.app[_METRICS].get())


async def _made(api: Api) -> bytes:
    return await api.metrics.text(api.take_snapshot())


def _text(metrics: bytes) -> web.Response:
    return web.Response(body=metrics, headers={"Content-Type": CONTENT_TYPE})


def _json(
    answer: msgspec.Struct | Sequence[msgspec.Struct], status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    return _body(msgspec.json.encode(answer), status)


def _body(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(body=body, content_type="application/json", charset="utf-8", status=status)


def _refused(status: HTTPStatus, error: IokeelError) -> web.Response:
    return _json(Refusal(error=ErrorReport.of(error)), status)


class Route(NamedTuple):
    """A path of the API.

    handler: its docstring says what it answers. answer: the type of that; None if it isn't JSON.
    """

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    answer: object


ROUTES = (
    Route("GET", f"{API}/host", _host, HostReport),
    Route("GET", f"{API}/vms", _vms, list[VmReport]),
    Route("GET", f"{API}/storages", _storages, list[StorageReport]),
    Route("GET", f"{API}/why", _why, dict[str, list[str]]),
    Route("GET", f"{API}/history", _history, HistoryReport),
    Route("GET", f"{API}/settings", _settings, SettingsReport),
    Route("GET", f"{API}/rules", _rules, RulesReport),
    Route("GET", f"{API}/recommend", _recommend, RecommendReport),
    Route("GET", f"{API}/report", _report, WeeksReport),
    Route("POST", f"{API}/policy", _policy, PolicyReport),
    Route("POST", f"{API}/hook", _hook, HookReport),
    Route("GET", "/metrics", _metrics, None),
)
