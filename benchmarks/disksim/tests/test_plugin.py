"""The plugin answers when its model says so, and its log is the whole truth."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.disksim.tests.log import checked, rows_of
from testing.lab.disks.disksim import DEVICES, built, params
from testing.lab.disks.nbdkit import Nbdkit
from testing.lab.fio import fio

LACKING = [name for name in ("nbdkit", "nbdcopy", "fio", "gcc") if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")

SLOWDOWN = {
    "hdd-hts72755": 1,
    "sata-ssd-px-256m5s": 4,
    "sata-ssd-px-256m5s-worn": 4,
    "nvme-970-pro": 20,
}


@pytest.mark.parametrize("device", SLOWDOWN)
def test_log_has_each_command_once_at_the_times_of_the_rules(device: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Nbdkit(device, slowdown=SLOWDOWN[device], log=log) as disk:
        nbd = {"ioengine": "nbd", "uri": disk.uri, "size": "1g", "time_based": 1, "runtime": 2}
        first, second = fio(
            nbd | {"rw": "randread", "bssplit": "4k/60:64k/40", "iodepth": 8},
            nbd | {"rw": "randwrite", "bs": "16k", "iodepth": 4, "fsync": 20},
        )
    counted = checked(log, params(device))
    assert counted["read"] == first["read"]["total_ios"] > 0
    assert counted["write"] == second["write"]["total_ios"] > 0
    assert counted["flush"] == second["sync"]["total_ios"] > 0


def test_discards_are_charged_where_the_device_takes_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trims = {"ioengine": "nbd", "rw": "randtrim", "bs": "1m", "size": "1g", "number_ios": 100}
    # Pauses, a full SLC cache and latency that moves, in one run.
    rules = {"pause_every_bytes": 0, "pause_every_s": 0.02, "pause_ms": 7}
    rules |= {"slc_bytes": 1 << 20, "slc_factor": 3, "slc_empty_mb_s": 10}
    rules |= {"extra_us": 500, "extra_from_s": 0.1, "extra_to_s": 0.3}
    with Nbdkit("sata-ssd-px-256m5s-worn", None, 4, log, **rules) as disk:
        writes = {"ioengine": "nbd", "uri": disk.uri, "rw": "randwrite", "bs": "16k", "size": "1g"}
        fio(trims | {"uri": disk.uri}, writes | {"iodepth": 8, "number_ios": 2000})
    counted = checked(log, params("sata-ssd-px-256m5s-worn") | rules)
    assert counted["discard"] == 100
    with Nbdkit("sata-ssd-px-256m5s") as disk:
        ask = ["nbdinfo", "--can", "trim", disk.uri]
        assert subprocess.run(ask, check=False).returncode != 0


def test_fio_sees_at_least_the_models_latency(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Nbdkit("nvme-970-pro", slowdown=100, log=log) as disk:
        nbd = {"ioengine": "nbd", "uri": disk.uri, "size": "1g"}
        [job] = fio(nbd | {"rw": "randread", "bs": "4k", "number_ios": 100})
    rows = rows_of(log)
    model = sum(int(row["done_ns"]) - int(row["arrival_ns"]) for row in rows) / len(rows)
    assert len(rows) == 100
    assert job["read"]["lat_ns"]["mean"] >= 100 * model


def test_what_is_read_is_never_zero(tmp_path: Path) -> None:
    with Nbdkit("nvme-970-pro", size_bytes=1 << 20) as disk:
        subprocess.run(["nbdcopy", disk.uri, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == b"\xd1" * (1 << 20)


def test_store_keeps_what_is_written(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "in").write_bytes(content)
    for step in ("write", "read after a restart"):
        with Nbdkit("sata-ssd-px-256m5s", size_bytes=3 << 20, store=tmp_path / "data") as disk:
            if step == "write":
                subprocess.run(["nbdcopy", tmp_path / "in", disk.uri, "--flush"], check=True)
            else:
                subprocess.run(["nbdcopy", disk.uri, tmp_path / "out"], check=True)
    assert (tmp_path / "out").read_bytes() == content


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slowdown": "0"}, "slowdown is from"),
        ({"units": "none"}, "units is a number"),
        ({"size": "1T"}, "size is more than"),
        ({"log": "/nowhere/log"}, "/nowhere/log: No such file"),
    ],
)
def test_wrong_option_is_refused_in_words(options: dict[str, str], words: str) -> None:
    argv = ["nbdkit", "--foreground", "--unix=-", str(built() / "disksim.so")]
    argv += [f"params={DEVICES['nvme-970-pro']}", *(f"{k}={v}" for k, v in options.items())]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert words in run.stderr


def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    ask = ["gcc", "-print-file-name=libasan.so"]
    libasan = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    # nbdkit frees nothing at its end: only what the plugin itself does counts.
    environ = {**os.environ, "LD_PRELOAD": libasan, "ASAN_OPTIONS": "detect_leaks=0"}
    argv = ["nbdkit", "--foreground", "--unix=-", "--threads=64"]
    argv += [str(built(sanitize=True) / "disksim.so"), f"params={DEVICES['sata-ssd-px-256m5s']}"]
    argv += [f"log={tmp_path / 'log'}", "--run"]
    job = "--rw=randrw --bs=16k --iodepth=32 --fsync=50 --number_ios=2000 --size=1g"
    argv += [f'env -u LD_PRELOAD fio --name=x --ioengine=nbd --uri="$uri" {job}']
    run = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert not re.search("Sanitizer|runtime error", run.stderr)
    assert len(rows_of(tmp_path / "log")) >= 2000
