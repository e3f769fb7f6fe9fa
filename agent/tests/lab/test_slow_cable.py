"""A network that is slow in one direction, and loses packets there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.fleet.chaos.network import Network
from benchmarks.fleet.chaos.slow_cable import SO_RCVBUFFORCE

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces"),
]

DELAY_S, LOSS_RATIO = 0.2, 0.1
SENT = 400  # a TAP device keeps 500 for a cable that has no processor just then
PORT = 5000
RECEIVE = f"""
import socket, struct, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.setsockopt(socket.SOL_SOCKET, {SO_RCVBUFFORCE}, 1 << 22)
    here.bind(("0.0.0.0", {PORT}))
    here.settimeout(60)
    print("ready", flush=True)
    ages = []
    while (sent_s := struct.unpack("d", here.recv(8))[0]) > 0:
        ages.append(time.monotonic() - sent_s)
print(len(ages), min(ages))
"""
SEND = f"""
import socket, struct, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    for _ in range({SENT}):
        here.sendto(struct.pack("d", time.monotonic()), (sys.argv[1], {PORT}))
        time.sleep(0.001)
    for _ in range(30):  # one of them arrives
        here.sendto(struct.pack("d", 0.0), (sys.argv[1], {PORT}))
"""
SEND_MUCH = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001), 30) as there:
    there.sendall(bytes(200_000))
"""
RECEIVE_MUCH = """
import socket
with socket.create_server(("0.0.0.0", 5001)) as here:
    print("ready", flush=True)
    there, _ = here.accept()
    print(sum(iter(lambda: len(there.recv(65536)), 0)))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(["a", "b"])
    network.start()
    try:
        yield network
    finally:
        network.end()


def passed(network: Network, frm: str, to: str, send: str, receive: str) -> str:
    """Return what a program on one host says of what another one sends it."""
    there = subprocess.Popen(
        [*network.inside(to), sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True
    )
    assert there.stdout is not None
    assert there.stdout.readline() == "ready\n"
    here = [*network.inside(frm), sys.executable, "-c", send, network.address(to)]
    subprocess.run(here, check=True)
    return there.communicate(timeout=60)[0]


def test_a_slow_network_delays_and_loses_what_a_host_sends(network: Network) -> None:
    with network.slow("a", DELAY_S, LOSS_RATIO):
        count, age_s = passed(network, "a", "b", SEND, RECEIVE).split()
        assert 0.8 * SENT < int(count) < 0.97 * SENT
        assert float(age_s) >= DELAY_S
        assert int(passed(network, "a", "b", SEND_MUCH, RECEIVE_MUCH)) == 200_000
        count, age_s = passed(network, "b", "a", SEND, RECEIVE).split()
        assert int(count) == SENT
        assert float(age_s) < DELAY_S
    count, age_s = passed(network, "a", "b", SEND, RECEIVE).split()
    assert int(count) == SENT
    assert float(age_s) < DELAY_S
