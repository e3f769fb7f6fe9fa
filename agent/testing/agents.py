"""The command and the agent as processes of their own, and a QEMU without a guest for them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

from testing.lab.host import Host
from testing.processes import PopenOptions
from testing.waiting import eventually

IOKEEL = Path(sys.executable).parent / "iokeel"
QEMU = "qemu-system-x86_64"
NOBODY = 65534
#: Words before a program's own: it is killed when the thread that started it ends, in any way.
ENDING_WITH_OWNER = ("setpriv", "--pdeathsig", "KILL")
_CHECKOUT = Path(__file__).parents[2]
# The folder that others may not enter becomes another one, with the checkout alone.
_OPENED = """
mount --bind "$2" /mnt
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$2"
mount --move /mnt "$2"
shift 2
exec "$@"
"""
_START_S = 120.0
_FIRST_PORT = 10_000
_WORKERS = 32  # at most
_given: set[int] = set()


@dataclass(frozen=True)
class Done:
    """The output of a command, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr. There must be no other, and no traceback."""
        (line,) = self.err.splitlines()
        assert line.startswith("iokeel: ")
        assert "Traceback" not in line
        return line.removeprefix("iokeel: ")


def as_nobody(*words: str | Path) -> list[str | Path]:
    """Return a command that runs another one as nobody, who sees the checkout also in /root."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
    closed = [folder for folder in _CHECKOUT.parents if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return user
    view = ["unshare", "--mount", "--propagation=private", "sh", "-euc", _OPENED, "opened"]
    return [*view, closed[-1], _CHECKOUT, *user]


def iokeel(
    *words: str | Path,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    nobody: bool = False,
    cwd: Path | None = None,
    timeout_s: float = 60,
) -> Done:
    """Run the command in an environment without settings of a terminal or an agent.

    nobody: as that user.
    """
    unwanted = ("COLUMNS", "IOKEEL_SOCKET", "FORCE_COLOR")
    env = {k: v for k, v in os.environ.items() if k not in unwanted} | {**(environment or {})}
    done = subprocess.run(
        as_nobody(IOKEEL, *words) if nobody else [IOKEEL, *words],
        input=stdin,
        capture_output=True,
        env=env,
        cwd=cwd,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def http(
    where: Path | tuple[str, int], method: str, path: str, body: bytes = b""
) -> tuple[int, str, str]:
    """Make an HTTP request without the agent's own code; return status, content type and body."""
    kind = socket.AF_UNIX if isinstance(where, Path) else socket.AF_INET
    with socket.socket(kind) as connection:
        connection.settimeout(60)
        connection.connect(str(where) if isinstance(where, Path) else where)
        head = f"{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        with connection.makefile("rb") as answer:
            top, _, rest = answer.read().partition(b"\r\n\r\n")
    status, *headers = top.decode().split("\r\n")
    fields = dict(header.lower().split(": ", 1) for header in headers)
    return int(status.split()[1]), fields["content-type"], rest.decode()


def free_port() -> int:
    """Return a TCP port that nobody serves now, and that no other test gets before it is served.

    The kernel gives clients' ends the ports of `ip_local_port_range`, so it is none of these. Each
    of several test workers has ports of its own, and never gets one twice.
    """
    clients = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8")
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw31").removeprefix("gw"))
    ports = range(_FIRST_PORT + worker % _WORKERS, int(clients.split()[0]), _WORKERS)
    while True:
        port = secrets.choice(ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def start_qemu(folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a QEMU with two drives and no guest; return it and its QMP socket.

    It serves another client at `watch.sock` beside that. options: more of QEMU's own.
    """
    path = folder / "qmp.sock"
    words = ["-S", "-display", "none", "-nodefaults", "-machine", "q35,accel=tcg", "-m", "16"]
    words += options
    for socket_path in (path, path.with_name("watch.sock")):
        words += ["-qmp", f"unix:{socket_path},server=on,wait=off"]
    for target in ("vda", "vdb"):
        (folder / target).write_bytes(bytes(1 << 20))
        words += ["-drive", f"if=none,id=d-{target},format=raw,file={folder / target}"]
        words += ["-device", f"virtio-blk-pci,drive=d-{target},id={target}"]
    process = subprocess.Popen([QEMU, *words], stderr=subprocess.PIPE)
    try:
        eventually(path.exists, what=f"{QEMU} serves QMP", process=process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, path


class Agent:
    """The agent as its operator has it: a process, its configuration, its command, its log.

    A context manager: entering it starts the agent, leaving it ends the agent and prints the log,
    which pytest shows when a test fails. A log with a fault of the agent's own fails the test.
    """

    command: Sequence[str] = (str(IOKEEL),)
    """The words that run `iokeel` where the agent runs."""

    environment: Mapping[str, str] | None = None
    """The environment of the agent and its command; None: this process's."""

    def __init__(
        self,
        folder: Path,
        tables: str = "",
        settings: str = "",
        *,
        libvirt: str = "enabled = false",
        state: Path | None = None,
    ) -> None:
        """Write its configuration.

        folder: for its socket, its log and its files. settings, libvirt: the content of [agent]
        and [libvirt]. tables: what comes after them. state: its state_dir (None: in the folder).
        """
        self.folder = folder
        self.socket = folder / "agent.sock"
        self.state = state or folder / "state"
        self.config = folder / "agent.toml"
        self.log_file = folder / "agent.log"
        self.process: subprocess.Popen[str] | None = None
        self._ends: list[str] = []
        self.config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{self.state}"\n{settings}\n'
            f"[libvirt]\n{libvirt}\n{tables}\n"
        )

    def popen(
        self, command: Sequence[str | Path], **options: Unpack[PopenOptions]
    ) -> subprocess.Popen[str]:
        """Start a program where the agent runs; `options` are subprocess.Popen's."""
        return subprocess.Popen(command, text=True, **options)

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        with self.log_file.open("ab") as log:
            command = [*self.command, "agent", "--config", str(self.config)]
            self.process = self.popen(command, env=self.environment, stderr=log)
        try:
            eventually(self.answers, _START_S, process=self.process)
        except BaseException as error:
            self._kill()
            if not isinstance(error, Exception):
                raise
            raise AssertionError(f"the agent doesn't answer\n{self.log()}") from error
        return self

    def answers(self) -> bool:
        """Return whether it serves its socket."""
        return http(self.socket, "GET", "/v1/vms")[0] == 200

    def log(self) -> str:
        """Return what it has logged so far."""
        return self.log_file.read_text()

    def says(self, text: str) -> bool:
        """Return whether its log has a text."""
        return text in self.log()

    def own_faults(self) -> list[str]:
        """Return its log's lines about faults of its own, and how it ended when it shouldn't."""
        self._note_early_end()
        signs = ("please report it", "Traceback", "never retrieved")
        faults, traced = [*self._ends], False
        for line in self.log().splitlines():
            line = line.removeprefix("| ")  # of a traceback
            if any(sign in line for sign in signs) or (traced and not line.startswith(" ")):
                faults.append(line)  # of a traceback its first line, and what was raised
                traced = "Traceback" in line
        return faults

    def ask(self, path: str) -> Any:
        """Return the JSON at a path of its socket."""
        status, kind, body = http(self.socket, "GET", path)
        assert (status, kind) == (200, "application/json; charset=utf-8")
        return json.loads(body)

    def drive(self, domain: str, target: str = "vda") -> dict[str, Any]:
        """Return one drive's record, which is there a reading after its first limits."""
        found = self._drives(domain, target)  # raises at once if it doesn't answer
        if not found:
            found = eventually(lambda: self._drives(domain, target), what=f"{domain}/{target}")
        (record,) = found
        return record

    def _drives(self, domain: str, target: str) -> list[dict[str, Any]]:
        vms = [vm for vm in self.ask("/v1/vms") if vm["domain"] == domain]
        return [drive for vm in vms for drive in vm["drives"] if drive["target"] == target]

    def why(self, domain: str, target: str = "vda") -> str:
        """Return the explanation of a drive's limits."""
        return "\n".join(self.ask(f"/v1/why?domain={domain}&target={target}")[target])

    def metrics(self) -> dict[str, float]:
        """Return /metrics by sample, labels in the order in which they are sent."""
        status, _, text = http(self.socket, "GET", "/metrics")
        assert status == 200
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}

    def stats(self, *words: str) -> Any:
        """Return what `iokeel stats --json` prints."""
        command = [*self.command, "stats", "--json", "--socket", str(self.socket), *words]
        with self.popen(command, env=self.environment, stdout=subprocess.PIPE) as process:
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return json.loads(out)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal, and return its exit status."""
        process = self.process
        assert process is not None
        self.send(number)
        status = process.wait(60)
        if number is signal.SIGTERM and status and self.process is not None:
            self._ends.append(f"the agent ended with status {status} at its stop")
        self.process = None
        return status

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        self._note_early_end()
        if self.process is not None:
            self.process.send_signal(number)

    def end(self) -> None:
        """End it by SIGKILL, if it still runs."""
        self._note_early_end()
        self._kill()

    def _kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _note_early_end(self) -> None:
        """Note that it has ended by itself."""
        if self.process is not None and (status := self.process.poll()) is not None:
            self._ends.append(f"the agent ended by itself with status {status}")
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.end()
        print(self.log())
        faults = self.own_faults()
        self.log_file.unlink()  # the next agent in this folder has a log of its own
        self._ends.clear()
        assert any(failure) or not faults


class HostAgent(Agent):
    """The agent of a lab host: it manages the host's libvirt, and runs on the host."""

    def __init__(self, host: Host, tables: str = "", *, state: Path | None = None) -> None:
        super().__init__(host.dir, tables, libvirt=f'uri = "{host.uri}"', state=state)
        self.host = host
        self.command = host.iokeel

    def popen(
        self, command: Sequence[str | Path], **options: Unpack[PopenOptions]
    ) -> subprocess.Popen[str]:
        return self.host.popen(command, **options)
