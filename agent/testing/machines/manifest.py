"""What a machine has: files, users, groups and units, to compare before and after."""

from __future__ import annotations

from testing.machines.host import Host

# Paths that change on any machine at any time, or with any package.
_VOLATILE = (
    "/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/root",
    "/var/lib/dpkg", "/var/lib/apt", "/var/lib/systemd", "/var/lib/libvirt/dnsmasq",
    "/var/lib/libvirt/qemu/domain-*",  # of a guest that runs
    "/var/backups",  # of apt's and dpkg's daily jobs
    # shadow's and ldconfig's copies of the last version
    "/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-", "/etc/ld.so.cache",
)  # fmt: skip

_FILES = """
find / -xdev \\( {pruned} \\) -prune -o -printf '%M %U:%G %p %l\\n'
find / -xdev \\( {pruned} \\) -prune -o -type f -print0 | xargs -0 b2sum --length=256
"""
# Without what a login starts, and names of absent units of others that systemd has met. After a
# change to its units, an emulated machine's systemd may need longer than 25 s to answer.
_UNITS = """
export SYSTEMD_BUS_TIMEOUT=300
{ systemctl list-unit-files --no-legend --no-pager
  systemctl list-units --all --type=service,socket --no-legend --no-pager --plain |
      awk '$2 != "not-found" || /iokeel/ {print "unit", $1, $2}'
} | grep -Ev 'transient|(user|user-runtime-dir)@[0-9]+[.]service'
"""


def manifest(machine: Host) -> list[str]:
    """Return a line for each file with its owner, mode and content, each user, group and unit."""
    pruned = " -o ".join(f"-path '{path}'" for path in _VOLATILE)
    lines = machine.sh(_FILES.format(pruned=pruned)).splitlines()
    for database in ("passwd", "group"):
        lines += [f"{database} {line}" for line in machine.run("getent", database).splitlines()]
    return sorted(lines + machine.sh(_UNITS).splitlines())
