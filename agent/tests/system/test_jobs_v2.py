"""Block jobs beside a guest in a kernel with cgroup v2: Debian's, in a guest of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.backstop import run
from testing.workers import Alone

if missing := run.lacking():
    pytest.skip(f"the guest needs {missing}", allow_module_level=True)

pytestmark = pytest.mark.alone

LIMIT, SPEED_BPS = 100, 3_000_000
# More is committed than a job does while it is measured.
DISK_BYTES, DATA_BYTES = 64 << 20, 48 << 20
JOBS = Path(run.__file__).with_name("jobs.py")
KINDS = ["backup", "mirror", "commit"]
Rates = dict[str, dict[str, tuple[float, float]]]


def images(folder: Path) -> dict[str, Path]:
    """Return an image with data to commit, which is compressed, and an empty one."""
    found = {name: folder / f"{name}.qcow2" for name in ("snapshot", "active")}
    data = folder / "data"
    data.write_bytes(b"iokeel.." * (DATA_BYTES // 8))
    size = str(DISK_BYTES)
    convert = ["qemu-img", "convert", "-q", "-c", "-f", "raw", "-O", "qcow2"]
    subprocess.run([*convert, data, found["snapshot"]], check=True)
    subprocess.run(["qemu-img", "resize", "-q", found["snapshot"], size], check=True)
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", found["active"], size], check=True)
    return found


@pytest.fixture(scope="module")
def rates(alone: Alone, tmp_path_factory: pytest.TempPathFactory) -> Rates:
    """The guest's requests and the job's bytes a second, by job and bounds."""
    with run.booted() as vm, alone():
        vm.exec("mkdir -p /root/benchmarks/backstop")
        vm.exec("cp /root/main.py /root/benchmarks/backstop/guest.py")
        vm.write("/root/jobs.py", JOBS.read_bytes())
        for name, made in images(tmp_path_factory.mktemp("images")).items():
            vm.write(f"/root/{name}.qcow2", made.read_bytes())
        # Requests of a job that a tight bound holds end after a minute.
        ran = vm.exec("cd /root && python3 jobs.py 2>log || { cat log >&2; false; }", 600)
        found: Rates = json.loads(ran.stdout)
    print(found)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_with_room_for_it_a_job_and_its_guest_leave_each_other_alone(
    rates: Rates, kind: str
) -> None:
    iops, job_bps = rates[kind]["room"]
    assert iops > 0.8 * LIMIT
    assert 0.7 * SPEED_BPS < job_bps < 1.3 * SPEED_BPS


@pytest.mark.parametrize("kind", KINDS)
def test_without_room_the_bounds_hold_the_job_far_below_its_rate(rates: Rates, kind: str) -> None:
    assert rates[kind]["tight"][1] < 0.5 * SPEED_BPS


@pytest.mark.parametrize("kind", ["backup", "mirror"])
def test_without_room_the_guest_waits_behind_the_jobs_requests(rates: Rates, kind: str) -> None:
    assert rates[kind]["tight"][0] < 0.5 * LIMIT
