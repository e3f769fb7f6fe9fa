"""The agent in exact mode without libvirt: storage daemons, and a QEMU."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from iokeel.cli.client import why
from iokeel.core.values.curve import DEFAULT_CURVE
from testing.agents import Agent, http
from testing.host.storage import MIB, loop_device
from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.monitored import Monitored
from testing.lab.qemu import binaries
from testing.waiting import eventually
from tests.exact.guests import POINTS

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
ALICE = "[vm.drives.alice]\nlimit = 2000\n"
VDA = "/machine/peripheral/vda/virtio-backend"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        yield Path(name)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Monitored]:
    """A patched storage daemon: two groups, the disk of one of them exported over NBD."""
    running = Monitored(folder, _daemon(binaries() / "qemu-storage-daemon", folder), "sd1")
    yield running
    running.end()


@pytest.fixture
def qemu(folder: Path) -> Iterator[Monitored]:
    """A patched QEMU without a guest: vda with limits of its own, vdb below a throttle filter."""
    for name in ("a", "b"):
        (folder / name).write_bytes(bytes(1 << 20))
    command: list[str | Path] = [
        *(binaries() / "qemu-system-x86_64", "-L", "/usr/share/qemu", "-L", "/usr/share/seabios"),
        *("-M", "q35,accel=tcg", "-nodefaults", "-display", "none", "-S", "-m", "32"),
        *("-blockdev", f"file,node-name=fa,filename={folder}/a"),
        *("-device", "virtio-blk-pci,drive=fa,id=vda"),
        *("-object", "throttle-group,id=tg0"),
        *("-blockdev", f"file,node-name=fb,filename={folder}/b"),
        *("-blockdev", "throttle,node-name=tb,file=fb,throttle-group=tg0"),
        *("-device", "virtio-blk-pci,drive=tb,id=vdb"),
    ]
    running = Monitored(folder, command, "db1")
    yield running
    running.end()


def _daemon(program: str | Path, folder: Path) -> list[str | Path]:
    (folder / "disk").write_bytes(b"x" * (64 << 20))
    return [
        *(program, "--object", "throttle-group,id=alice", "--object", "throttle-group,id=bob"),
        *("--blockdev", f"file,node-name=disk,filename={folder}/disk"),
        *("--blockdev", "throttle,node-name=t0,file=disk,throttle-group=alice"),
        *("--nbd-server", f"addr.type=unix,addr.path={folder}/nbd"),
        *("--export", "nbd,id=e0,node-name=t0,name=disk,writable=on"),
    ]


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    """An agent for a test's QEMU, by the parameters (its fixture, its drives' policies)."""
    fixture, drives = request.param
    monitored: Monitored = request.getfixturevalue(fixture)
    path = monitored.agent_socket
    vm = f'[[vm]]\nname = "{path.stem}"\nsocket = "{path}"\n{drives}'
    with Agent(path.parent, vm) as running:
        yield running


def drive(agent: Agent, target: str) -> dict[str, Any]:
    (vm,) = agent.ask("/v1/vms")
    (found,) = [drive for drive in vm["drives"] if drive["target"] == target]
    record: dict[str, Any] = found
    return record


def exact(monitored: Monitored, group: str, limit: int, split_size: int = 0) -> bool:
    limits = monitored.group(group)["limits"]
    patched = limits.get("cost-read") == limits.get("cost-write") == POINTS
    patched &= limits.get("split-size", 0) == split_size and limits.get("idle-credit-ms") == 10
    return bool(patched and limits["iops-total"] == limit and not limits["bps-total"])


def fio(folder: Path, *jobs: str) -> list[dict[str, Any]]:
    """Load the export, and return fio's report of each job."""
    common = ["--ioengine=nbd", f"--uri=nbd+unix:///disk?socket={folder}/nbd", "--thread"]
    common += ["--iodepth=16", "--norandommap", "--output-format=json"]
    words = [word for job in jobs for word in job.split()]
    run = subprocess.run(["fio", *common, *words], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(run.stdout[run.stdout.index("{") :])["jobs"]
    return found


on_shared = pytest.mark.parametrize("agent", [("daemon", "limit = 2000\n")], indirect=True)
on_daemon = pytest.mark.parametrize("agent", [("daemon", ALICE)], indirect=True)
on_qemu = pytest.mark.parametrize(
    "agent", [("qemu", "[vm.drives.vda]\nlimit = 900\n[vm.drives.vdb]\nlimit = 2000\n")],
    indirect=True,
)  # fmt: skip


# Storage daemons


@on_daemon
def test_a_storage_daemons_groups_are_its_drives(daemon: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(daemon, "alice", 2000))
    assert "cost-read" not in daemon.group("bob")["limits"]
    (vm,) = agent.ask("/v1/vms")
    assert [d["target"] for d in vm["drives"]] == ["alice", "bob"]
    assert (vm["policy_error"], drive(agent, "alice")["mode"]) == (None, "exact")


@on_shared
def test_a_vms_limit_is_divided_among_its_drives_by_demand(daemon: Monitored, agent: Agent) -> None:
    both = ("alice", "bob")
    eventually(lambda: all(exact(daemon, group, 1000) for group in both))
    folder = daemon.agent_socket.parent
    with ThreadPoolExecutor() as pool:
        load = pool.submit(fio, folder, "--name=a --rw=randread --bs=4k --number_ios=16000")
        eventually(lambda: exact(daemon, "alice", 1950), 20)
        while not load.done():
            (vm,) = agent.ask("/v1/vms")
            assert sum(drive["allowed_iops"] for drive in vm["drives"]) <= 2000
        assert load.result()[0]["read"]["total_ios"] == 16_000
    assert drive(agent, "bob")["allowed_iops"] == 50
    assert agent.stop() == 0
    assert [daemon.group(group)["limits"]["iops-total"] for group in both] == [1950, 50]


@on_daemon
def test_rates_cost_and_sizes_are_those_of_the_load(daemon: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(daemon, "alice", 2000))
    folder = daemon.agent_socket.parent
    small, large = fio(
        folder,
        "--name=small --rw=randread --bs=4k --number_ios=3000",
        "--name=large --rw=randwrite --bs=64k --number_ios=300",
    )
    reads, writes = small["read"]["total_ios"], large["write"]["total_ios"]
    assert (reads, writes) == (3000, 300)
    eventually(lambda: drive(agent, "alice")["read_requests"] == reads)
    found = drive(agent, "alice")
    _, _, text = http(agent.socket, "GET", "/metrics")
    assert (found["write_requests"], found["write_bytes"]) == (writes, writes << 16)
    assert found["read"]["sizes"] == {"4096": reads}
    assert found["write"]["sizes"] == {"65536": writes}
    assert found["read"]["cost"] == pytest.approx(reads * 1.0)
    assert found["write"]["cost"] == pytest.approx(writes * 10.0)
    assert 0 < found["read"]["waited"] <= reads
    assert found["read_latency_s"] is None, "nobody counts it"
    assert found["throttled_s"] >= 2.0, "6000 at 2000 a second, and most of the time it waited"
    assert found["retunes"] == 0
    of_reads = {
        (sample.name.removeprefix("iokeel_drive_"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("target_device") == "alice"
        and sample.labels.get("direction") == "read"
    }
    assert of_reads["requests_total", None] == of_reads["request_size_bytes_count", None] == reads
    assert of_reads["bytes_total", None] == of_reads["request_size_bytes_sum", None] == reads << 12
    assert of_reads["throttle_cost_total", None] == pytest.approx(reads)
    for bound, count in (("4095", 0), ("8191", reads), ("+Inf", reads)):
        assert of_reads["request_size_bytes_bucket", bound] == count
    assert "by the cost curve itself" in "\n".join(why(agent.socket, "sd1", "alice")["alice"])


@on_daemon
@pytest.mark.parametrize(
    "change",
    [
        {"cost_read": []},
        {"cost_write": POINTS[:2]},
        {"idle_credit_ms": 100},
        {"iops_total": 5000},
    ],
)
def test_what_somebody_changes_is_put_back_within_a_tick_and_counted(
    daemon: Monitored, agent: Agent, change: dict[str, Any]
) -> None:
    eventually(lambda: exact(daemon, "alice", 2000))
    for times in (1, 2):
        daemon.set_object("alice", **change)
        assert not exact(daemon, "alice", 2000)
        eventually(lambda: exact(daemon, "alice", 2000), 3)
        eventually(lambda: drive(agent, "alice")["overwritten"] == times, 3)  # noqa: B023
    assert drive(agent, "alice")["errors"] == 0


@on_daemon
def test_an_agent_that_was_killed_finds_what_was_lost_meanwhile(
    daemon: Monitored, agent: Agent
) -> None:
    eventually(lambda: exact(daemon, "alice", 2000))
    agent.end()
    daemon.set_object("alice", cost_read=[])
    agent.start()
    eventually(lambda: exact(daemon, "alice", 2000))
    agent.end()
    agent.start()
    eventually(lambda: drive(agent, "alice")["mode"] == "exact")
    assert drive(agent, "alice")["overwritten"] == 0, "all was as it had been left"


@on_daemon
def test_a_stopped_agent_leaves_limit_and_curve(daemon: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(daemon, "alice", 2000))
    assert agent.stop() == 0
    assert exact(daemon, "alice", 2000)


def test_large_reads_beside_a_latency_target_wait_in_parts(folder: Path) -> None:
    daemon = Monitored(folder, _daemon(binaries() / "qemu-storage-daemon", folder), "sd1")
    vm = f'[[vm]]\nname = "sd1"\nsocket = "{daemon.agent_socket}"\n{ALICE}'
    vm += "[vm.drives.bob]\nlimit = 900\nlatency_target_ms = 2\n"
    with loop_device(folder, 4 * MIB) as disk:  # a storage that counts what it does
        agent = Agent(folder, f'{vm}[storage.x]\ndevice = "{disk}"\ndrives = ["sd1/*"]\n').start()
        try:
            # Of the published curve's sizes 128 KiB are the first that cost 1.04 times 1 MiB's.
            eventually(lambda: exact(daemon, "alice", 2000, 128 << 10))
            eventually(lambda: exact(daemon, "bob", 900))
            assert "to protect sd1/bob." in "\n".join(why(agent.socket, "sd1", "alice")["alice"])
            for split_size in (0, 4096):
                daemon.set_object("alice", split_size=split_size)
                eventually(lambda: exact(daemon, "alice", 2000, 128 << 10), 3)
        finally:
            agent.end()
            daemon.end()


def test_a_stock_storage_daemon_is_held_and_says_that_it_counts_nothing(
    folder: Path,
) -> None:
    stock = Monitored(folder, _daemon("qemu-storage-daemon", folder), "sd1")
    agent = Agent(folder, f'[[vm]]\nname = "sd1"\nsocket = "{stock.agent_socket}"\n{ALICE}').start()
    try:
        (vm,) = eventually(lambda: agent.ask("/v1/vms"))
        assert "counts nothing" in vm["policy_error"]["what"]

        def limits() -> dict[str, int]:
            found = stock.ask("qom-get", path="/objects/alice", property="limits")
            return {name: value for name, value in found.items() if "length" not in name and value}

        # The envelope is within 19.4 % of the curve, and scaled so that 8 % too much is the most.
        eventually(lambda: limits().keys() == {"iops-total", "iops-size"})
        units, iops = limits()["iops-size"], limits()["iops-total"]
        for size, cost in DEFAULT_CURVE.points:
            held = cost * iops / max(1.0, size / units) / 2000
            assert 1.08 * (1 - 0.194) / (1 + 0.194) <= held <= 1.081
        assert (drive(agent, "alice")["mode"], drive(agent, "alice")["error"]) == ("retune", None)
    finally:
        agent.end()
        stock.end()


# QEMU


@on_qemu
def test_limits_of_a_drive_and_of_a_filter_have_the_curve(qemu: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(qemu, VDA, 900))
    eventually(lambda: exact(qemu, "tg0", 2000))
    assert [drive(agent, target)["mode"] for target in ("vda", "vdb")] == ["exact", "exact"]


@on_qemu
def test_a_latency_is_split_into_wait_and_device(qemu: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(qemu, VDA, 900))

    def reads_a_lot() -> bool:
        for command in ("aio_read 0 64k", "aio_read 0 4k") * 30:
            line = f'qemu-io -d {VDA} "{command}"'
            qemu.ask("human-monitor-command", **{"command-line": line})
        found = drive(agent, "vda")
        return bool(found["read_device_latency_s"]) and found["read"]["recent_sizes"] != {}

    eventually(reads_a_lot)
    found = drive(agent, "vda")
    assert 0 < found["read_device_latency_s"] < found["read_latency_s"]
    assert found["read"]["sizes"].keys() == {"4096", "65536"}
    assert found["read"]["cost"] == pytest.approx(
        1.0 * found["read"]["sizes"]["4096"] + 10.0 * found["read"]["sizes"]["65536"]
    )


@on_qemu
def test_a_curve_that_a_drive_lost_is_put_back(qemu: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(qemu, VDA, 900))
    zeros = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
    extra: dict[str, list[object]] = {"cost-read": [], "cost-write": []}
    qemu.ask("block_set_io_throttle", id=VDA, iops=900, __iokeel_extra=extra, **zeros)
    assert not qemu.group(VDA)["limits"].get("cost-read")
    eventually(lambda: exact(qemu, VDA, 900), 3)
    eventually(lambda: drive(agent, "vda")["overwritten"] == 1, 3)


@on_qemu
def test_a_drive_taken_out_of_its_group_is_put_back(qemu: Monitored, agent: Agent) -> None:
    eventually(lambda: exact(qemu, VDA, 900))
    zeros = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
    qemu.ask("block_set_io_throttle", id=VDA, **zeros)
    assert [group["name"] for group in throttle_groups(qemu.ask)] == ["tg0"]
    eventually(lambda: exact(qemu, VDA, 900), 3)
    eventually(lambda: drive(agent, "vda")["overwritten"] == 1, 3)
