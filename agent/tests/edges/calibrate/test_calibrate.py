"""`iokeel calibrate` as an operator types it: its refusals, and its results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iokeel.calibrate.fio import Fio, Job
from iokeel.calibrate.target import TargetOptions, open_target
from iokeel.config.load import parse
from iokeel.errors import CalibrationError
from iokeel.host.in_use import InUse
from testing.agents import IOKEEL, iokeel
from testing.api_doc import command_faults
from testing.host.storage import MIB, loop_device, mounted, nbd_server
from testing.lab.processors import Processors
from testing.waiting import eventually

KIB = 1024
KNOWN_DEVICE = Path(__file__).parent / "known_device.c"
QUICK_SECONDS = 0.5
QUICK = ("--quick", "--seconds", str(QUICK_SECONDS))
QUICKEST = ("--quick", "--seconds", "0.2")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices and mounts")


def calibrate(*words: str | Path, **more: Any) -> tuple[int, str, str]:
    done = iokeel("calibrate", *words, timeout_s=280, **more)
    return done.status, done.out, done.err


def refused(status: int, *words: str | Path, **more: Any) -> str:
    """Run a calibration that must fail with one line, and return the line."""
    done = iokeel("calibrate", *words, **more)
    assert (done.status, done.out) == (status, "")
    return done.complaint


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 MiB."""
    with mounted(tmp_path / "small", "tmpfs", "-t", "tmpfs", "-o", "size=64m") as folder:
        yield folder


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    with loop_device(tmp_path, 32 * MIB) as made:
        yield made


# Wrong words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("/none", "/none: no such file or directory; give a block device, a folder, or an NBD URI"),
        ("/dev/null", "/dev/null: is not a storage; give a block device, a folder, or an NBD URI"),
        ("/dev/null/x", "/dev/null/x: not a directory"),
        ("/tmp --size 4x", "--size '4x': not a size"),
        ("/tmp --size 0", "--size: 0 MiB is too small to measure; give 16m or more"),
        ("/tmp --size 1m", "--size: 1 MiB is too small to measure; give 16m or more"),
        ("/tmp --destroy-data", "--destroy-data: is for devices and exports; leave it out"),
        ("/tmp --fill", "--fill: is for devices and exports"),
        ("nbd:///export", "nbd:///export: names no server; write it like nbd://host/export"),
        ("nbd://localhost --size 1m", "--size: 1 MiB is too small"),
        (
            "nbd://localhost --fill",
            "--fill: overwrites all data; if that is intended, give --destroy-data too",
        ),
        (
            "nbd://localhost --fill --destroy-data",
            "--fill: the export's size is not known; give --size too",
        ),
        ("/tmp --name a/b", "--name: 'a/b' is not a name"),
        ("/tmp --plot x.doc", "--plot: x.doc is not a picture; end it in .png, .svg or .pdf"),
        ("/tmp --plot /none/x.png", "--plot: the folder of /none/x.png does not exist; create it"),
        (
            "/tmp --plot /proc/x.png",
            "--plot: /proc/x.png can't be written, no such file or directory; give another file",
        ),
        ("/tmp --seconds 0", "--seconds"),
        ("/tmp --threads 0", "--threads"),
        ("", ""),
    ],
)
def test_a_slip_is_one_line_before_anything_is_done(words: str, said: str) -> None:
    assert said in refused(2, *words.split())


def test_a_name_that_cant_be_written_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "odd\nname"
    odd.mkdir()
    assert "has unprintable characters; rename it" in refused(2, odd)


def test_without_fio_the_mend_is_said(tmp_path: Path) -> None:
    said = refused(1, tmp_path, environment={"PATH": str(tmp_path)})
    assert said == "fio: command not found; install it (apt-get install fio)"


@pytest.mark.parametrize(
    ("script", "mode", "said"),
    [
        ("#!/bin/sh\nexit 3\n", 0o755, "fio: --version fails with status 3; install it anew"),
        ("#!/bin/sh\n", 0o644, "fio: can't be started, permission denied; check its rights"),
    ],
)
def test_a_fio_that_cant_be_used_is_told(tmp_path: Path, script: str, mode: int, said: str) -> None:
    fio = tmp_path / "fio"
    fio.write_text(script)
    fio.chmod(mode)
    assert refused(1, tmp_path, environment={"PATH": str(tmp_path)}).startswith(said)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 8, 64])
def test_a_queue_is_as_deep_as_asked_with_any_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    words = tmp_path / "words"
    fio = tmp_path / "fio"
    fio.write_text(f'#!/bin/sh\necho "$@" >{words}\n')
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for depth in (1, 2, 4, 8, 512):
        job = Job(False, False, 4 * KIB, depth, seconds=0.2, ramp_s=0.0)
        with pytest.raises(CalibrationError):
            Fio("disk", (), 0, threads).run(job)
        given = dict(word.partition("=")[::2] for word in words.read_text().split())
        jobs = int(given["--numjobs"])
        assert jobs <= threads
        assert jobs * int(given["--iodepth"]) == depth


def test_a_folder_for_temporary_files_that_cant_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    job = Job(write=False, sequential=False, size_bytes=4 * KIB, depth=1, seconds=0.2, ramp_s=0.0)
    with pytest.raises(CalibrationError, match="temporary files: can't be written, no such file"):
        Fio("disk", (), 0).run(job)


# Wrong storages


@root_only
def test_a_full_filesystem_is_refused_with_what_would_fit(small: Path) -> None:
    # 64 MiB less a twentieth.
    fits = "give --size 60m, or give another folder"
    what = "has no space for a file of 4096 MiB (5 % must stay free)"
    assert refused(1, small) == f"{small}: {what}; {fits}"
    with (small / "large").open("wb") as file:
        file.write(bytes(50 * MIB))
    what = "has no space for a file of 16 MiB (5 % must stay free)"
    assert (
        refused(1, small, "--size", "16m") == f"{small}: {what}; make room, or give another folder"
    )


@root_only
def test_a_read_only_filesystem_is_refused(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    said = refused(1, small, "--size", "16m")
    assert said.startswith(f"{small}: read-only file system; mount it for writing")


@root_only
def test_a_user_without_rights_is_told(short_folder: Path, tmp_path: Path, device: Path) -> None:
    for what in (short_folder, tmp_path, device):
        said = refused(1, what, "--size", "16m", nobody=True)
        assert said == f"{what}: permission denied; run it as root"


@root_only
def test_a_mounted_device_is_refused(tmp_path: Path, device: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", device], check=True)
    with mounted(tmp_path / "a place", device) as folder:
        said = refused(1, device)
        assert said.startswith(f"{device}: is in use: mounted at {folder}; stop its users first")
        for more in ((), ("--even-if-in-use",)):
            said = refused(1, device, "--destroy-data", *more)
            assert said.endswith("; stop its users first: --destroy-data would destroy their data")


@root_only
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_EXCL])
def test_a_device_that_a_program_has_open_is_refused(device: Path, flags: int) -> None:
    handle = os.open(device, flags)
    try:
        assert f"(process {os.getpid()})" in refused(1, device)
    finally:
        os.close(handle)


@root_only
def test_a_device_that_is_opened_after_the_start_isnt_written(device: Path) -> None:
    options = TargetOptions(destroy_data=True)
    with open_target(str(device), options, lambda done, total: None, InUse()) as target:
        target.check()
        with device.open("rb") as disk:
            guest = subprocess.Popen(["sleep", "inf"], stdin=disk)
        try:
            with pytest.raises(CalibrationError, match=r"is in use: open by .* stop its"):
                target.check()
        finally:
            guest.kill()
            guest.wait()


@root_only
@pytest.mark.parametrize("destroy_data", [False, True])
def test_a_path_that_leads_to_another_device_meanwhile_is_refused(
    tmp_path: Path, device: Path, destroy_data: bool
) -> None:
    path = tmp_path / "disk"

    class Users(InUse):
        """While they are looked for, the path gets another meaning."""

        def users_of_device(self, device_number: int) -> Iterator[str]:
            path.unlink()
            path.symlink_to(device)
            yield from ()

    (tmp_path / "other").mkdir()
    with loop_device(tmp_path / "other", 16 * MIB) as other:
        path.symlink_to(other)
        options = TargetOptions(destroy_data=destroy_data)
        with (
            pytest.raises(CalibrationError, match="has become another device meanwhile"),
            open_target(str(path), options, lambda done, total: None, Users()),
        ):
            raise AssertionError("it was opened")


@root_only
def test_a_device_that_is_mounted_elsewhere_isnt_written(tmp_path: Path, device: Path) -> None:
    """No file in /proc or /sys tells of a mount in another namespace."""
    subprocess.run(["mkfs.ext4", "-q", device], check=True)
    folder = tmp_path / "place"
    folder.mkdir()
    script = 'mount "$0" "$1" && touch "$1/there" "$1.ready" && exec sleep inf'
    words: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, device, folder]
    holder = subprocess.Popen(words)
    try:
        ready = folder.with_name("place.ready")
        eventually(ready.exists, what="it is mounted", process=holder)
        said = refused(1, device, "--destroy-data", "--even-if-in-use")
        assert said.startswith(f"{device}: is in use: opened exclusively; stop its users first")
    finally:
        holder.kill()
        holder.wait()


@root_only
def test_a_filesystem_with_the_disks_of_guests_is_refused(small: Path, tmp_path: Path) -> None:
    disk = small / "guest.raw"
    disk.write_bytes(bytes(MIB))
    socket = tmp_path / "s"
    words: list[str | Path] = [
        "qemu-nbd",
        "--format=raw",
        f"--socket={socket}",
        "--persistent",
        disk,
    ]
    server = subprocess.Popen(words)
    try:
        eventually(socket.exists, what="qemu-nbd serves")
        said = refused(1, small, "--size", "16m")
        assert said.startswith(f"{small}: is in use: open by qemu-nbd (process {server.pid});")
        # The file itself is never touched either: it stands for its filesystem.
        assert refused(1, disk, "--size", "16m") == said
        link = tmp_path / "guest.raw"
        link.symlink_to(disk)
        assert refused(1, link, "--size", "16m") == said
    finally:
        server.kill()
        server.wait()


@root_only
def test_a_read_only_device_isnt_written(tmp_path: Path) -> None:
    with loop_device(tmp_path, 16 * MIB, "--read-only") as device:
        said = refused(1, device, "--destroy-data")
        assert said == f"{device}: is read-only; leave out --destroy-data"


@root_only
def test_a_device_is_as_large_as_it_is(device: Path) -> None:
    assert refused(2, device, "--size", "33m") == f"--size: {device} has only 32 MiB; give no more"


def test_a_failing_device_is_told(tmp_path: Path) -> None:
    words = ("--filter=error", "memory", "64m", "error=EIO", "error-pread-rate=100%")
    with nbd_server(tmp_path, *words) as (uri, _):
        said = refused(1, uri)
    assert said.startswith(f"{uri}: a read at offset ")
    assert said.endswith(
        "failed, input/output error; check the kernel's log and the device's health"
    )


def test_an_export_that_was_never_written_is_told_from_a_full_one(tmp_path: Path) -> None:
    with nbd_server(tmp_path, "memory", "64m") as (uri, _):
        fio = Fio("export", ("--ioengine=nbd", f"--uri={uri}"), 0)
        assert fio.zero_ratio(64) == 1
        with open_target(uri, TargetOptions(), lambda done, all: None, InUse()) as target:
            assert target.zero_ratio == 1
        replace(fio, region_bytes=16 * MIB).fill(0, 16 * MIB)
        assert replace(fio, region_bytes=16 * MIB).zero_ratio(64) == 0
        assert 0.5 < fio.zero_ratio(64) < 1  # a quarter is written


def test_a_device_that_fails_at_writes_is_told(tmp_path: Path) -> None:
    words = ("--filter=error", "memory", "64m", "error=EIO", "error-pwrite-rate=100%")
    with nbd_server(tmp_path, *words) as (uri, _):
        said = refused(1, uri, "--destroy-data", "--fill", "--size", "16m")
    assert said.startswith(f"{uri}: a write at offset ")


def test_a_server_that_isnt_there_is_told(tmp_path: Path) -> None:
    uri = f"nbd+unix:///?socket={tmp_path}/none"
    said = refused(1, uri)
    assert said.startswith(f"{uri}: can't be used, ")
    assert said.endswith("check that the server runs and has this export")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_interrupted_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    used, temporary = tmp_path / "used", tmp_path / "temporary"
    used.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [IOKEEL, "calibrate", used, "--size", "16m", "--even-if-in-use"],
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # these tests may have nohup
    )
    try:
        found: list[int] = []

        def runs() -> bool:
            found.extend(measuring(process.pid))
            return bool(found)

        eventually(runs, what="fio runs")
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert said == b"iokeel: calibrate: interrupted, nothing is left behind; run it again\n"
    assert list(used.iterdir()) == list(temporary.iterdir()) == []
    assert not Path(f"/proc/{found[0]}").exists()


def test_it_goes_on_if_its_terminal_goes_and_it_has_nohup(tmp_path: Path) -> None:
    words: list[str | Path] = ["nohup", IOKEEL, "calibrate", tmp_path, "--size", "16m"]
    words.append("--even-if-in-use")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        eventually(lambda: bool(measuring(process.pid)), what="fio runs")
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert said.endswith(b"iokeel: calibrate: interrupted, nothing is left behind; run it again\n")


def measuring(process: int) -> list[int]:
    """Return the processes of fio that a calibration runs against its storage."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            if b"--rw" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_killed_one_leaves_no_file_behind(tmp_path: Path) -> None:
    used, temporary = tmp_path / "used", tmp_path / "temporary"  # where fio's files stay
    used.mkdir()
    temporary.mkdir()
    words: list[str | Path] = [IOKEEL, "calibrate", used, "--size", "1g", "--even-if-in-use"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=environment)
    eventually(lambda: bool(measuring(process.pid)), what="fio runs")
    process.kill()
    process.wait()
    assert list(used.iterdir()) == []


# Results


@pytest.mark.alone
def test_a_known_device_is_found(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    with nbd_server(tmp_path, "--threads=32", "cc", KNOWN_DEVICE) as (uri, _):
        words = (uri, *QUICK, "--destroy-data", "--json", "--plot", plot, "--name", "known")
        for _ in range(3):  # again, if another machine took this one's processors away
            before = Processors.now()
            status, out, err = calibrate(*words)
            stolen = Processors.now().stolen_ratio(before)
            if stolen <= 0.02:
                break
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert command_faults("calibrate", found) == []
    # Four at a time, each 2 ms and 2 ms more for each 64 KiB; writes twice that.
    times = {kib: 0.002 * (1 + kib / 64) for kib in (4, 16, 64, 256, 1024)}
    series = {(s["kind"], s["order"], s["size_bytes"] // KIB): s for s in found["series"]}
    assert {(kind, order) for kind, order, _ in series} == {
        (kind, order) for kind in ("read", "write") for order in ("random", "sequential")
    }
    assert plot.read_bytes().startswith(b"\x89PNG")
    most = {
        (kind, order, kib): 4 / times[kib] / (2 if kind == "write" else 1)
        for kind, order, kib in series
    }
    for key, one in series.items():
        # A window may begin and end with a request that was mostly served outside it. One that
        # begins while fio has no processor begins with all that are under way.
        extra = 2 if stolen <= 0.02 else 2 + 2 * one["saturation_depth"]
        assert one["raw_iops"] < 1.05 * most[key] + extra / QUICK_SECONDS
    pasted = parse(found["config"].encode(), "pasted").storages["known"].policy
    assert pasted.capacity == found["capacity"]
    table = tomllib.loads(found["config"])["storage"]["known"]
    assert table["capacity"] == found["capacity"]
    assert table["source"] == f"nbd:unix:{tmp_path}/nbd.sock"
    if stolen > 0.02:  # anything may get slower by that
        pytest.skip(f"this machine's hypervisor took {100 * stolen:.0f} % of its processors")
    for key, one in series.items():
        assert 0.7 * most[key] < one["raw_iops"]
        assert one["saturation_depth"] >= 4
    assert 0.7 < found["capacity"] / (4 / times[4]) < 1.05
    for curve, factor in (("curve_read", 1), ("curve_write", 2)):
        costs = {size: cost for size, cost in found[curve]}
        assert costs[1024 * KIB] == pytest.approx(factor * times[1024] / times[4], rel=0.15)
        assert costs[4 * KIB] == pytest.approx(factor, rel=0.15)
        assert [["4k", costs[4 * KIB]], ["1m", costs[1024 * KIB]]] == [
            table[curve][0],
            table[curve][-1],
        ]
    # Four servers at 80 %, by Erlang's formula, take 1.75 times as long as one request alone, and
    # the target is twice that; the longest are writes, of which the law allows for three transfers.
    alone_ms = 1e3 * times[4]
    assert table["latency_target_ms"] == pytest.approx((2 * 2 - 3 / 4) * alone_ms, rel=0.3)


def test_a_slow_device_is_not_measured_too_fast(tmp_path: Path) -> None:
    """One request at a time takes 0.7 s, so in some half-seconds none is finished."""
    job = Job(write=False, sequential=False, size_bytes=4 * KIB, depth=1, seconds=3.0, ramp_s=0.5)
    with nbd_server(tmp_path, "--filter=delay", "memory", "64m", "rdelay=700ms") as (uri, _):
        result = Fio("slow", ("--ioengine=nbd", f"--uri={uri}"), 0).run(job)
    assert len(result.window_iops) == 6
    assert result.window_iops.count(0) >= 1
    # The first may have begun before.
    assert 3 * result.raw_iops <= 3 / 0.7 + 1


@root_only
def test_a_device_is_only_read_and_can_be_pasted(device: Path) -> None:
    before = hashlib.sha256(device.read_bytes()).digest()
    status, out, err = calibrate(device, *QUICKEST)
    assert status == 0
    assert hashlib.sha256(device.read_bytes()).digest() == before
    table = tomllib.loads(out)["storage"][device.name]
    assert table.pop("device") == str(device)
    assert table.keys() == {"capacity", "latency_target_ms", "curve_read"}
    pasted = parse(out.encode(), "pasted").storages[device.name].policy
    assert pasted.model is not None
    assert pasted.model.same
    assert "warning: writes were not measured" in err
    assert "as zeros" not in err
    said = f"the page cache below {device.name}, instead of the storage; use losetup --direct-io=on"
    told = Path("/sys/block", device.name, "loop/dio").read_text().strip() == "0"
    assert (said in err) == (said in out) == told


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    status, out, err = calibrate(tmp_path, *QUICKEST, "--size", "16m", "--even-if-in-use")
    assert status == 0
    assert list(tmp_path.iterdir()) == []
    (table,) = tomllib.loads(out)["storage"].values()
    assert table.pop("path") == str(tmp_path)
    assert table.keys() == {"capacity", "latency_target_ms", "curve_read", "curve_write"}
    assert parse(out.encode(), "pasted").storages
    assert err.splitlines()[0].split() == "kind size rate bytes/s depth p99 cost fit error".split()


@root_only
def test_a_plot_that_fails_takes_no_result_away(small: Path, device: Path) -> None:
    with contextlib.suppress(OSError), (small / "all").open("wb") as file:
        while True:
            file.write(bytes(MIB))
    plot = small / "x.png"
    status, out, err = calibrate(device, *QUICKEST, "--plot", plot)
    assert status == 1
    assert parse(out.encode(), "pasted").storages
    assert f"iokeel: {plot}: can't be written, no space left on device; give another" in err


@root_only
def test_a_filled_device_has_no_zeros(tmp_path: Path, device: Path) -> None:
    with device.open("wb") as disk:
        disk.write(bytes(32 * MIB))
    words: list[str | Path] = [IOKEEL, "calibrate", device, "--destroy-data", "--fill"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: all(map(any, blocks(device))), what="all is filled")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("tail_kib", [4, 1536])
def test_a_storage_is_filled_to_its_last_block(tmp_path: Path, tail_kib: int) -> None:
    size = 64 * MIB + tail_kib * KIB
    options = TargetOptions(size, even_if_in_use=True)
    with open_target(str(tmp_path), options, lambda done, all: None, InUse()) as target:
        (file,) = target.fio.pass_fds
        assert all(any(os.pread(file, 4 * KIB, at)) for at in range(0, size, 4 * KIB))


def blocks(device: Path) -> Iterator[bytes]:
    time.sleep(0.2)
    with device.open("rb") as disk:
        while block := disk.read(64 * KIB):
            yield block
