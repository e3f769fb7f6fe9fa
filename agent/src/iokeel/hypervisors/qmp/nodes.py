"""Block nodes that QEMU spells out in a json: file name, as URLs.

QEMU makes such a name from the options that opened the node (qapi/block-core.json,
BlockdevOptions), as a tree or with flat keys like "server.path".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iokeel.host.network_storage import address, socket_url

# As deep as server.0.host.
_DEEPEST = 3


def node_url(node: Mapping[str, Any]) -> str | None:
    """Return the path or URL that the lowest node of a drive reaches; None if unknown."""
    options = dict(_flat(node))
    driver = options.get("driver", "")
    if filename := options.get("filename"):
        return filename
    host = _server(options, "server.0" if driver in ("gluster", "rbd") else "server")
    match driver:
        case "nbd" if "path" in options or "server.path" in options:
            socket = options.get("server.path") or options["path"]
            return socket_url("nbd", socket, options.get("export", ""))
        case "nbd":
            return f"nbd://{host}/{options.get('export', '')}"
        case "rbd":
            return f"rbd://{host}/{options.get('pool', '')}/{options.get('image', '')}"
        case "iscsi":
            at = options.get("portal", "")
            return f"iscsi://{at}/{options.get('target', '')}/{options.get('lun', '0')}"
        case "gluster":
            return f"gluster://{host}/{options.get('volume', '')}/{options.get('path', '')}"
        case "nfs" | "ssh":
            return f"{driver}://{host}/{options.get('path', '').lstrip('/')}"
        case "nvme":
            return f"nvme://{options.get('device', '')}/{options.get('namespace', '1')}"
        case "http" | "https" | "ftp" | "ftps":
            return options.get("url")
        case "virtio-blk-vhost-user":
            return socket_url("vhost-user", options.get("path", ""))
        case "nvme-io_uring":
            return options.get("path")
    return None


def _flat(node: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return a node's texts and numbers with their flat keys."""
    found: list[tuple[str, str]] = []
    for key, value in node.items():
        if isinstance(value, list):
            value = {str(i): each for i, each in enumerate(value)}
        if isinstance(value, str | int):
            found.append((before + key, str(value)))
        elif isinstance(value, dict) and before.count(".") < _DEEPEST:
            found += _flat(value, f"{before}{key}.")
    return found


def _server(options: Mapping[str, str], at: str) -> str:
    host = options.get(f"{at}.host") or options.get("host", "")
    return address(host, options.get(f"{at}.port") or options.get("port"))
