"""What a drive that is reached over a network or a socket shares with others, by its URL."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

from iokeel.core.sharing.storage import Place

_PORTS = {"nbd": 10809, "iscsi": 3260}


def network_place(url: str) -> Place | None:
    """Return the storage of a drive that is reached over a network or a socket, by its URL.

    Known are QEMU's own URLs, nvme://DDDD:BB:DD.F/NAMESPACE and rbd:POOL/IMAGE among them, and
    libvirt's as iokeel.policy_xml.domain writes them.
    """
    if own := re.match("rbd:([^/:@]+)|nvme://([^/]+)", url):  # that urlsplit doesn't take
        return Place(f"rbd:{own[1]}" if own[1] else f"nvme:{own[2]}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    kind, _, transport = parts.scheme.partition("+")
    path = unquote(parts.path).strip("/").split("/")
    socket = parse_qs(parts.query).get("socket", [""])[0]
    if ":" in host:
        host = f"[{host}]"
    at = f"{host}:{port or _PORTS[kind]}" if kind in _PORTS else f"{host}:{port}" if port else host
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
