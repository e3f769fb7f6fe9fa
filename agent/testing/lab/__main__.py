"""`python -m testing.lab`: a hypervisor and a guest to play with."""

import argparse
import os
import sys
from pathlib import Path

from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.programs import Programs
from testing.lab.guests.qga import GuestAgent
from testing.lab.guests.vm import Vm
from testing.lab.host import Host

GREETING = """\
This shell is inside a {suite} host; when it ends, the host and its guests go.
  virsh list                                  guest g1 runs, with a disk vda of 256 MiB
  {python} -m testing.lab exec g1 'fio --version'     run something in the guest
From outside, its libvirt is at
  {uri}
"""


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m testing.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shell = commands.add_parser("shell", help="start a host with one guest, and a shell in it")
    shell.add_argument("suite", choices=["bookworm", "trixie"])
    run = commands.add_parser("exec", help="run a script in a guest; only in that shell")
    run.add_argument("guest")
    run.add_argument("script")
    arguments = parser.parse_args()
    if arguments.command == "shell":
        return _shell(arguments.suite)
    return _exec(arguments.guest, arguments.script)


def _shell(suite: str) -> int:
    make = Host.bookworm if suite == "bookworm" else Host.trixie
    with make() as host:
        host.start_libvirtd()
        disk = make_disk(host.dir / "g1-vda.img", 256)
        Vm.boot(host, "g1", [DiskSpec("vda", disk)]).agent.close()
        print(GREETING.format(suite=suite, uri=host.uri, python=sys.executable), flush=True)
        environ = {**os.environ, "LAB_DIR": str(host.dir), "PS1": f"{suite}# "}
        return host.popen(["bash", "--norc"], env=environ, cwd=host.dir).wait()


def _exec(guest: str, script: str) -> int:
    agent = GuestAgent(Path(os.environ["LAB_DIR"]) / f"{guest}.agent")
    finished = Programs(agent).exec(script, timeout=3600, check=False)
    sys.stdout.buffer.write(finished.stdout)
    sys.stderr.buffer.write(finished.stderr)
    return finished.status or 0


if __name__ == "__main__":
    sys.exit(main())
