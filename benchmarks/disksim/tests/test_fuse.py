"""The device as a file: many requests at once, none with a thread, all in the log."""

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.disksim.tests.log import checked
from testing.lab.disks.disksim import DEVICES, built, params
from testing.lab.needs import missing
from testing.lab.roots.namespace import Namespace

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Namespace]:
    folder = Path(tempfile.mkdtemp(prefix="fuse-", dir="/tmp"))
    shown = {path: (path, "rw") for path in (Path("/tmp"), built(True).parent, tmp_path)}
    with Namespace(folder, Path("/"), shown) as inside:
        yield inside


def _start(
    inside: Namespace, file: Path, *options: str, name: str = "sata-ssd-px-256m5s"
) -> subprocess.Popen[str]:
    file.touch()
    device = f"params={DEVICES[name]}"
    argv = [str(built(sanitize=True) / "disksim-fuse"), str(file), device, *options]
    return inside.popen(argv, stderr=subprocess.PIPE)


def _wait(inside: Namespace, file: Path) -> None:
    wait = f"until [ $(stat -c %s {file}) -gt 0 ]; do sleep 0.05; done"
    inside.run(["sh", "-c", wait], timeout=120)


def test_fio_finds_all_at_the_times_of_the_rules_and_sanitizers_nothing(
    inside: Namespace, tmp_path: Path
) -> None:
    file, log = tmp_path / "disk", tmp_path / "log"
    process = _start(inside, file, f"log={log}", "slowdown=4")
    _wait(inside, file)
    job = "--name=x --ioengine=libaio --direct=1 --iodepth=100 --number_ios=3000 --size=1g"
    fio = ["fio", f"--filename={file}", "--rw=randrw", "--bs=16k", "--fdatasync=200"]
    inside.run([*fio, *job.split()], timeout=240)
    # What lies beyond the end is not there, and cannot be written.
    beyond = ["dd", f"of={file}", "if=/dev/zero", "bs=1M", "count=1", "conv=notrunc"]
    beyond += ["oflag=direct", f"seek={int(params('sata-ssd-px-256m5s')['capacity']) // 2**20 + 1}"]
    assert inside.run(beyond, check=False).returncode != 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert process.stderr
    assert process.stderr.read() == ""
    assert inside.run(["stat", "-c", "%s", str(file)]).stdout == "0\n"
    counted = checked(log, params("sata-ssd-px-256m5s"))
    assert counted["read"] + counted["write"] >= 3000
    assert counted["flush"] >= 1


@pytest.mark.parametrize(
    ("name", "discards"), [("sata-ssd-px-256m5s-worn", 1), ("sata-ssd-px-256m5s", 0)]
)
def test_hole_is_a_discard_where_the_device_takes_them(
    inside: Namespace, tmp_path: Path, name: str, discards: int
) -> None:
    file, log = tmp_path / "disk", tmp_path / "log"
    process = _start(inside, file, f"log={log}", name=name)
    _wait(inside, file)
    punch = ["fallocate", "--punch-hole", "--offset=1M", "--length=64M", str(file)]
    assert (inside.run(punch, check=False).returncode == 0) == bool(discards)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert checked(log, params(name))["discard"] == discards


@pytest.mark.parametrize(
    ("option", "words"),
    [("slowdown=0", "slowdown is from"), ("spin=1", "spin is not"), ("log", "name=value")],
)
def test_wrong_option_is_refused_in_words(
    inside: Namespace, tmp_path: Path, option: str, words: str
) -> None:
    process = _start(inside, tmp_path / "disk", option)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert words in said
