"""A hypervisor host: a Debian with QEMU and its own libvirtd, in a namespace of its own."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from testing.lab import virtqemud
from testing.lab.cache import cache_dir
from testing.lab.roots import debian, environment
from testing.lab.roots.namespace import Namespace
from testing.processes import PopenOptions
from testing.waiting import eventually

PROJECT = Path(__file__).resolve().parents[3]

TRIXIE_PACKAGES = (
    "libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "qemu-utils",
    "python3-venv", "python3-dev", "gcc", "libc6-dev", "pkgconf", "libvirt-dev", "ca-certificates",
)  # fmt: skip

QEMU_CONF = """
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
cgroup_controllers = [ ]
namespaces = [ ]
seccomp_sandbox = 0
stdio_handler = "file"
"""
LIBVIRTD_CONF = """
auth_unix_rw = "none"
log_outputs = "2:stderr"
"""


class Host:
    """A hypervisor. Use it as a context manager: leaving it ends all that runs on it.

    dir: its folder. The path is short, because sockets lie in it, and the same inside, like those
        of /tmp, the project and the cache folder. The folder goes with the host.
    uri: libvirt's connection string, the same inside and outside.
    iokeel: the words that run the project's command inside the host.
    """

    def __init__(
        self, suite: str, root: Path, binds: Mapping[Path, tuple[Path, str]],
        iokeel: Sequence[str | Path], hooks: Path | None, daemon: str | Path = "libvirtd",
    ) -> None:  # fmt: skip
        self.suite = suite
        self._daemon = Path(daemon)
        socket = "libvirt-sock" if daemon == "libvirtd" else f"{self._daemon.name}-sock"
        self.dir = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp")).resolve()
        self.iokeel = [str(word) for word in iokeel]
        self.uri = f"qemu+unix:///system?socket={self.dir}/run/libvirt/{socket}"
        self._libvirtd: subprocess.Popen[str] | None = None
        self._configure(hooks)
        caches = cache_dir() / f"libvirt-{suite}"  # QEMU's capabilities
        caches.mkdir(exist_ok=True)
        self.namespace = Namespace(self.dir, root, {
            Path("/tmp"): (Path("/tmp"), "rw"),
            cache_dir(): (cache_dir(), "ro"),
            PROJECT: (PROJECT, "rw"),
            self.dir: (self.dir, "rw"),
            Path("/run"): (self.dir / "run", "rw"),
            Path("/etc/libvirt"): (self.dir / "etc", "rw"),
            Path("/var/lib/libvirt"): (self.dir / "lib", "rw"),
            Path("/var/log/libvirt"): (self.dir / "log", "rw"),
            Path("/var/cache/libvirt"): (caches, "rw"),
            **binds,
        })  # fmt: skip

    @classmethod
    def bookworm(cls, *, hooks: Path | None = None, modular: bool = False) -> "Host":
        """Return a host with this machine's own QEMU, libvirt and project environment.

        hooks: a folder whose content becomes /etc/libvirt/hooks. modular: virtqemud stands in for
        libvirtd, also in the names of methods.
        """
        iokeel = [PROJECT / ".venv/bin/iokeel"]
        if not modular:
            return cls("bookworm", Path("/"), {}, iokeel, hooks)
        binds = {virtqemud.HOME: (virtqemud.virtqemud(), "ro")}
        return cls("bookworm", Path("/"), binds, iokeel, hooks, virtqemud.HOME / "sbin/virtqemud")

    @classmethod
    def trixie(cls, *, hooks: Path | None = None, requirements: Path | None = None) -> "Host":
        """Return a host with Debian 13's QEMU 10.0 and libvirt 11.3, which has throttle groups.

        hooks: a folder whose content becomes /etc/libvirt/hooks.
        requirements: the agent's lock file; without it the host has no `iokeel`.
        The first call makes the root (30 s, 650 MB) and the agent's environment.
        """
        root = debian.root("trixie", TRIXIE_PACKAGES)
        if requirements is None:
            return cls("trixie", root, {}, (), hooks)
        source, command = PROJECT / "agent/src", "iokeel = iokeel.cli.main:main"
        home = environment.environment(root, requirements, source, command)
        binds = {environment.HOME: (home, "ro")}
        return cls("trixie", root, binds, [environment.HOME / "bin/iokeel"], hooks)

    def _configure(self, hooks: Path | None) -> None:
        for name in ("run", "etc/hooks", "lib", "log"):
            (self.dir / name).mkdir(parents=True)
        (self.dir / "etc/qemu.conf").write_text(QEMU_CONF)
        (self.dir / f"etc/{self._daemon.name}.conf").write_text(LIBVIRTD_CONF)
        if hooks:
            shutil.copytree(hooks, self.dir / "etc/hooks", dirs_exist_ok=True)

    def popen(
        self, argv: Sequence[str | Path], **options: Unpack[PopenOptions]
    ) -> subprocess.Popen[str]:
        """Start a process inside; `options` are subprocess.Popen's. It ends with the host."""
        return self.namespace.popen(argv, **options)

    def run(
        self, argv: Sequence[str | Path], input: str | None = None,
        timeout: float = 120, check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a program inside and return its exit status and output.

        timeout: seconds; past it the program is killed and subprocess.TimeoutExpired raised.
        Raises RuntimeError with the program's own words when it fails, unless check is False.
        """
        return self.namespace.run(argv, input, timeout, check)

    def virsh(self, *args: str | Path, input: str | None = None) -> str:
        """Run one virsh command inside and return what it prints.

        input: the content of /dev/stdin, for commands that read a file.
        Raises RuntimeError with virsh's words when the command fails.
        """
        return self.run(["virsh", "--quiet", "--connect", "qemu:///system", *args], input).stdout

    def start_libvirtd(self) -> None:
        """Start libvirtd unless it runs, and wait until it answers.

        Raises RuntimeError with the end of its log if it doesn't in a minute.
        """
        if self._libvirtd and self._libvirtd.poll() is None:
            return
        log = self.dir / "log/libvirtd.log"
        with log.open("ab") as out:
            self._libvirtd = self.popen(
                [self._daemon], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        try:
            eventually(lambda: self.virsh("uri"), 60, process=self._libvirtd)
        except Exception as error:
            words = f"{self._daemon.name} doesn't answer:\n{log.read_text()[-2000:]}"
            raise RuntimeError(words) from error

    def kill_libvirtd(self) -> None:
        """End libvirtd as a crash would, by SIGKILL. Guests run on."""
        if self._libvirtd:
            self._libvirtd.kill()
            self._libvirtd.wait()

    def signal_libvirtd(self, number: signal.Signals) -> None:
        """Send libvirtd a signal, such as SIGSTOP to have it hang."""
        if self._libvirtd:
            self._libvirtd.send_signal(number)

    def restart_libvirtd(self) -> None:
        """End libvirtd in order and start it again. Guests run on."""
        if self._libvirtd:
            self._libvirtd.terminate()
            self._libvirtd.wait()
        self.start_libvirtd()

    def close(self) -> None:
        """End every guest and process on the host, unmount, and remove its folder."""
        self.namespace.close()
        if self._libvirtd:
            self._libvirtd.wait()

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
