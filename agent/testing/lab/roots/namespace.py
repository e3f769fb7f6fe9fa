"""A machine in the machine: a private view of files and processes over a read-only root.

A namespace is one process tree with its own mounts and process numbers. Its root is an overlay of
a folder (`/` itself, or another Debian) and memory: programs inside can write anywhere, and nothing
of that stays. When its owner closes it, or dies in any way, the kernel ends every process in it.
Its mounts go with the last of them.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from testing.processes import PopenOptions

CLONE_NEWPID = 0x20000000

# The owner holds the other end of this shell's stdin. unshare's child is process 1 of the
# namespace: it ends when the pipe closes, and the kernel kills the rest. The shell outside then
# removes the folder, because nothing uses it any more.
OUTSIDE = """
unshare --mount --pid --fork --kill-child --propagation private -- bash "$@"
rm -rf --one-file-system -- "$2"
"""
INSIDE = Path(__file__).with_name("namespace.sh")


class Namespace:
    """A running namespace. Use it as a context manager, or close() it."""

    def __init__(self, folder: Path, lower: Path, binds: Mapping[Path, tuple[Path, str]]) -> None:
        """Start a namespace over `lower`.

        folder: an empty folder; close() removes it, with all that was put in it.
        binds: path inside -> (path outside, "rw" or "ro"), mounted in this order.
        Raises RuntimeError with the shell's words when a mount fails.
        """
        self._children: list[subprocess.Popen[str]] = []
        (folder / "root").mkdir()
        triples = [str(p) for inside, (outside, mode) in binds.items()
                   for p in (outside, inside, mode)]  # fmt: skip
        self._holder = subprocess.Popen(
            ["bash", "-c", OUTSIDE, "outside", str(INSIDE), str(folder), str(lower), *triples],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # a ^C at the terminal is the owner's to handle
        )  # fmt: skip
        assert self._holder.stdout
        if self._holder.stdout.readline() != b"ready\n":
            raise RuntimeError(f"namespace: {self._holder.communicate()[1].decode().strip()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text().split()[0])
        """A process outside that has the namespace's mounts (it is unshare's)."""
        self._pids = os.open(f"/proc/{self.pid}/ns/pid_for_children", os.O_RDONLY)

    def argv(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the words that a shell outside would run `argv` inside with."""
        return ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--", *map(str, argv)]

    def popen(
        self, argv: Sequence[str | Path], **options: Unpack[PopenOptions]
    ) -> subprocess.Popen[str]:
        """Start a process inside; `options` are subprocess.Popen's.

        It is a direct child of this process, so its pid and signals are its own. Its working
        folder is `/`, or `cwd`, a path inside.
        """
        enter = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--"]
        if cwd := options.pop("cwd", None):
            enter += ["env", f"--chdir={cwd}"]
        with self._children_go_inside():
            child = subprocess.Popen([*enter, *map(str, argv)], text=True, **options)
        self._children = [c for c in self._children if c.poll() is None] + [child]
        return child

    def run(
        self, argv: Sequence[str | Path], input: str | None = None,
        timeout: float = 120, check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a program inside and return its exit status and output.

        timeout: seconds; past it the program is killed and subprocess.TimeoutExpired raised.
        Raises RuntimeError with the program's own words when it fails, unless check is False.
        """
        pipe = subprocess.PIPE
        with self.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(input or "", timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {err.strip() or process.returncode}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @contextlib.contextmanager
    def _children_go_inside(self) -> Iterator[None]:
        # nsenter --pid would fork, and signals for the child would reach nsenter only. setns with
        # a pid namespace concerns the calling thread's next children: they are born inside.
        # (os.setns comes with Python 3.12.)
        libc = ctypes.CDLL(None, use_errno=True)
        own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY)
        try:
            if libc.setns(self._pids, CLONE_NEWPID):
                raise OSError(ctypes.get_errno(), "setns: namespace is gone")
            try:
                yield
            finally:
                libc.setns(own, CLONE_NEWPID)
        finally:
            os.close(own)

    def close(self) -> None:
        """End every process inside and remove the folder; return when both are done."""
        if self._holder.poll() is not None:
            return
        os.close(self._pids)
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe:
                pipe.close()
        for child in self._children:  # process 1 can't end before its last zombie is reaped
            child.wait()
        self._holder.wait()

    def __enter__(self) -> "Namespace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
