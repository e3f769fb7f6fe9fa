"""A booted Debian with systemd and libvirt, as a container with a network of its own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from testing.machines.host import Host
from testing.machines.root import hypervisor
from testing.waiting import eventually

_BOOT_S = 120.0
_POWER_OFF = signal.SIGRTMIN + 4  # systemd(1)
_numbers = itertools.count(1)
#: Variables of the role that a container takes: it has no io controller.
VARIABLES = {"iokeel_cgroup": {"enabled": False}}
#: With these, systemd keeps units to IPAddressAllow= by BPF.
_FIREWALL = ("--capability=CAP_BPF", "--system-call-filter=bpf")
# Without a group of its own, a machine would share its units' groups with every other machine.
_IN_GROUP = """
for folder in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    [ -e "$folder/cgroup.procs" ] || continue
    mkdir "$folder/$1"
    echo $$ >"$folder/$1/cgroup.procs"
done
shift
exec "$@"
"""


class Machine(Host):
    """A running machine; use it as a context manager. What it writes goes to memory.

    codename: of its Debian. folders: paths outside, by the paths at which it may read them.
    root: what it starts from, if not a hypervisor. name: no other machine has it while this one
    runs.
    """

    def __init__(
        self, codename: str, folders: Mapping[str, Path] | None = None, root: Path | None = None
    ) -> None:
        self._root = root or hypervisor(codename)
        self._folders = folders or {}
        self.name = f"iokeel-{os.getpid()}-{next(_numbers)}"

    def __enter__(self) -> Self:
        # Only the machine's end ends nspawn, unless this process dies.
        self._console = tempfile.TemporaryFile()
        self._nspawn = subprocess.Popen(
            ["sh", "-euc", _IN_GROUP, "sh", self.name,
             "setpriv", "--pdeathsig=TERM", "systemd-nspawn", "--quiet", "--boot",
             f"--directory={self._root}", "--volatile=overlay", "--private-network",
             *_FIREWALL,
             f"--machine={self.name}", "--register=no", "--keep-unit",
             *(f"--bind-ro={outside}:{inside}" for inside, outside in self._folders.items())],
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL, stdout=self._console, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            self._init = eventually(self._child, what="nspawn starts", process=self._nspawn)
            eventually(self.is_up, _BOOT_S, what="the machine boots", process=self._nspawn)
        except Exception as error:
            self.__exit__()
            self._console.seek(0)
            raise RuntimeError(f"{error}\n{self._console.read().decode()}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._nspawn.poll() is None:
            if (init := self._child()) is not None:
                os.kill(init, _POWER_OFF)
            try:
                self._nspawn.wait(60)
            except subprocess.TimeoutExpired:
                self._nspawn.terminate()
                self._nspawn.wait()
        for at in ("", "*/"):
            for group in Path("/sys/fs/cgroup").glob(f"{at}{self.name}"):
                for folder, *_rest in os.walk(group, topdown=False):
                    os.rmdir(folder)

    def status(self, *command: str | Path, input: str | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [*self._enter(), *command], input=input or "", text=True, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    @property
    def inside(self) -> Path:
        """The machine's root, as this process can read it."""
        return Path(f"/proc/{self._init}/root")

    @property
    def ssh_options(self) -> Sequence[str]:
        enter = f"nsenter --target={self._init} --mount --net --root --wd"
        return [f"ProxyCommand={enter} -- socat STDIO TCP:127.0.0.1:22"]

    def _enter(self) -> Sequence[str]:
        enter = ["nsenter", f"--target={self._init}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        return [*enter, "--root", "--wd", "--", "env", "-i", "LC_ALL=C.UTF-8", f"PATH={_PATH}"]

    def _child(self) -> int | None:
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text()
        return int(children.split()[0]) if children else None

    def is_up(self) -> bool:
        # nspawn's first child is not the machine's init yet.
        self._init = self._child() or self._init
        return super().is_up()


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
