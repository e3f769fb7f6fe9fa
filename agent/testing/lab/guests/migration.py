"""A guest that migrates between two lab hosts, and who watches its limits meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from testing.agents import free_port
from testing.hypervisors.qmp_client import QmpClient
from testing.lab.guests.vm import Vm
from testing.lab.host import Host

_LIMITS = {"iops": "total_iops_sec", "iops_size": "size_iops_sec", "bps": "total_bytes_sec"}


@dataclass
class Watch:
    """Samples the limits of a guest's drive over a monitor of its own. A context manager.

    limits: by libvirt's names of them, each time that the guest ran.
    """

    socket: Path
    limits: list[dict[str, int]] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.socket.exists():
            if self._end.wait(0.01):
                return
        qmp = QmpClient(self.socket)
        try:
            while not self._end.wait(0.02):
                if qmp.ask("query-status")["running"]:
                    (block,) = [b for b in qmp.ask("query-block") if "inserted" in b]
                    found = block["inserted"]
                    self.limits.append({name: int(found.get(k, 0)) for k, name in _LIMITS.items()})
        except (OSError, ValueError):  # the QEMU has ended: the guest runs elsewhere
            pass
        finally:
            qmp.close()


def migrate(name: str, source: Host, target: Host, emulator: Path | None = None) -> None:
    """Migrate a guest live; its console, its agent and its monitor get sockets of the new host.

    emulator: what runs it there, if not what runs it here.
    """
    xml = source.virsh("dumpxml", name, "--migratable")
    xml = xml.replace(f"{source.dir}/{name}.", f"{target.dir}/{name}.")
    if emulator:
        old = xml.partition("<emulator>")[2].partition("</emulator>")[0]
        xml = xml.replace(f"<emulator>{old}<", f"<emulator>{emulator}<")
    new = source.dir / "new.xml"
    new.write_text(xml)
    source.virsh(
        *("migrate", "--live", "--unsafe", name, target.uri, "--persistent"),
        *("--undefinesource", "--migrateuri", f"tcp://127.0.0.1:{free_port()}"),
        *("--xml", str(new)),
    )


def destroy(name: str, hosts: Iterable[Host]) -> None:
    """Stop a guest at once, wherever it runs."""
    for host in hosts:
        if name in host.virsh("list", "--name").split():
            Vm(host, name).destroy()
