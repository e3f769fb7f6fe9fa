"""A cable between a link and a bridge that is slow, and loses packets, on the way from the link.

It does what netem does, which not every kernel has. Frames go through with what is left to do for
them (checksums, cutting into packets), as virtio describes it.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

# asm-generic/socket.h, linux/if_ether.h, linux/if_packet.h, linux/if_tun.h
SO_RCVBUFFORCE = 33
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 1, 15, 23
_PACKET_MR_PROMISC = 1
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
_MOST_BYTES = 1 << 17  # a frame has up to 64 KiB if the kernel leaves its segmentation to us
_BUFFER_BYTES = 1 << 24  # what comes while this process waits for a processor isn't lost


def open_tap(name: str) -> int:
    """Make a TAP device, which goes when its descriptor is closed."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return tap


def open_link(name: str) -> socket.socket:
    """Take all that comes in on a link, whoever it is for."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER_BYTES)
    link.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    link.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    wanted = struct.pack("IHH8x", socket.if_nametoindex(name), _PACKET_MR_PROMISC, 0)
    link.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, wanted)
    link.bind((name, _ETH_P_ALL))
    return link


def relay(link: socket.socket, tap: int, delay_s: float, loss_ratio: float) -> None:
    """Relay frames for ever: those from the link late, if at all.

    What comes to an end that is down is lost.
    """
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([link.fileno(), tap], [], [], timeout)
        if link.fileno() in ready:
            with suppress(OSError):
                frame = link.recv(_MOST_BYTES)
                if random.random() >= loss_ratio:
                    waiting.append((time.monotonic() + delay_s, frame))
        if tap in ready:
            with suppress(OSError):
                link.send(os.read(tap, _MOST_BYTES))
        while waiting and waiting[0][0] <= time.monotonic():
            with suppress(OSError):
                os.write(tap, waiting.popleft()[1])


def main(name: str, tap_name: str, delay_s: float, loss_ratio: float) -> None:
    """Be the cable. Prints a line once both ends are there."""
    link, tap = open_link(name), open_tap(tap_name)
    print("ready", flush=True)
    relay(link, tap, delay_s, loss_ratio)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
