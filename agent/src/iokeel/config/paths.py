"""Where things are unless the configuration says otherwise.

A file of its own, so that the command doesn't import what the configuration needs.
libvirt-hooks/qemu.d/50-iokeel runs without this package and repeats both; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

DEFAULT_CONFIG = Path("/etc/iokeel/agent.toml")
DEFAULT_SOCKET = Path("/run/iokeel/agent.sock")
DEFAULT_FACTS = Path("/etc/iokeel/facts.d")
#: Where Proxmox VE describes its VMs.
PROXMOX_FACTS = "/etc/pve/qemu-server/{name}.conf"
