"""A watch in a machine that samples a disk's limits ten times a second, by libvirt alone.

While libvirtd restarts, there are no samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from testing.machines.host import Host

_SCRIPT = """
import json, sys, time, libvirt
libvirt.registerErrorHandler(lambda *_: None, None)
with open(sys.argv[2], "w") as out:
    connection = None
    while True:
        try:
            connection = connection or libvirt.open("qemu:///system")
            found = connection.lookupByName(sys.argv[1]).blockIoTune("vda")
        except libvirt.libvirtError as error:
            found = str(error)
            if not (connection and connection.isAlive()):
                connection = found = None
        if found:
            print(json.dumps(found), file=out, flush=True)
        time.sleep(0.1)
"""


@contextmanager
def watch(machine: Host, guest: str) -> Iterator[list[dict[str, int]]]:
    """Sample the limits of a guest's vda; the list is filled at the end."""
    unit = f"watch-{guest}"
    file = f"/tmp/{unit}.json"
    machine.run("systemd-run", "--quiet", "--collect", f"--unit={unit}", "/usr/bin/python3", "-c",
                _SCRIPT, guest, file)  # fmt: skip
    samples: list[dict[str, int]] = []
    try:
        yield samples
    finally:
        machine.run("systemctl", "stop", unit)
    for line in machine.run("cat", file).splitlines():
        found = json.loads(line)
        assert isinstance(found, dict), f"libvirt didn't answer the watch: {found}"
        samples.append(found)
    machine.run("rm", file)
