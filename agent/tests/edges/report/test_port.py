"""The port of /metrics with a web configuration: TLS, clients' certificates and passwords."""

from __future__ import annotations

import base64
import http.client
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import bcrypt
import pytest

from testing.agents import Agent, free_port, iokeel
from testing.fleet.etcd import Certificates
from testing.waiting import eventually

PAIR = "cert_file: server.crt, key_file: server.key"
CLIENTS = "client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"
BY_CERTIFICATE = f"tls_server_config: {{{PAIR}, {CLIENTS}}}\n"
SECRET = "prometheus:pass:wörd"


def users(**passwords: str) -> str:
    hashes = {
        user: bcrypt.hashpw(text.encode()[:72], bcrypt.gensalt(4, b"2a")).decode()
        for user, text in passwords.items()
    }
    return f"basic_auth_users: {hashes}\n"


BY_PASSWORD = f"tls_server_config: {{{PAIR}}}\n{users(prometheus='pass:wörd', long='x' * 80)}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificates, Certificates]:
    """Certificates, and those of somebody else."""
    one, other = (Certificates(tmp_path_factory.mktemp(name)) for name in ("one", "other"))
    return one, other


class Served(Agent):
    """An agent with a port, the port's files, and those who ask there."""

    def __init__(self, folder: Path, certificates: Certificates, host: str = "0.0.0.0") -> None:
        self.port, self.ca = free_port(), certificates.ca
        self.at = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = f'metrics_address = "{f"[{host}]" if ":" in host else host}:{self.port}"'
        super().__init__(folder, "", f'{address}\nmetrics_web_config = "{folder}/web.yml"')
        self.take(certificates)

    def answers(self) -> bool:
        """Return whether it serves its socket and, if it can, its port."""
        with suppress(ConnectionRefusedError):
            socket.create_connection((self.at, self.port), 10).close()
            return super().answers()
        return self.log_file.exists() and self.says("would let anybody") and super().answers()

    def take(self, certificates: Certificates) -> None:
        """Put a server's certificate and a CA into the place of the old ones."""
        for name in ("server.crt", "server.key", "ca.crt"):
            self.put(name, (certificates.folder / name).read_text())

    def put(self, name: str, text: str) -> None:
        """Write a file in one step, as a program that renews certificates does."""
        new = self.folder / "new"
        new.write_text(text)
        new.chmod(0o600)
        new.rename(self.folder / name)

    def by(self, text: str) -> Served:
        """Write the web configuration file."""
        self.put("web.yml", text)
        return self

    def connection(
        self, client: tuple[Path, Path] | None = None, ca: Path | None = None
    ) -> http.client.HTTPSConnection:
        """Return a connection of a client that trusts a CA (None: the first one)."""
        context = ssl.create_default_context(cafile=ca or self.ca)
        context.check_hostname = self.at == "127.0.0.1"  # whose the certificate is
        if client is not None:
            context.load_cert_chain(*client)
        return http.client.HTTPSConnection(self.at, self.port, timeout=30, context=context)

    def status(self, client: tuple[Path, Path] | None = None, user: str | None = None) -> int:
        """Ask once, and return the status."""
        with closing(self.connection(client)) as connection:
            return get(connection, user).status


def get(
    connection: http.client.HTTPConnection, user: str | None = None, path: str = "/metrics"
) -> http.client.HTTPResponse:
    """Ask as a user ("NAME:PASSWORD"), and read the answer."""
    header = {}
    if user is not None:
        header["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    connection.request("GET", path, headers=header)
    answer = connection.getresponse()
    assert (answer.status == 200) == (b"iokeel_agent_domains 0" in answer.read())
    return answer


@pytest.fixture
def served(tmp_path: Path, made: tuple[Certificates, Certificates]) -> Iterator[Served]:
    agent = Served(tmp_path, made[0])
    yield agent
    agent.end()


# Who may ask


def test_a_client_with_a_certificate_of_the_ca_is_answered_and_no_other(
    served: Served, made: tuple[Certificates, Certificates]
) -> None:
    with served.by(BY_CERTIFICATE):
        assert served.status(made[0].of("client")) == 200
        for client in (None, None, made[1].of("client")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                served.status(client)
        plain = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            get(plain)
        assert served.status(made[0].of("client")) == 200
        told = [line for line in served.log().splitlines() if "127.0.0.1 was refused" in line]
        assert len(told) == 3  # once for each reason
        assert "peer did not return a certificate" in told[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_user_is_known_by_the_password(
    tmp_path: Path, made: tuple[Certificates, Certificates], host: str
) -> None:
    with Served(tmp_path, made[0], host).by(BY_PASSWORD) as served:
        assert isinstance(served, Served)
        for _ in range(2):  # the second time it is known already
            assert served.status(user=SECRET) == 200
        assert served.status(user=f"long:{'x' * 100}") == 200  # bcrypt reads 72 bytes, as in Go


@pytest.mark.parametrize(
    "user", [None, "prometheus:", "prometheus:pass", "root:pass:wörd", "", ":", "prometheus:\0"]
)
def test_nobody_else_is_answered(served: Served, user: str | None) -> None:
    with served.by(BY_PASSWORD), closing(served.connection()) as connection:
        assert served.status(user=SECRET) == 200
        for path in ("/metrics", "/v1/vms", "/"):
            refused = get(connection, user, path)
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Basic")
            assert refused.headers["Connection"] == "close"


@pytest.mark.parametrize("header", ["Basic", "Basic =", "Basic w6Q", "Bearer x", "Basic ÿ", "\x7f"])
def test_a_header_that_makes_no_sense_is_nobodys(served: Served, header: str) -> None:
    with served.by(BY_PASSWORD), closing(served.connection()) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": header})
        assert connection.getresponse().status in (400, 401)
        assert served.status(user=SECRET) == 200


def test_both_a_certificate_and_a_password_may_be_asked_for(
    served: Served, made: tuple[Certificates, Certificates]
) -> None:
    with served.by(BY_CERTIFICATE + users(prometheus="pass:wörd")):
        assert served.status(made[0].of("client"), SECRET) == 200
        assert served.status(made[0].of("client")) == 401
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.status(None, SECRET)


def test_an_old_version_of_tls_is_refused(
    served: Served, made: tuple[Certificates, Certificates]
) -> None:
    with served.by(BY_CERTIFICATE.replace("{", "{min_version: TLS13, ", 1)):
        context = ssl.create_default_context(cafile=served.ca)
        context.load_cert_chain(*made[0].of("client"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            get(http.client.HTTPSConnection("127.0.0.1", served.port, context=context))
        assert served.status(made[0].of("client")) == 200


# Files that change


def test_new_certificates_are_used_without_a_restart(
    served: Served, made: tuple[Certificates, Certificates]
) -> None:
    one, other = made
    with served.by(BY_CERTIFICATE), closing(served.connection(one.of("client"))) as old:
        assert get(old).headers["Connection"] != "close"
        served.take(other)
        with pytest.raises(ssl.SSLError):  # another server's
            served.status(one.of("client"))
        with closing(served.connection(other.of("client"), other.ca)) as new:
            assert get(new).status == 200
        # Who was let in before is told to come again, and then isn't let in.
        assert get(old).headers["Connection"] == "close"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(old)
        assert served.log().count("web.yml: was read again") == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("web.yml", "a: [", "web.yml, line 1: not YAML, "),
        ("web.yml", "", "web.yml: would serve metrics, and passwords, in the clear beyond loop"),
        ("web.yml", BY_CERTIFICATE.replace("ca.crt", "x"), "/x: can't be read: no such file"),
        ("server.crt", "", "server.key: can't be read: not pem; see that"),
        ("server.key", "other", "server.key: can't be read: key values mismatch; see that"),
        ("ca.crt", "x", "ca.crt: can't be read: no certificate or crl found; see that"),
    ],
)
def test_what_a_bad_file_said_before_goes_on_to_count(
    served: Served, made: tuple[Certificates, Certificates], name: str, text: str, said: str
) -> None:
    with served.by(BY_CERTIFICATE):
        before = (served.folder / name).read_text()
        served.put(name, made[1].of("server")[1].read_text() if text == "other" else text)
        for _ in range(3):
            assert served.status(made[0].of("client")) == 200
        (line,) = [line for line in served.log().splitlines() if "what the files said" in line]
        assert said in line
        assert served.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1
        served.put(name, before)
        assert served.status(made[0].of("client")) == 200
        assert served.says("web.yml: was read again")


def test_a_user_who_is_removed_is_refused_on_an_old_connection_too(served: Served) -> None:
    with served.by(BY_PASSWORD), closing(served.connection()) as connection:
        assert get(connection, SECRET).status == 200
        served.by(BY_PASSWORD.replace("prometheus", "somebody"))
        assert get(connection, SECRET).status == 401


def test_a_bad_file_at_the_start_opens_no_port_and_ends_nothing(served: Served) -> None:
    with served.by(f"tls_server_config: {{{PAIR}}}\n"):
        assert served.says("web.yml: would let anybody read metrics beyond loopback; add client")
        assert served.ask("/v1/vms") == []
        with pytest.raises(ConnectionRefusedError):
            served.status()
    done = iokeel("agent", "--check", "--config", served.config)
    assert (done.status, "would let anybody" in done.complaint) == (2, True)


def test_a_key_that_others_may_read_is_told(served: Served) -> None:
    (served.folder / "server.key").chmod(0o644)
    said = "server.key: may be read or written by others (-rw-r--r--); type `chmod 600"
    with served.by(BY_PASSWORD):
        assert served.says(said)
    assert said in iokeel("agent", "--check", "--config", served.config).complaint


# What a peer can send


def test_half_a_handshake_keeps_nobody_out(
    served: Served, made: tuple[Certificates, Certificates]
) -> None:
    with served.by(BY_CERTIFICATE), ExitStack() as held:
        for number in range(60):
            half = held.enter_context(socket.create_connection(("127.0.0.1", served.port), 10))
            with suppress(OSError):
                half.sendall(hello()[: 100 * (number % 3)])
        for _ in range(3):
            assert served.status(made[0].of("client")) == 200
        assert served.ask("/v1/vms") == []


def hello() -> bytes:
    """Return what a client says first."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="a")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_whoever_connects_does_not_use_up_the_agents_files(served: Served) -> None:
    with served.by(BY_PASSWORD), ExitStack() as idle:
        assert served.process is not None
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        context = ssl.create_default_context(cafile=served.ca)
        for _ in range(40):
            with suppress(OSError):
                raw = idle.enter_context(socket.create_connection(("127.0.0.1", served.port), 10))
                idle.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))
        assert served.ask("/v1/vms") == []
        assert served.status(user=SECRET) == 200
        files = len([*Path(f"/proc/{served.process.pid}/fd").iterdir()])
        assert files < 80


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\0" * 70_000,
        hello()[:-1] + b"\xff" * 20_000,
        hello() + b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x16\x03\x01\x3f\xff" + b"\x01" * 0x3FFF,
        b"\x80\x2e\x01\x00\x02",
        b"",
    ],
)
def test_what_is_no_handshake_ends_its_connection_only(served: Served, sent: bytes) -> None:
    with served.by(BY_PASSWORD):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", served.port), 10) as peer:
                with suppress(OSError):
                    peer.sendall(sent)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(1 << 16):
                        pass
        assert served.status(user=SECRET) == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n" + b"a: " + b"b" * 100_000 + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 50_000 + b"\r\n", 400),
        (b"\xff" * 1000, 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 9999, 401),
    ],
)
def test_what_is_no_request_is_refused_within_tls_too(
    served: Served, sent: bytes, status: int
) -> None:
    context = ssl.create_default_context(cafile=served.ca)
    with served.by(BY_PASSWORD):
        raw = socket.create_connection(("127.0.0.1", served.port), 30)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as peer:
            with suppress(OSError):
                peer.sendall(sent)
            version, _, rest = peer.recv(1 << 16).partition(b" ")
            assert (version[:7], int(rest[:3])) == (b"HTTP/1.", status)
        assert served.status(user=SECRET) == 200


def test_a_flood_of_wrong_passwords_stops_no_tick(served: Served) -> None:
    """Each is checked after the one before it, and none for whoever has gone."""
    with served.by(BY_PASSWORD), ExitStack() as held:
        assert served.status(user=SECRET) == 200
        for number in range(40):
            peer = held.enter_context(closing(served.connection()))
            word = base64.b64encode(f"prometheus:{number}".encode()).decode()
            peer.request("GET", "/metrics", headers={"Authorization": f"Basic {word}"})
        ticks = "iokeel_agent_tick_seconds_count"
        before = served.metrics()[ticks]
        assert served.status(user=SECRET) == 200
        eventually(lambda: served.metrics()[ticks] > before, what="a tick")
        assert served.process is not None
        tasks = [*Path(f"/proc/{served.process.pid}/task").iterdir()]
        assert len(tasks) < 16
