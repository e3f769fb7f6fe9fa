"""QMP with QEMU itself."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.errors import DriveGone, LimitsRejected
from iokeel.hypervisors.qmp.connection import (
    connect,
)
from iokeel.hypervisors.qmp.faults import MonitorLost
from iokeel.hypervisors.qmp.source import QmpSource
from testing.agents import QEMU
from testing.hypervisors.monitored import Monitored
from testing.hypervisors.qmp_server import qdev
from testing.processes import hang
from testing.waiting import until
from tests.edges.hypervisors.sources import PATIENCE_S, VDA, running, vm

qemu_is_here = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"needs {QEMU}")


class Qemu(Monitored):
    """A QEMU without a guest. A second monitor tells its own view."""

    def __init__(self, folder: Path) -> None:
        for name in ("a", "b", "c"):
            with (folder / f"{name}.raw").open("wb") as file:
                file.truncate(1 << 20)
        arguments = [
            *("-object", "throttle-group,id=tg0,x-iops-total=1000,x-iops-total-max=1500"),
            *("-blockdev", f"file,node-name=fa,filename={folder}/a.raw"),
            *("-device", "virtio-blk-pci,drive=fa,id=vda"),
            *("-blockdev", f"file,node-name=fb,filename={folder}/b.raw"),
            *("-blockdev", "throttle,node-name=tb,file=fb,throttle-group=tg0"),
            *("-blockdev", "raw,node-name=rb,file=tb"),
            *("-device", "virtio-blk-pci,drive=rb,id=vdb"),
            *("-drive", f"file={folder}/c.raw,format=raw,if=none,id=dc,throttling.bps-read=77777"),
            *("-device", "virtio-scsi-pci,id=scsi", "-device", "scsi-hd,drive=dc,id=sda"),
            *("-device", "ide-cd,id=cd0"),
        ]
        command = f"{QEMU} -M q35 -accel tcg -nodefaults -display none -S -m 32"
        super().__init__(folder, [*command.split(), *arguments], "agent")

    def block(self, device: str) -> dict[str, Any]:
        """Return the answer to query-block for a device's medium, without zeros."""
        (found,) = [b["inserted"] for b in self.ask("query-block") if b["qdev"] == device]
        return {name: value for name, value in found.items() if value}

    def do(self, device: str, *commands: str) -> None:
        """Have QEMU do I/O on a device; it counts as the guest's."""
        for command in commands:
            line = f'qemu-io -d {device} "{command}"'
            self.ask("human-monitor-command", **{"command-line": line})

    def stop(self) -> None:
        """Let it hang."""
        hang(self.process)

    def end(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGCONT)
        super().end()


@pytest.fixture
def qemu(folder: Path) -> Iterator[Qemu]:
    made = Qemu(folder)
    yield made
    made.end()


@pytest.fixture
async def on_qemu(qemu: Qemu) -> AsyncIterator[QmpSource]:
    async with running(vm(qemu.agent_socket)) as source:
        await until(source.vms)
        yield source


LIMITS = [
    UNLIMITED,
    ThrottleLimits(iops_total=500, iops_size=5856),
    ThrottleLimits(bps_read=1 << 20, bps_write=1 << 21, iops_read=100, iops_write=50),
    ThrottleLimits(
        bps_total=10**7, bps_total_max=10**8, bps_total_max_length=4, iops_total=900,
        iops_total_max=1000, iops_total_max_length=60, iops_size=8192,
    ),
]  # fmt: skip


def _is(qemu: Qemu, job: str, status: str) -> bool:
    return any(j["id"] == job and j["status"] == status for j in qemu.ask("query-jobs"))


def _concluded(qemu: Qemu, job: str) -> bool:
    return _is(qemu, job, "concluded")


@qemu_is_here
class TestRealQemu:
    async def test_drives_paths_and_limits_are_those_of_the_command_line(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        drives = on_qemu.vms()["db1"].drives
        folder = qemu.agent_socket.parent
        assert {d.target: (d.path, d.in_force) for d in drives.values()} == {
            "vda": (f"{folder}/a.raw", UNLIMITED),
            "vdb": (f"{folder}/b.raw", ThrottleLimits(iops_total=1000, iops_total_max=1500)),
            "sda": (f"{folder}/c.raw", ThrottleLimits(bps_read=77777)),
        }

    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_set_on_a_device_are_those_that_qemu_reports(
        self, on_qemu: QmpSource, qemu: Qemu, limits: ThrottleLimits
    ) -> None:
        await on_qemu.set_limits(
            VDA, ThrottleLimits(bps_total=1, iops_read=1, iops_size=9), PATIENCE_S
        )
        await on_qemu.set_limits(VDA, limits, PATIENCE_S)
        names = {
            "bps_total": "bps", "bps_read": "bps_rd", "bps_write": "bps_wr", "iops_total": "iops",
            "iops_read": "iops_rd", "iops_write": "iops_wr", "bps_total_max": "bps_max",
            "bps_total_max_length": "bps_max_length", "iops_total_max": "iops_max",
            "iops_total_max_length": "iops_max_length", "iops_size": "iops_size",
        }  # fmt: skip
        expected = {names[name]: value for name, value in limits.items() if value}
        found = qemu.block(qdev("vda"))
        assert {n: v for n, v in found.items() if n.startswith(("bps", "iops"))} == expected

    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_set_on_a_throttle_filter_are_those_of_its_object(
        self, on_qemu: QmpSource, qemu: Qemu, limits: ThrottleLimits
    ) -> None:
        await on_qemu.set_limits(DriveId("db1", "vdb"), limits, PATIENCE_S)
        found = qemu.ask("qom-get", path="/objects/tg0", property="limits")
        lengths = {name: 1 for name in found if name.endswith("length")}
        given = {name.replace("_", "-"): value for name, value in limits.items() if value}
        assert found == dict.fromkeys(found, 0) | lengths | given
        assert "iops" not in qemu.block(qdev("vdb")), "nothing is limited twice"

    @pytest.mark.parametrize("rate", [700, 7000])
    async def test_a_drive_whose_snapshot_comes_and_goes_is_held_by_its_filter_alone(
        self, on_qemu: QmpSource, qemu: Qemu, rate: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        vdb, folder = DriveId("db1", "vdb"), qemu.agent_socket.parent
        (folder / "o.raw").touch()

        def known() -> ThrottleLimits | None:
            return on_qemu.vms()["db1"].drives["vdb"].in_force

        await on_qemu.set_limits(vdb, ThrottleLimits(iops_total=5000), PATIENCE_S)
        create = {"driver": "qcow2", "file": "fo", "size": 1 << 20}
        qemu.ask("blockdev-add", driver="file", filename=f"{folder}/o.raw", **{"node-name": "fo"})
        qemu.ask("blockdev-create", **{"job-id": "create", "options": create})
        await until(lambda: _concluded(qemu, "create"))
        qemu.ask("job-dismiss", id="create")
        overlay = {"driver": "qcow2", "file": "fo", "backing": None, "node-name": "o"}
        qemu.ask("blockdev-add", **overlay)
        for _ in range(3):  # nothing has changed, so nothing is found anew
            await on_qemu.sample(None, PATIENCE_S)
        assert known() == ThrottleLimits(iops_total=5000)
        qemu.ask("blockdev-snapshot", node="rb", overlay="o")  # QEMU sends no event
        await on_qemu.sample(None, PATIENCE_S)
        await until(lambda: known() == UNLIMITED)
        assert caplog.text.count("drive vdb: a snapshot is above its throttle filter") == 1
        assert f"{folder}/b.raw" in on_qemu.vms()["db1"].drives["vdb"].beneath
        await on_qemu.set_limits(vdb, ThrottleLimits(iops_total=rate), PATIENCE_S)
        assert qemu.block(qdev("vdb"))["iops"] == rate
        qemu.ask("block-commit", device="o", **{"job-id": "commit"})
        await until(lambda: _is(qemu, "commit", "ready"))
        qemu.ask("job-complete", id="commit")
        await until(lambda: not qemu.ask("query-jobs"))
        on_qemu.announce("db1")
        await until(lambda: on_qemu.vms()["db1"].drives["vdb"].path == f"{folder}/b.raw")
        assert known() == ThrottleLimits(iops_total=min(rate, 5000))
        assert qemu.block(qdev("vdb"))["iops"] == rate
        await on_qemu.set_limits(vdb, ThrottleLimits(iops_total=rate), PATIENCE_S)
        assert qemu.ask("qom-get", path="/objects/tg0", property="limits")["iops-total"] == rate
        assert "iops" not in qemu.block(qdev("vdb")), "nothing is limited twice"
        assert known() == ThrottleLimits(iops_total=rate)

    @pytest.mark.parametrize(
        ("own", "known"),
        [
            ({"iops": 50}, ThrottleLimits(iops_total=50)),
            ({"iops": 2000}, ThrottleLimits(iops_total=1000)),
            ({"bps": 10**6}, ThrottleLimits(bps_total=10**6, iops_total=1000, iops_total_max=1500)),
            ({"iops_rd": 50}, ThrottleLimits(iops_total=1000, iops_total_max=1500)),
        ],
    )
    async def test_limits_set_by_hand_beside_a_filter_are_known_and_dropped(
        self, on_qemu: QmpSource, qemu: Qemu, own: dict[str, int], known: ThrottleLimits
    ) -> None:
        group = {"iops-total": 1000, "iops-total-max": 1500}
        qemu.ask("qom-set", path="/objects/tg0", property="limits", value=group)
        none = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        qemu.ask("block_set_io_throttle", id=qdev("vdb"), **(none | own))
        on_qemu.announce("db1")
        await until(lambda: on_qemu.vms()["db1"].drives["vdb"].in_force == known)
        await on_qemu.set_limits(DriveId("db1", "vdb"), ThrottleLimits(iops_total=9), PATIENCE_S)
        assert "iops" not in qemu.block(qdev("vdb"))
        assert qemu.ask("qom-get", path="/objects/tg0", property="limits")["iops-total"] == 9

    @pytest.mark.parametrize("target", ["vda", "vdb", "sda"])
    @pytest.mark.parametrize("limits", LIMITS)
    async def test_limits_in_force_are_found_again_by_the_next_agent(
        self, qemu: Qemu, target: str, limits: ThrottleLimits
    ) -> None:
        async with running(vm(qemu.agent_socket)) as first:
            await until(first.vms)
            await first.set_limits(DriveId("db1", target), limits, PATIENCE_S)
        async with running(vm(qemu.agent_socket)) as second:
            await until(second.vms)
            assert second.vms()["db1"].drives[target].in_force == limits

    @pytest.mark.parametrize("target", ["vda", "vdb"])
    async def test_a_size_without_an_iops_limit_is_left_out(
        self, on_qemu: QmpSource, qemu: Qemu, target: str
    ) -> None:
        limits = ThrottleLimits(bps_total=5000, iops_size=4096)
        await on_qemu.set_limits(DriveId("db1", target), limits, PATIENCE_S)
        in_force = on_qemu.vms()["db1"].drives[target].in_force
        assert in_force == ThrottleLimits(bps_total=5000)

    async def test_limits_that_qemu_refuses_leave_those_that_held(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        await on_qemu.set_limits(VDA, ThrottleLimits(iops_total=100), PATIENCE_S)
        with pytest.raises(LimitsRejected, match="cannot be used at the same time"):
            await on_qemu.set_limits(VDA, ThrottleLimits(iops_total=100, iops_read=50), PATIENCE_S)
        with pytest.raises(LimitsRejected, match="must be within"):
            await on_qemu.set_limits(
                DriveId("db1", "vdb"), ThrottleLimits(bps_read=10**18), PATIENCE_S
            )
        assert qemu.block(qdev("vda"))["iops"] == 100
        assert qemu.ask("qom-get", path="/objects/tg0", property="limits")["iops-total"] == 1000

    async def test_counters_count_what_was_done(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.do(qdev("vda"), *["aio_read 0 4k"] * 3, *["aio_write 0 64k"] * 2, "aio_flush")
        qemu.do("sda", "aio_read 0 512", "aio_flush")
        found = await on_qemu.sample(None, PATIENCE_S)
        vda, sda = found[VDA], found[DriveId("db1", "sda")]
        assert (vda.read_requests, vda.read_bytes) == (3, 3 * 4096)
        assert (vda.write_requests, vda.write_bytes) == (2, 2 * 65536)
        assert (sda.read_requests, sda.read_bytes, sda.write_requests) == (1, 512, 0)
        assert vda.read_time_ns
        assert vda.write_time_ns
        assert set(found) == {DriveId("db1", target) for target in ("vda", "vdb", "sda")}

    async def test_drives_that_are_plugged_in_and_out_are_followed(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        qemu.ask("blockdev-add", driver="null-co", **{"node-name": "n0"}, size=1 << 20)
        qemu.ask("device_add", driver="scsi-hd", drive="n0", id="sdb", bus="scsi.0", lun=5)
        await on_qemu.sample(None, PATIENCE_S)
        await until(lambda: "sdb" in on_qemu.vms()["db1"].drives)
        await on_qemu.set_limits(DriveId("db1", "sdb"), ThrottleLimits(iops_total=5), PATIENCE_S)
        qemu.ask("device_del", id="sdb")
        await until(lambda: "sdb" not in on_qemu.vms()["db1"].drives)

    async def test_a_drive_that_just_went_is_gone(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.ask("device_del", id="sda")
        with pytest.raises(DriveGone):
            await on_qemu.set_limits(DriveId("db1", "sda"), UNLIMITED, PATIENCE_S)

    async def test_drives_that_share_a_group_are_refused(self, qemu: Qemu) -> None:
        zeros = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
        for device in (qdev("vda"), "sda"):
            qemu.ask("block_set_io_throttle", id=device, iops=9, group="both", **zeros)
        async with running(vm(qemu.agent_socket)) as source:
            await until(source.vms)
            assert "holds" in str(source.vms()["db1"].policy_error)
            with pytest.raises(LimitsRejected):
                await source.set_limits(VDA, UNLIMITED, PATIENCE_S)
        assert qemu.block("sda")["iops"] == 9

    async def test_a_stopped_qemu_is_waited_for_and_recovers(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        qemu.stop()
        assert await on_qemu.sample(None, 0.2) == {}
        assert await on_qemu.sample(None, 0.2) == {}
        qemu.process.send_signal(signal.SIGCONT)
        await until(lambda: on_qemu.errors["timeout"] == 2)
        await asyncio.sleep(0.3)
        assert len(await on_qemu.sample(None, PATIENCE_S)) == 3
        assert (on_qemu.reconnects, on_qemu.errors.total()) == (0, 2)

    async def test_a_busy_monitor_is_told_from_a_stopped_qemu(
        self, on_qemu: QmpSource, qemu: Qemu
    ) -> None:
        with pytest.raises(MonitorLost, match="another client uses this monitor; QEMU") as busy:
            await connect(qemu.agent_socket, lambda _: None)
        assert busy.value.kind == "busy"

    async def test_a_stopped_qemu_is_told_from_a_busy_monitor(self, qemu: Qemu) -> None:
        qemu.stop()
        pid = qemu.process.pid
        with pytest.raises(MonitorLost, match=f"process {pid} is stopped, and answers") as stopped:
            await connect(qemu.agent_socket, lambda _: None)
        assert stopped.value.kind == "timeout"

    async def test_where_many_wait_for_a_monitor_it_is_busy(self, qemu: Qemu) -> None:
        qemu.stop()
        waiting = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(qemu.agent_socket))
        assert len(waiting) < 10
        with pytest.raises(MonitorLost, match="other clients wait") as busy:
            await connect(qemu.agent_socket, lambda _: None)
        assert busy.value.kind == "busy"
        for sock in waiting:
            sock.close()

    async def test_a_killed_qemu_is_gone(self, on_qemu: QmpSource, qemu: Qemu) -> None:
        qemu.process.kill()
        qemu.process.wait()
        await until(lambda: not on_qemu.vms())
        assert await on_qemu.sample(None, PATIENCE_S) == {}
