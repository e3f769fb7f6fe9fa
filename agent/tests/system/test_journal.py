"""Two images on one ext4 in a kernel with cgroup v2: a sync of one waits for the other's data."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from iokeel.core.enforce.backstop import backstop
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.lab.guests.domain import DiskSpec
from testing.lab.guests.vm import Vm
from testing.lab.host import Host

pytestmark = pytest.mark.alone

LIMIT = 50  # of the image that is written through the host's cache
BOUND = " ".join(f"{name}={value}" for name, value in backstop(DEFAULT_MODEL, LIMIT, 1.25).items())
FREE = "rbps=max wbps=max riops=max wiops=max"
MOUNT = """
mkdir /mnt
mount -t ext4 -o data=ordered /dev/vda /mnt
mount -t cgroup2 none /sys/fs/cgroup
echo "+io +memory" >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/slow
"""
RUN = """
set -e
echo "$(cat /sys/block/vda/dev) $2" >/sys/fs/cgroup/slow/io.max
rm -f /mnt/slow /mnt/fast
(
    echo 0 >/sys/fs/cgroup/slow/cgroup.procs
    exec fio --name=slow --filename=/mnt/slow --size=400m --rw=randwrite --bs=$1 --rate_iops=50 \
        --ioengine=psync --time_based --runtime=30 --output=/dev/null
) &
sleep 10
fio --name=fast --filename=/mnt/fast --size=32m --rw=write --bs=4k --fsync=1 --ioengine=psync \
    --time_based --runtime=15 --output-format=json --output=/tmp/fast
wait
echo "$(cat /sys/block/vda/dev) rbps=max wbps=max riops=max wiops=max" >/sys/fs/cgroup/slow/io.max
sync
"""


@pytest.fixture(scope="module")
def guest() -> Iterator[Vm]:
    with Host.bookworm() as host:
        host.start_libvirtd()
        disk = host.dir / "disk.raw"
        subprocess.run(["truncate", "--size=1G", disk], check=True)
        subprocess.run(["mkfs.ext4", "-q", disk], check=True)
        with Vm.boot(host, "v2", [DiskSpec("vda", disk)], memory_mib=1024) as vm:
            vm.exec(MOUNT)
            vm.write("/tmp/run", RUN.encode())
            yield vm


def syncs(vm: Vm, size: str, bound: str) -> float:
    """Return the synced writes a second beside an image that is written, at the limit in 4K."""
    vm.exec(f"sh /tmp/run {size} '{bound}'", 120)
    (job,) = json.loads(vm.read("/tmp/fast"))["jobs"]
    rate = float(job["write"]["iops"])
    print(f"{size} a write, {bound}: {rate:.1f} synced writes a second beside it")
    return rate


def test_a_neighbour_does_not_wait_for_an_image_that_keeps_to_its_limit(guest: Vm) -> None:
    assert syncs(guest, "4k", BOUND) > 0.5 * syncs(guest, "4k", FREE)


def test_it_waits_for_clusters_that_the_bound_does_not_allow_for_yet(guest: Vm) -> None:
    assert syncs(guest, "64k", BOUND) < 0.5 * syncs(guest, "64k", FREE)
