"""etcd's members over their gateway: faults, TLS, users."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import copy
from urllib.request import urlopen

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from iokeel.config.etcd_access import Access
from iokeel.errors import ConfigError, ConnectionLost, FleetRefused, OutcomeUnknown
from iokeel.fleet.etcd import Etcd, TooMuch
from iokeel.fleet.messages import Delete, Is, Put
from iokeel.fleet.watch import Watches, changes
from testing.agents import free_port
from testing.fleet import etcd as real
from tests.edges.fleet.conftest import again

SECRET = "swordfish-and-chips"


def member_of(cluster: real.Etcd, etcd: Etcd) -> real.Member:
    """Return the member that a connection asks."""
    return next(member for member in cluster.members if member.url == etcd.member)


async def test_reads_what_was_written(etcd: Etcd, prefix: str) -> None:
    key, other = f"{prefix}a/1", f"{prefix}b"
    assert await etcd.write([Is(key, None)], [Put(key, b"\x00one"), Put(other, "ü".encode())])
    assert not await etcd.write([Is(key, None)], [Put(key, b"two")])
    assert not await etcd.write([Is(key, b"two")], [Delete(key)])
    found = await etcd.read([other, f"{prefix}c"], [f"{prefix}a/"])
    assert found.values == {key: b"\x00one", other: "ü".encode()}
    assert await etcd.write([Is(key, b"\x00one")], [Delete(key)])
    assert (await etcd.read([key])).values == {}


async def test_a_read_tells_when_it_was_asked(one_etcd: real.Etcd, prefix: str) -> None:
    times = iter([5, 7])
    async with Etcd(Access(one_etcd.urls, prefix=prefix), clock=lambda: next(times)) as etcd:
        assert [(await etcd.read(["a"])).asked_ns for _ in range(2)] == [5, 7]


async def test_keys_go_with_their_lease(etcd: Etcd, prefix: str) -> None:
    lease = await etcd.grant_lease(60)
    await etcd.write([], [Put(f"{prefix}a", b"1", lease)])
    assert await etcd.keep_lease(lease)
    await etcd.revoke_lease(lease)
    assert not await etcd.keep_lease(lease)
    assert (await etcd.read([f"{prefix}a"])).values == {}


@pytest.mark.usefixtures("own_timeout")
@pytest.mark.parametrize("fault", ["kill", "stop"])
async def test_reads_go_on_when_the_member_that_is_asked_fails(
    cluster: real.Etcd, fault: str
) -> None:
    async with Etcd(Access(cluster.urls)) as etcd:
        await again(lambda: etcd.write([], [Put("/a", b"1")]))
        member = member_of(cluster, etcd)
        getattr(member, fault)()
        found = await again(lambda: etcd.read(["/a"]))
        assert found.values == {"/a": b"1"}
        assert etcd.member != member.url


@pytest.mark.usefixtures("own_timeout")
async def test_a_write_is_never_made_twice(cluster: real.Etcd) -> None:
    async with Etcd(Access(cluster.urls)) as etcd:
        await again(lambda: etcd.write([], [Put("/a", b"1")]))
        member = member_of(cluster, etcd)
        member.stop()
        with pytest.raises(OutcomeUnknown, match="doesn't answer within 2 s"):
            await etcd.write([], [Put("/a", b"2")])
        found = await again(lambda: etcd.read(["/a"]))
        assert found.values == {"/a": b"1"}
        member.resume()


async def test_a_write_that_reached_nobody_is_made_at_the_next_member(
    one_etcd: real.Etcd, prefix: str
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with Etcd(Access((nobody, *one_etcd.urls))) as etcd:
        if etcd.member != nobody:
            etcd.give_up(etcd.member)
        assert await etcd.write([], [Put(f"{prefix}a", b"1")])
        assert etcd.member != nobody


@pytest.mark.usefixtures("own_timeout")
async def test_a_read_without_a_quorum_fails(cluster: real.Etcd) -> None:
    async with Etcd(Access(cluster.urls)) as etcd:
        await again(lambda: etcd.write([], [Put("/a", b"1")]))
        for member in cluster.members[:2]:
            member.kill()
        with pytest.raises(ConnectionLost):
            await etcd.read(["/a"])
        cluster.start(*cluster.members[:2])
        found = await again(lambda: etcd.read(["/a"]))
        assert found.values == {"/a": b"1"}


async def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Etcd(Access((url,))) as etcd:
        with pytest.raises(ConnectionLost, match="can't be reached: connection refused"):
            await etcd.read(["a"])


# TLS


@pytest.fixture(scope="module")
def tls_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Etcd]:
    folder = tmp_path_factory.mktemp("tls")
    with real.running(real.Etcd(folder / "e", tls=real.Certificates(folder))) as etcd:
        yield etcd


def tls_access(etcd: real.Etcd) -> Access:
    assert etcd.tls is not None
    certificate, key = etcd.tls.of("client")
    return Access(etcd.urls, etcd.tls.ca, certificate, key)


async def test_tls_with_a_client_certificate(tls_etcd: real.Etcd) -> None:
    async with Etcd(tls_access(tls_etcd)) as etcd:
        assert await etcd.write([], [Put("/a", b"1")])


async def test_a_wrong_ca_is_refused(tls_etcd: real.Etcd, tmp_path: Path) -> None:
    access = replace(tls_access(tls_etcd), ca=real.Certificates(tmp_path / "other").ca)
    async with Etcd(access) as etcd:
        with pytest.raises(FleetRefused, match=r"can't be trusted: .*ca has signed it"):
            await etcd.read(["/a"])


async def test_a_certificate_that_is_not_valid_any_more_is_said(tmp_path: Path) -> None:
    certificates = real.Certificates(tmp_path, days=0)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificates.of("server"))
    await asyncio.sleep(2)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Etcd(Access((url,), certificates.ca)) as etcd:
            with pytest.raises(FleetRefused, match=r"expired.*this host's clock and the"):
                await etcd.read(["/a"])


@pytest.mark.parametrize("outdated", [("ca",), ("client.crt", "client.key")])
async def test_renewed_certificates_are_taken_over(
    tls_etcd: real.Etcd, tmp_path: Path, outdated: Sequence[str]
) -> None:
    assert tls_etcd.tls is not None
    right = files_of(tls_etcd.tls)
    wrong = files_of(real.Certificates(tmp_path / "other"))
    used = {name: tmp_path / name for name in right}
    for name, path in used.items():
        copy((wrong if name in outdated else right)[name], path)
    access = Access(tls_etcd.urls, used["ca"], used["client.crt"], used["client.key"])
    async with Etcd(access) as etcd:
        with pytest.raises((ConnectionLost, FleetRefused)):
            await etcd.read(["/renewed"])
        for name, path in used.items():
            copy(right[name], path)
        with suppress(ConnectionLost, FleetRefused):  # this one finds out
            await etcd.read(["/renewed"])
        assert (await etcd.read(["/renewed"])).values == {}


def files_of(certificates: real.Certificates) -> dict[str, Path]:
    """Return the files that an agent has, by name."""
    certificate, key = certificates.of("client")
    return {"ca": certificates.ca, "client.crt": certificate, "client.key": key}


async def test_files_that_are_gone_are_told_once_and_the_next_member_is_asked(
    tls_etcd: real.Etcd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert tls_etcd.tls is not None
    used = {name: tmp_path / name for name in ("client.crt", "client.key")}
    for name, path in used.items():
        copy(files_of(tls_etcd.tls)[name], path)
    dead = f"https://127.0.0.1:{free_port()}"
    access = Access((dead, *tls_etcd.urls), tls_etcd.tls.ca, used["client.crt"], used["client.key"])
    async with Etcd(access) as etcd:
        used["client.key"].unlink()
        for _ in range(3):
            if etcd.member != dead:
                etcd.give_up(etcd.member)
            assert (await etcd.read(["/gone"])).values == {}
    (said,) = caplog.messages
    assert "client.key: can't be read: no such file" in said
    assert "certificates from before are used" in said


async def test_certificates_are_loaded_again_only_if_they_have_changed(
    tls_etcd: real.Etcd, tmp_path: Path
) -> None:
    loads = 0

    class Counted(Access):
        def tls(self) -> ssl.SSLContext | None:
            nonlocal loads
            loads += 1
            return super().tls()

    assert tls_etcd.tls is not None
    ca = tmp_path / "ca"
    copy(tls_etcd.tls.ca, ca)
    async with Etcd(Counted((f"https://127.0.0.1:{free_port()}",), ca)) as etcd:
        for expected in (1, 2):
            for _ in range(3):
                with pytest.raises(ConnectionLost):
                    await etcd.read(["/a"])
            assert loads == expected
            os.utime(ca, (expected, expected))


async def test_etcd_refuses_a_client_without_a_certificate(tls_etcd: real.Etcd) -> None:
    async with Etcd(replace(tls_access(tls_etcd), certificate=None, key=None)) as etcd:
        with pytest.raises(ConnectionLost, match=r"certificate required|bad certificate|ended"):
            await etcd.read(["/a"])


async def test_a_server_certificate_that_is_not_for_clients_is_said(tmp_path: Path) -> None:
    certificates = real.Certificates(tmp_path / "tls", server_usage="serverAuth")
    with real.running(real.Etcd(tmp_path / "e", tls=certificates)) as there:
        async with Etcd(tls_access(there)) as etcd:
            with pytest.raises(ConnectionLost, match="has the usage clientAuth, too"):
                await etcd.read(["/a"])


async def test_plain_http_to_a_tls_port(tls_etcd: real.Etcd) -> None:
    url = tls_etcd.urls[0].replace("https", "http")
    async with Etcd(Access((url,))) as etcd:
        with pytest.raises((ConnectionLost, FleetRefused)):
            await etcd.read(["/a"])


# Users


def guard(etcd: real.Etcd) -> None:
    """Add the user iokeel, who may use /iokeel/ only."""
    etcd.ctl("user", "add", "root:toor")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("role", "add", "iokeel")
    etcd.ctl("role", "grant-permission", "--prefix=true", "iokeel", "readwrite", "/iokeel/")
    etcd.ctl("user", "add", f"iokeel:{SECRET}")
    etcd.ctl("user", "grant-role", "iokeel", "iokeel")
    etcd.ctl("auth", "enable")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Etcd]:
    quick = ("--bcrypt-cost=4",)  # a login takes no time worth speaking of
    with real.running(real.Etcd(tmp_path_factory.mktemp("e"), options=quick)) as etcd:
        guard(etcd)
        yield etcd


def user_access(etcd: real.Etcd, folder: Path, password: str = SECRET) -> Access:
    file = folder / "password"
    file.write_text(password + "\n")
    return Access(etcd.urls, user="iokeel", password_file=file)


async def test_a_user_may_do_all_that_is_needed_below_its_prefix(
    guarded: real.Etcd, tmp_path: Path
) -> None:
    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        lease = await etcd.grant_lease(60)
        assert await etcd.write([Is("/iokeel/a", None)], [Put("/iokeel/a", b"1", lease)])
        assert await etcd.keep_lease(lease)
        assert (await etcd.read([], ["/iokeel/"])).values == {"/iokeel/a": b"1"}
        await etcd.revoke_lease(lease)


async def test_a_user_may_watch_its_prefix(guarded: real.Etcd, tmp_path: Path) -> None:
    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        watch = changes(etcd, "/iokeel/w/")
        assert await anext(watch) is None
        await etcd.write([], [Put("/iokeel/w/a", b"1")])
        assert await anext(watch) == {"/iokeel/w/a": b"1"}
        await watch.aclose()  # type: ignore[attr-defined]


async def test_what_a_user_may_not_do_is_said(guarded: real.Etcd, tmp_path: Path) -> None:
    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        with pytest.raises(FleetRefused, match=r"permission denied.*read and write /iokeel/"):
            await etcd.read(["/other/a"])


@pytest.mark.parametrize("user", [True, False])
async def test_a_wrong_password_is_refused_and_not_shown(
    guarded: real.Etcd, tmp_path: Path, user: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = user_access(guarded, tmp_path, f"not-{SECRET}")
    async with Etcd(wrong if user else Access(guarded.urls)) as etcd:
        with pytest.raises(FleetRefused, match="user and password_file") as refusal:
            await etcd.read(["/iokeel/a"])
    assert SECRET not in f"{refusal.value!r} {caplog.text} {wrong!r}"


async def test_logs_in_again_when_etcd_has_forgotten_its_token(
    guarded: real.Etcd, tmp_path: Path
) -> None:
    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        await etcd.read(["/iokeel/a"])
        guarded.members[0].kill()
        guarded.start(guarded.members[0], user="root:toor")
        await etcd.read(["/iokeel/a"])
        assert await etcd.write([], [Put("/iokeel/b", b"1")])


async def test_a_change_of_etcds_users_only_costs_a_login(tmp_path: Path) -> None:
    key = tmp_path / "jwt.key"
    key.write_text("a key that only etcd has")
    tokens = f"--auth-token=jwt,priv-key={key},sign-method=HS256,ttl=1h"
    with real.running(real.Etcd(tmp_path / "e", options=(tokens,))) as there:
        guard(there)
        async with Etcd(user_access(there, tmp_path)) as etcd:
            for number in range(2):
                assert await etcd.write([], [Put("/iokeel/a", b"%d" % number)])
                there.ctl("user", "add", f"other{number}:secret", user="root:toor")
            assert (await etcd.read(["/iokeel/a"])).values == {"/iokeel/a": b"1"}
            there.ctl("user", "add", "another:secret", user="root:toor")
            await begin_watches(etcd)


def logins(*members: real.Member) -> int:
    """Return how often members were asked for a token, by their own count."""
    counts = [urlopen(f"{member.url}/metrics").read().decode() for member in members]
    asked = re.compile(r'^grpc_server_started_total\{grpc_method="Authenticate",.*\} (\d+)$', re.M)
    return sum(int(found[1]) for text in counts for found in asked.finditer(text))


async def test_many_watches_that_begin_at_once_share_a_login(
    guarded: real.Etcd, tmp_path: Path
) -> None:
    before = await asyncio.to_thread(logins, *guarded.members)
    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        await begin_watches(etcd)
        assert await asyncio.to_thread(logins, *guarded.members) == before + 1


async def begin_watches(etcd: Etcd, end: Callable[[], None] | None = None) -> None:
    """Follow 32 prefixes until each has begun; end: called then, after which each begins again."""
    counts: Counter[str] = Counter()

    async def begin(times: int) -> None:
        async with asyncio.timeout(60):
            while min(counts[prefix] for prefix in prefixes) < times:
                await asyncio.sleep(0.05)

    prefixes = {f"/iokeel/w{number}/" for number in range(32)}
    async with Watches(etcd, lambda prefix, found: counts.update([prefix])) as watches:
        watches.follow(prefixes)
        await begin(1)
        if end is not None:
            end()
            await begin(2)


async def test_a_token_outlives_the_member_that_was_asked(
    cluster: real.Etcd, tmp_path: Path
) -> None:
    guard(cluster)
    async with Etcd(user_access(cluster, tmp_path)) as etcd:
        await etcd.read(["/iokeel/a"])
        member = member_of(cluster, etcd)
        others = [other for other in cluster.members if other is not member]
        before = await asyncio.to_thread(logins, *others)
        await begin_watches(etcd, end=member.kill)
        assert await asyncio.to_thread(logins, *others) == before


async def test_watches_share_a_login_when_etcd_refuses_their_token(
    guarded: real.Etcd, tmp_path: Path
) -> None:
    before = 0

    def refuse() -> None:
        nonlocal before
        for words in (["delete", "iokeel"], ["add", f"iokeel:{SECRET}"]):
            guarded.ctl("user", *words, user="root:toor")
        guarded.ctl("user", "grant-role", "iokeel", "iokeel", user="root:toor")
        guarded.members[0].kill()
        guarded.start(guarded.members[0], user="root:toor")
        before = logins(*guarded.members)

    async with Etcd(user_access(guarded, tmp_path)) as etcd:
        await begin_watches(etcd, end=refuse)
    assert await asyncio.to_thread(logins, *guarded.members) == before + 1


# What leads elsewhere


@asynccontextmanager
async def redirecting(status: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve redirects to another server, and list what that one is asked."""
    asked = []

    async def take(request: web.Request) -> web.Response:
        asked.append(f"{request.path} {await request.text()}")
        return web.json_response({"header": {"cluster_id": "1"}, "token": "t"})

    async def lead(request: web.Request) -> web.Response:
        location = f"http://127.0.0.1:{thief.port}{request.path}"
        return web.Response(status=status, headers={"Location": location})

    apps = web.Application(), web.Application()
    for app, answer in zip(apps, (take, lead), strict=True):
        app.router.add_post("/{path:.*}", answer)
    async with TestServer(apps[0]) as thief, TestServer(apps[1]) as member:
        yield f"http://127.0.0.1:{member.port}", asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_with_a_password_or_without(
    tmp_path: Path, status: int
) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    async with redirecting(status) as (url, asked):
        user = Access((url,), user="iokeel", password_file=file)
        for access in (user, Access((url,))):
            async with Etcd(access) as etcd:
                for ask in (etcd.read(["a"]), anext(changes(etcd, "/a"))):
                    with pytest.raises(FleetRefused, match="redirects to another address"):
                        await ask
        assert asked == []


async def test_an_answer_without_end_is_told_as_what_it_is(
    etcd: Etcd, one_etcd: real.Etcd, prefix: str
) -> None:
    key = f"{prefix}b"
    await etcd.write([], [Put(key, b"1" * 10_000)])
    async with Etcd(Access(one_etcd.urls), most_bytes=5000) as short:
        with pytest.raises(TooMuch, match="answers more than 0 MiB; see what else writes"):
            await short.read([key])
        assert (await short.read([f"{prefix}a"])).values == {}
    async with answering(200, b"x" * 10_000) as url, Etcd(Access((url,)), most_bytes=5000) as other:
        with pytest.raises(FleetRefused, match="isn't etcd"):
            await other.read(["a"])


# What is open to others


@pytest.mark.parametrize(
    ("url", "insecure", "doubted"),
    [
        ("http://10.0.0.1:2379", False, True),
        ("http://etcd.example:2379", False, True),
        ("http://10.0.0.1:2379", True, False),
        ("https://10.0.0.1:2379", False, False),
        ("http://127.0.0.1:2379", False, False),
        ("http://localhost:2379", False, False),
        ("http://[::1]:2379", False, False),
    ],
)
def test_http_to_another_machine_is_doubted(url: str, insecure: bool, doubted: bool) -> None:
    found = [str(doubt) for doubt in Access((url,), insecure=insecure).doubts()]
    assert len(found) == doubted
    assert all("write https://, or insecure = true" in line for line in found)


@pytest.mark.parametrize(
    ("mode", "doubted"),
    [(0o600, False), (0o400, False), (0o640, False), (0o604, True), (0o620, True), (0o644, True)],
)
def test_secrets_that_others_may_read_are_doubted(tmp_path: Path, mode: int, doubted: bool) -> None:
    files = [tmp_path / name for name in ("password", "key", "certificate")]
    for file in files:
        file.touch()
        file.chmod(mode)
    password, key, certificate = files
    access = Access(
        ("https://10.0.0.1:1",), None, certificate, key, user="u", password_file=password
    )
    found = [str(doubt) for doubt in access.doubts()]
    assert [line.partition(":")[0] for line in found] == [str(password), str(key)][: 2 * doubted]
    assert all(f"chmod 600 {tmp_path}" in line for line in found)
    password.unlink()  # told when it is read
    assert len(access.doubts()) == doubted


# What else can be wrong


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"urls": ()}, "is empty"),
        ({"urls": ("localhost:2379",)}, "is not a member's URL"),
        ({"urls": ("http://localhost",)}, "is not a member's URL"),
        ({"urls": ("http://u:p@localhost:1",)}, "is not a member's URL"),
        ({"urls": ("http://a:1", "https://a:1")}, "has http and https"),
        ({"ca": Path("/ca")}, "no https"),
        ({"user": "iokeel"}, "without the other"),
        (
            {"urls": ("http://10.0.0.1:1",), "user": "u", "password_file": Path("/p")},
            "in the clear",
        ),
        ({"prefix": "/"}, "begins and ends with a slash"),
        ({"prefix": "iokeel/"}, "begins and ends with a slash"),
    ],
)
def test_access_that_cannot_be_is_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replace(Access(("http://localhost:2379",)), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "two\nlines\n"])
def test_a_password_file_that_is_not_one_line_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "password"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is not one line"):
        Access(("http://localhost:1",), user="u", password_file=file).password()


async def test_a_user_of_an_etcd_without_users_is_said(one_etcd: real.Etcd, tmp_path: Path) -> None:
    async with Etcd(user_access(one_etcd, tmp_path)) as etcd:
        with pytest.raises(FleetRefused, match=r"not enabled'; .*user and password_file"):
            await etcd.read(["/iokeel/a"])


@pytest.fixture
def small(tmp_path: Path) -> Iterator[real.Etcd]:
    """An etcd that is full soon."""
    with real.running(real.Etcd(tmp_path / "e", options=("--quota-backend-bytes=65536",))) as etcd:
        yield etcd


async def test_an_etcd_that_is_full_is_said_and_still_read(small: real.Etcd) -> None:
    async def fill() -> None:
        for number in itertools.count():  # etcd looks ten times a second whether it is full
            await etcd.write([], [Put(f"/iokeel/{number}", b"1" * 4096)])

    async with Etcd(Access(small.urls)) as etcd:
        with pytest.raises(FleetRefused, match=r"space exceeded'; .*etcdctl alarm disarm"):
            await fill()
        assert (await etcd.read(["/iokeel/0"])).values


async def test_a_value_that_is_too_long_for_etcd_is_said(one_etcd: real.Etcd, prefix: str) -> None:
    async with Etcd(Access(one_etcd.urls, prefix=prefix)) as etcd:
        for size in (1_600_000, 3_000_000):  # etcd's own limit, and that of gRPC beneath it
            with pytest.raises(FleetRefused, match=r"larg.*; raise --max-request-bytes"):
                await etcd.write([], [Put(f"{prefix}a", b"1" * size)])


@asynccontextmanager
async def answering(status: int, said: bytes) -> AsyncIterator[str]:
    """Serve an answer to all that etcd can be asked, and yield the URL."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=said)

    app = web.Application()
    app.router.add_post("/v3/{what:.*}", answer)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


async def test_an_etcd_that_cannot_keep_up_is_said() -> None:
    fault = {"code": 8, "message": "etcdserver: too many requests"}

    async with answering(429, json.dumps(fault).encode()) as url, Etcd(Access((url,))) as etcd:
        with pytest.raises(FleetRefused, match="; see whether its disks keep up"):
            await etcd.write([], [Put("/iokeel/a", b"1")])


async def test_missing_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Etcd(Access(("https://localhost:1",), ca=tmp_path / "ca"))


NO_BASE64 = b'{"responses":[{"response_range":{"kvs":[{"key":"!","value":"!"}]}}]}'

NESTED = b'{"a":' + b"[" * 20_000


@pytest.mark.parametrize("said", [b"<html>hello", NO_BASE64, NESTED])
async def test_another_program_on_the_port_is_no_etcd(said: bytes) -> None:
    async with answering(200, said) as url, Etcd(Access((url,))) as etcd:
        with pytest.raises(FleetRefused, match="isn't etcd"):
            await etcd.read(["a"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        # A stream's error, as of a member that stops.
        (
            {"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: server stopped"}},
            "server stopped",
        ),
        ({"error": "grpc: closing", "message": "grpc: closing", "code": 1}, "grpc: closing"),
    ],
)
async def test_a_member_that_stops_is_an_etcd(fault: dict[str, object], said: str) -> None:
    async with answering(503, json.dumps(fault).encode()) as url, Etcd(Access((url,))) as etcd:
        for ask in (etcd.keep_lease(1), anext(changes(etcd, "/a"))):
            with pytest.raises(ConnectionLost, match=f"etcd says .*{said}"):
                await ask


async def test_a_member_of_another_cluster_is_not_taken_for_the_fleets(
    one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    with real.running(real.Etcd(tmp_path / "e")) as own:
        ids = [cluster_id(there) for there in (one_etcd, own)]
        async with Etcd(Access((*one_etcd.urls, *own.urls), prefix=prefix)) as etcd:
            if etcd.member not in own.urls:
                etcd.give_up(etcd.member)
            assert await etcd.write([], [Put(f"{prefix}a", b"1")])
            own.end()
            complaint = f"cluster {ids[0]:x}, and the fleet's is {ids[1]:x}; leave it out of "
            for _ in range(2):  # whoever is asked first
                with pytest.raises(FleetRefused, match=complaint):
                    await etcd.read([f"{prefix}a"])
            own.start()
            assert (await etcd.read([f"{prefix}a"])).values == {f"{prefix}a": b"1"}


def cluster_id(etcd: real.Etcd) -> int:
    (found,) = json.loads(etcd.ctl("endpoint", "status"))
    return int(found["Status"]["header"]["cluster_id"])


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (502, b"<html>bad gateway"),
        (404, b'{"error":"Not Found"}'),
        (403, b'{"kind":"Status","message":"forbidden","code":403}'),  # as Kubernetes' API
        (404, b'{"code":5,"message":"Not Found","details":[]}'),  # as another gateway to gRPC
    ],
)
async def test_a_member_that_is_no_etcd_is_left_for_the_next(
    one_etcd: real.Etcd, prefix: str, status: int, said: bytes
) -> None:
    good = one_etcd.urls[0]
    async with answering(status, said) as bad:
        async with Etcd(Access((bad, good), prefix=prefix)) as etcd:
            if etcd.member == good:  # which one is the first is left to chance
                etcd.give_up(good)
            assert (await etcd.read([f"{prefix}a"])).values == {}
            assert etcd.member == good
            etcd.give_up(good)
            with pytest.raises(FleetRefused, match="isn't etcd"):
                await anext(changes(etcd, prefix))
            assert await anext(changes(etcd, prefix)) is None


@pytest.mark.parametrize("token", ["", "a\r\nb: c", "a\0", "é", "a" * 20_000])
async def test_a_token_that_fits_in_no_header_is_no_etcds(tmp_path: Path, token: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"token": token})

    app = web.Application()
    app.router.add_post("/v3/auth/authenticate", answer)
    password = tmp_path / "password"
    password.write_text("secret\n")
    async with TestServer(app) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with Etcd(Access((url,), user="iokeel", password_file=password)) as etcd:
            with pytest.raises(FleetRefused, match="isn't etcd"):
                await etcd.read(["a"])
