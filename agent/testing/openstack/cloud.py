"""A booted machine with a whole OpenStack on it: its API, and one hypervisor that emulates."""

from __future__ import annotations

import json
from typing import Any, Self

from testing.machines.container import Machine
from testing.openstack.root import APIS, BASICS, CODENAME, WORKERS, cloud
from testing.waiting import eventually

_START_S = 300.0
#: An operation, from its request to its end, beside a whole OpenStack on two processors.
_OPERATION_S = 240.0
_OPENRC = "set -a; . /root/openrc; exec openstack"


class Cloud(Machine):
    """A running OpenStack; use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(CODENAME, root=cloud())

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.run("systemctl", "start", *BASICS)
        # A filesystem of its own, as a share is.
        self.run("mount", "-t", "tmpfs", "-o", "size=1g,mode=777", "share", "/srv/share")
        self.run("systemctl", "start", *APIS, *WORKERS)
        eventually(self._answer, _START_S, what="all services answer")
        # Until it has looked for anything else, neutron-api fails to list ports.
        self.openstack("network", "list")
        eventually(self._are_up, _START_S, what="all workers are up")
        self.run("setpriv", "--reuid=nova", "--regid=nova", "--init-groups",
                 "nova-manage", "cell_v2", "discover_hosts")  # fmt: skip

    def _answer(self) -> bool:
        ask = ["curl", "--silent", "--output", "/dev/null"]
        urls = [f"http://127.0.0.1:{port}/" for port in APIS.values()]
        return all(self.status(*ask, url)[0] == 0 for url in urls)

    def _are_up(self) -> bool:
        rows = [row for kind in ("compute", "volume") for row in self.ask(kind, "service", "list")]
        up = {row["Binary"] for row in rows if row["State"] == "up"}
        return up == {worker for worker in WORKERS if not worker.startswith("neutron")}

    def openstack(self, *words: str) -> str:
        """Run the client as the administrator, and return its output."""
        return self.run("sh", "-euc", f'{_OPENRC} "$@"', "sh", *words)

    def ask(self, *words: str) -> Any:
        """Run the client, and return what it prints as JSON."""
        return json.loads(self.openstack(*words, "--format=json"))

    def becomes(self, kind: str, name: str, wanted: str) -> None:
        """Wait until a server or a volume has a status."""

        def status() -> str:
            found: str = self.ask(kind, "show", name)["status"]
            return found if found.lower() in (wanted, "error") else ""

        assert eventually(status, _OPERATION_S).lower() == wanted, self.ask(kind, "show", name)
