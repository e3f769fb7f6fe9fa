"""A guest that migrates between two lab hosts, and who watches its limits meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from testing.agents import free_port
from testing.hypervisors.qmp_client import QmpClient
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.sampler import Sampler

_LIMITS = {"iops": "total_iops_sec", "iops_size": "size_iops_sec", "bps": "total_bytes_sec"}


class Watch(Sampler):
    """Samples the limits of a guest's only drive over a monitor of its own. A context manager.

    Its end raises if the watch has ended before, as it does if the QEMU ends. limits: by libvirt's
    names of them, each time that the guest ran.
    """

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self.limits: list[dict[str, int]] = []
        self._socket = socket

    def _run(self) -> None:
        while not self._socket.exists():
            if self._stop.wait(0.01):
                return
        with QmpClient(self._socket) as qmp:
            while not self._stop.wait(0.02):
                if qmp.ask("query-status")["running"]:
                    (block,) = [b for b in qmp.ask("query-block") if "inserted" in b]
                    found = block["inserted"]
                    self.limits.append({name: int(found.get(k, 0)) for k, name in _LIMITS.items()})


def migrate(
    name: str,
    source: Host,
    target: Host,
    emulator: Path | None = None,
    copies: Mapping[Path, Path] | None = None,
) -> None:
    """Migrate a guest live; its console, its agent and its monitor get sockets of the new host.

    emulator: what runs it there, if not what runs it here. copies: where its disks are copied to;
    without any, both hosts see them.
    """
    xml = source.virsh("dumpxml", name, "--migratable")
    xml = xml.replace(f"{source.dir}/{name}.", f"{target.dir}/{name}.")
    if emulator:
        old = xml.partition("<emulator>")[2].partition("</emulator>")[0]
        xml = xml.replace(f"<emulator>{old}<", f"<emulator>{emulator}<")
    for here, there in (copies or {}).items():
        xml = xml.replace(f"'{here}'", f"'{there}'")
    new = source.dir / "new.xml"
    new.write_text(xml)
    storage = ("--copy-storage-all", "--disks-port", str(free_port())) if copies else ()
    source.virsh(
        *("migrate", "--live", "--unsafe", name, target.uri, "--persistent"),
        *("--undefinesource", "--migrateuri", f"tcp://127.0.0.1:{free_port()}"),
        *("--xml", str(new), *storage),
    )


def destroy(name: str, hosts: Iterable[Host]) -> None:
    """Stop a guest at once, wherever it runs."""
    for host in hosts:
        if name in host.virsh("list", "--name").split():
            Vm(host, name).destroy()
