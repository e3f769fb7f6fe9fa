"""Policies and limits of a lab host's guests, by virsh."""

from __future__ import annotations

from iokeel.libvirt_xml.schema import NAMESPACE
from testing.lab.host import Host


def policy(*drives: str, **attributes: str) -> str:
    """Return a policy element; each drive is its attributes, such as 'target="vda" limit="1"'."""
    words = " ".join(f'{name.rstrip("_")}="{value}"' for name, value in attributes.items())
    body = "".join(f"<iokeel:drive {drive}/>" for drive in drives)
    return f'<iokeel:policy xmlns:iokeel="{NAMESPACE}" {words}>{body}</iokeel:policy>'


def blkdeviotune(host: Host, domain: str, target: str = "vda") -> dict[str, int]:
    """Return the limits that virsh shows for a disk, in libvirt's words, without zeros."""
    lines = host.virsh("blkdeviotune", domain, target).splitlines()
    pairs = [line.split(":") for line in lines if ":" in line]
    found = {name.strip(): value.strip() for name, value in pairs}
    return {name: int(value) for name, value in found.items() if value.isdigit() and int(value)}


def set_metadata(host: Host, domain: str, text: str) -> None:
    """Change a running domain's policy. text: without a namespace, which virsh adds."""
    host.virsh(
        "metadata",
        domain,
        "--uri",
        NAMESPACE,
        "--key",
        "iokeel",
        "--set",
        text,
        "--live",
        "--config",
    )
