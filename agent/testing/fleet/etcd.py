"""Real etcd clusters on loopback ports of their own, with TLS and users if they are wanted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from testing.agents import free_port
from testing.processes import end, hang
from testing.waiting import eventually

_ENV = {key: value for key, value in os.environ.items() if not key.startswith("ETCD")}


@dataclass
class Certificates:
    """A CA, and what it has signed: a server's certificate and a client's.

    server_usage: what the server's is for. etcd's gateway shows it to etcd, as a client. days: how
    long what is signed is valid.
    """

    folder: Path
    server_usage: str = "serverAuth,clientAuth"
    days: int = 30

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca = self.folder / "ca.crt"
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl(
            "req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test CA"
        )
        for name, more in (
            ("server", f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={self.server_usage}"),
            ("client", "extendedKeyUsage=clientAuth"),
        ):
            (self.folder / f"{name}.ext").write_text(more)
            self._openssl(
                "req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
            )
            self._openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
                *("-CAcreateserial", "-out", f"{name}.crt", "-extfile", f"{name}.ext"),
                f"-days={self.days}",
            )

    def of(self, name: str) -> tuple[Path, Path]:
        """Return the certificate and key of the "server" or the "client"."""
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)


@dataclass
class Member:
    """A member of a cluster. inside: the words before its command, to run it elsewhere."""

    name: str
    url: str
    peer_url: str
    data: Path
    inside: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Let it hang (SIGSTOP)."""
        assert self.process is not None
        hang(self.process)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; its data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass
class Etcd:
    """A cluster. options: more of etcd's own.

    places: the address of each member, and the words before its command; () for loopback. inside:
    the words before etcdctl.
    """

    folder: Path
    size: int = 1
    tls: Certificates | None = None
    options: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()
    inside: tuple[str, ...] = ()
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        scheme = "https" if self.tls is not None else "http"
        for number in range(self.size):
            name = f"m{number}"
            address, inside = self.places[number] if self.places else ("127.0.0.1", ())
            url, peer = f"{scheme}://{address}:{free_port()}", f"http://{address}:{free_port()}"
            self.members.append(Member(name, url, peer, self.folder / name, inside))

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def start(self, *members: Member, user: str = "") -> None:
        """Start members, or all, and wait until each answers. user: NAME:PASSWORD."""
        for member in members or self.members:
            self._start(member)
        eventually(lambda: self.ctl("endpoint", "health", user=user))

    def _start(self, member: Member) -> None:
        tls: tuple[str, ...] = ()
        if self.tls is not None:
            certificate, key = self.tls.of("server")
            tls = (f"--cert-file={certificate}", f"--key-file={key}", "--client-cert-auth")
            tls = (*tls, f"--trusted-ca-file={self.tls.ca}")
        member.process = subprocess.Popen(
            [
                *member.inside,
                "etcd",
                f"--name={member.name}",
                f"--data-dir={member.data}",
                f"--listen-client-urls={member.url}",
                f"--advertise-client-urls={member.url}",
                f"--listen-peer-urls={member.peer_url}",
                f"--initial-advertise-peer-urls={member.peer_url}",
                f"--initial-cluster={self._cluster}",
                "--initial-cluster-state=new",
                "--auto-compaction-mode=periodic",
                "--auto-compaction-retention=5m",
                "--logger=zap",
                "--log-level=error",
                *tls,
                *self.options,
            ],
            env=_ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{member.name}.log").open("ab"),
        )

    @property
    def _cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def ctl(self, *words: str, user: str = "", one: bool = False, stdin: str = "") -> str:
        """Run etcdctl with some words, and return its output. Raises CalledProcessError.

        user: NAME:PASSWORD. one: ask the first member only. stdin: its input.
        """
        urls = self.urls[:1] if one else self.urls
        tls: tuple[str, ...] = ()
        if self.tls is not None:
            certificate, key = self.tls.of("client")
            tls = (f"--cacert={self.tls.ca}", f"--cert={certificate}", f"--key={key}")
        done = subprocess.run(
            [
                *self.inside,
                *(
                    "etcdctl",
                    f"--endpoints={','.join(urls)}",
                    "--write-out=json",
                ),
                *tls,
                *([f"--user={user}"] if user else []),
                *words,
            ],
            env={**_ENV, "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
            text=True,
            input=stdin,
        )
        return done.stdout + done.stderr

    def leader(self) -> Member:
        """Return the member that leads."""
        for found in json.loads(self.ctl("endpoint", "status")):
            status = found["Status"]
            if status["header"]["member_id"] == status["leader"]:
                return next(m for m in self.members if m.url == found["Endpoint"])
        raise AssertionError("nobody leads")

    def end(self) -> None:
        """End all members."""
        for member in self.members:
            if member.process is not None:
                member.resume()
                end(member.process)
                member.process = None

    def wipe(self) -> None:
        """Lose all data; start() makes a new cluster of the same name."""
        self.end()
        for member in self.members:
            shutil.rmtree(member.data, ignore_errors=True)

    def restore(self, snapshot: Path) -> None:
        """Put all members' data back to what it was in a snapshot."""
        self.wipe()
        for member in self.members:
            subprocess.run(
                [
                    *("etcdctl", "snapshot", "restore", str(snapshot)),
                    *(f"--name={member.name}", f"--data-dir={member.data}"),
                    f"--initial-cluster={self._cluster}",
                    f"--initial-advertise-peer-urls={member.peer_url}",
                ],
                env={**_ENV, "ETCDCTL_API": "3"},
                check=True,
                capture_output=True,
            )


@contextlib.contextmanager
def running(etcd: Etcd) -> Iterator[Etcd]:
    """Run a cluster."""
    etcd.folder.mkdir(parents=True, exist_ok=True)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.end()
