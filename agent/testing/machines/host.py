"""What every test machine offers, however it was booted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Host:
    """A running machine."""

    @property
    def ssh_options(self) -> Sequence[str]:
        """The options with which ssh reaches it."""
        raise NotImplementedError

    def status(self, *command: str | Path, input: str | None = None) -> tuple[int, str]:
        """Run a program and return its exit status and its output, stdout and stderr together."""
        raise NotImplementedError

    def run(self, *command: str | Path, check: bool = True, input: str | None = None) -> str:
        """Run a program and return its output. Raises RuntimeError with it if the program fails."""
        status, out = self.status(*command, input=input)
        if check and status:
            raise RuntimeError(f"{' '.join(map(str, command))}: status {status}\n{out}")
        return out

    def virsh(self, *words: str | Path) -> str:
        """Run virsh, and return its output. Raises RuntimeError if it fails."""
        return self.run("virsh", "--quiet", *words)

    def sh(self, script: str) -> str:
        """Run a shell script, and return its output. Raises RuntimeError if a command fails."""
        return self.run("sh", "-euc", script)

    def is_up(self) -> bool:
        """Return whether systemd has started all units."""
        return self.status("systemctl", "is-system-running")[1].strip() in ("running", "degraded")
