"""A guest: a domain of a lab host, and the programs that run in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack
from xml.etree import ElementTree as ET

from testing.lab.guests.domain import DiskSpec, DomainOptions, disk_element, domain_xml
from testing.lab.guests.programs import Programs
from testing.lab.guests.qga import AgentError, GuestAgent
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually


class Vm(Programs):
    """One guest of a host, by name. Use it as a context manager, or destroy() it.

    Something else may have defined its domain. Have one Vm of a guest at a time, because the guest
    agent serves one peer.
    """

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        super().__init__(GuestAgent(host.dir / f"{name}.agent"))

    @classmethod
    def boot(
        cls,
        host: Host,
        name: str,
        drives: Sequence[DiskSpec],
        *,
        ready: bool = True,
        **options: Unpack[DomainOptions],
    ) -> "Vm":
        """Define a domain, start it, and wait until its agent answers, unless `ready` is False.

        options: those of domain_xml.
        """
        vm = cls(host, name)
        vm.define(domain_xml(name, drives, image=image(), folder=host.dir, **options))
        vm.start() if ready else vm.launch()
        return vm

    def define(self, xml: str) -> None:
        """Make the domain persistent, or change it from its next start on."""
        self.host.virsh("define", "/dev/stdin", input=xml)

    def start(self, timeout: float = 240) -> None:
        """Start the domain and wait for its agent.

        timeout: seconds. Raises AgentError with the console's end when it doesn't answer.
        """
        self.launch()
        self.wait_ready(timeout)

    def launch(self) -> None:
        """Start the domain. Its QEMU runs, but the guest has yet to boot; see wait_ready()."""
        self.host.virsh("start", self.name)

    def wait_ready(self, timeout: float = 240) -> None:
        """Wait until the guest's agent answers; see start()."""
        try:
            self.agent.call("guest-ping", timeout)
        except AgentError as error:
            console = self.console()[-2000:]
            raise AgentError(f"{error}; the end of its console:\n{console}") from error
        self._use_sound_clock()

    def console(self) -> str:
        """Return what the guest has written to its console."""
        return (self.host.dir / f"{self.name}.console").read_text(errors="replace")

    def destroy(self) -> None:
        """Stop the guest at once, if it runs. Its definition stays."""
        self.agent.close()
        if self.state() != "shut off":
            self.host.virsh("destroy", self.name)

    def shutdown(self, timeout: float = 30) -> None:
        """Ask the guest to power off, and wait until it is off. Raises TimeoutError."""
        self.host.virsh("shutdown", self.name, "--mode", "acpi")
        try:
            eventually(lambda: self.state() == "shut off", timeout)
        except AssertionError as error:
            raise TimeoutError(f"{self.name} is {self.state()} after {timeout} s") from error
        self.agent.close()

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Save the running guest to a file, and restore it with a new QEMU."""
        image = self.host.dir / f"{self.name}.saved"
        self.host.virsh("save", self.name, image)
        self.agent.close()  # that QEMU is gone
        yield
        self.host.virsh("restore", image)
        image.unlink(missing_ok=True)

    def running(self) -> bool:
        """Return whether libvirt says that the guest runs."""
        return self.state() == "running"

    def state(self) -> str:
        """Return the domain's state in virsh's words; on the way down it is "in shutdown"."""
        return self.host.virsh("domstate", self.name).strip()

    def attach(self, drive: DiskSpec) -> None:
        """Plug a disk into the running guest, and wait until it sees it."""
        element = ET.tostring(disk_element(drive), encoding="unicode")
        self.host.virsh("attach-device", self.name, "/dev/stdin", "--live", input=element)
        self.exec(f"until [ -b /dev/{drive.target} ]; do usleep 10000; done")

    def detach(self, target: str) -> None:
        """Unplug a disk from the running guest."""
        self.host.virsh("detach-disk", self.name, target, "--live")

    def __enter__(self) -> "Vm":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
