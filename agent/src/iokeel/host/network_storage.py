"""Storage that a drive reaches over a network or a socket, by its URL."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, unquote, urlsplit

from iokeel.core.values.storage import Place

_PORTS = {"nbd": 10809, "iscsi": 3260}


def network_place(url: str) -> Place | None:
    """Return the storage that a URL's drive shares with others; None if it isn't known.

    Known are QEMU's own URLs, nvme://DDDD:BB:DD.F/NAMESPACE and rbd:POOL/IMAGE among them, and
    those that iokeel.libvirt_xml.domain makes of a disk's <source>.
    """
    if own := re.match("rbd:([^/:@]+)|nvme://([^/]+)", url):  # which urlsplit doesn't take
        return Place(f"rbd:{own[1]}" if own[1] else f"nvme:{own[2]}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    kind, _, transport = parts.scheme.partition("+")
    if kind == "nbds":  # over TLS
        kind = "nbd"
    path = unquote(parts.path).strip("/").split("/")
    socket = parse_qs(parts.query).get("socket", [""])[0]
    at = address(host, port or _PORTS.get(kind))
    if transport == "unix" or socket:
        at = f"unix:{socket}"
        host = socket
    match kind:
        case "":
            return None
        case "rbd":  # rbd://MONITOR/POOL/IMAGE
            return Place(f"rbd:{path[0]}") if path[0] else None
        case "volume":  # volume://POOL/NAME
            return Place(f"pool:{parts.netloc}") if parts.netloc else None
        case "iscsi" | "gluster":  # iscsi://HOST/TARGET/LUN, gluster://HOST/VOLUME/FILE
            return Place(f"{kind}:{at}/{path[0]}") if host and path[0] else None
        case _:
            return Place(f"{kind}:{at}") if host else None


def address(host: str, port: int | str | None = None) -> str:
    """Return HOST:PORT, or HOST if there is no port; an IPv6 address gets its brackets."""
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}" if port else host


def socket_url(scheme: str, socket: str, name: str = "") -> str:
    """Return the URL of a storage behind a unix socket. name: its export, if it has one."""
    return f"{scheme}+unix:///{name}?socket={quote(socket)}"
