"""QEMUs with two monitors and no libvirt: one for an agent, one for a test."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iokeel.hypervisors.qemu.limits import qapi_name
from testing.hypervisors.dialects import TODAYS, throttle_groups
from testing.hypervisors.qmp_client import QmpClient
from testing.waiting import eventually

_START_S = 60.0


class Monitored:
    """A qemu-storage-daemon or a QEMU. agent_socket: the monitor for an agent."""

    def __init__(self, folder: Path, command: Sequence[str | Path], name: str) -> None:
        self.agent_socket = folder / f"{name}.qmp"
        mine = folder / f"{name}-test.qmp"
        monitors = [
            word
            for number, path in enumerate((self.agent_socket, mine))
            for word in (
                *("--chardev", f"socket,id=c{number},path={path},server=on,wait=off"),
                *_monitor(number, command[0]),
            )
        ]
        self.process = subprocess.Popen([*command, *monitors])
        try:
            eventually(
                lambda: mine.exists() and self.agent_socket.exists(),
                _START_S,
                what=f"{name} serves QMP",
                process=self.process,
            )
            self._monitor = QmpClient(mine)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command. Raises QmpError with QEMU's words."""
        return self._monitor.ask(command, **arguments)

    def group(self, name: str) -> dict[str, Any]:
        """Return one of the throttle groups."""
        (found,) = [group for group in throttle_groups(self.ask) if group["name"] == name]
        return found

    def set_object(self, name: str, **limits: object) -> None:
        """Change limits of a group by hand."""
        value: dict[str, object] = {key.replace("_", "-"): limits[key] for key in limits}
        commands = {entry.get("name") for entry in self.ask("query-qmp-schema")}
        if TODAYS.query_groups in commands:
            extra = {key: value.pop(key) for key in map(qapi_name, TODAYS.fields) if key in value}
            value[TODAYS.extra] = extra
        self.ask("qom-set", path=f"/objects/{name}", property="limits", value=value)

    def end(self) -> None:
        """Kill it."""
        self._monitor.close()
        self.process.kill()
        self.process.wait()


def _monitor(number: int, program: str | Path) -> tuple[str, ...]:
    if "storage-daemon" in str(program):
        return ("--monitor", f"chardev=c{number}")
    return ("-mon", f"chardev=c{number},mode=control")
