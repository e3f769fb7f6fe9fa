"""`iokeel-bench run` on a real disk: it ends cleanly when interrupted, goes on, and measures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from benchmarks.bench.__main__ import daemon_for, parser
from benchmarks.bench.controllers import chosen
from benchmarks.bench.errors import BenchError
from benchmarks.bench.records import PREFIX, Result, path_of, read, write
from benchmarks.bench.running.checks import only_one
from benchmarks.bench.running.runner import Runner
from benchmarks.bench.scenario import load
from testing.bench_program import ENVIRON, PROJECT, STOCK, bench, ended
from testing.host.storage import mounted
from testing.lab.blkio import ROOT as BLKIO
from testing.lab.needs import PACKAGES, missing
from testing.waiting import eventually

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

# The kernel's own limits need cgroups of version 1.
SECOND = "io.max" if (BLKIO / "blkio.throttle.io_serviced").exists() else "static-bps"
RUN = ("run", "weights", "--shorten", "24", "--repeats", "1", "--daemon", STOCK)


def result(folder: Path) -> Result | None:
    file = folder / f"{PREFIX}weights.json"
    return read(file) if file.exists() else None


def runs(folder: Path, controller: str) -> int:
    found = result(folder)
    return len(found.cases[""].runs.get(controller, [])) if found else 0


def test_interrupted_run_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    words = (*RUN, "--results", str(tmp_path), "--controllers", "static-iops", SECOND)
    process = bench(*words)
    group = BLKIO / f"lab-{process.pid}"
    eventually(lambda: runs(tmp_path, "none") == 1 and group.exists(), 120, process=process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on" in said
    assert not group.exists()
    running = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True).stdout
    assert not [line for line in running.splitlines() if line.split()[0] == str(process.pid)]
    before = result(tmp_path)
    assert before is not None
    assert runs(tmp_path, SECOND) == 0

    status, out, said = ended(*words)
    assert status == 0, said
    assert "are there already" in said
    after = result(tmp_path)
    assert after is not None
    assert after.cases[""].runs["none"] == before.cases[""].runs["none"]
    assert {name: len(found) for name, found in after.cases[""].runs.items()} == {
        "none": 1,
        "static-iops": 1,
        SECOND: 1,
    }
    for found in after.cases[""].runs.values():
        for drive in found[0].drives.values():
            assert drive.requests
            assert drive.by_second is not None
            assert len(drive.by_second) == 2
    assert "a trial" in out
    assert "Jain" in out

    status, _, said = ended(*words, "--shorten", "100")
    assert status == 2
    assert "another length; give --fresh" in said
    status, _, said = ended(*words, "--shorten", "100", "--fresh")
    assert status == 0, said
    after = result(tmp_path)
    assert after is not None
    assert after.setup.shortened == 100


def test_disks_of_a_vm_under_one_static_cap_share_it(tmp_path: Path) -> None:
    """The first of four has all of it while it is alone."""
    words = ("run", "four-disks", "--shorten", "8", "--repeats", "1", "--daemon", STOCK)
    status, _, said = ended(*words, "--results", str(tmp_path), "--controllers", "static-iops")
    assert status == 0, said
    (run,) = read(tmp_path / f"{PREFIX}four-disks.json").cases[""].runs["static-iops"]
    rates = {name: drive.by_second for name, drive in run.drives.items()}
    assert rates["disk0"] is not None
    # An equal part is 500. On a busy machine its first second may be a slow one.
    assert max(rates["disk0"]) > 1.25 * 500
    # Later seconds have requests that cost more than the 4K for which the limit is priced.
    assert sum(drive.requests or 0 for drive in run.drives.values()) < 1.2 * 4 * 2000


def daemon(path: Path) -> Path:
    """Make a storage daemon that has a version, and does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho daemon 1\n")
    path.chmod(0o755)
    return path


def runner(folder: Path, storage_daemon: Path) -> Runner:
    """Return what begins a result, and runs nothing."""
    return Runner([load("weights")], chosen(["bfq"]), 0, folder, storage_daemon, print)


def test_runs_are_added_whatever_figures_drives_are_owed(tmp_path: Path) -> None:
    """An eleventh of the capacity here, of which the file keeps five digits."""
    suites = [load("two-groups-sequential-random")]
    own = daemon(tmp_path / "qemu/qemu-storage-daemon")
    for _ in range(2):
        Runner(suites, chosen(["bfq"]), 0, tmp_path, own, print).run()


def test_runs_are_added_with_the_storage_daemon_of_those_that_are_there(tmp_path: Path) -> None:
    own = daemon(tmp_path / "qemu/qemu-storage-daemon")
    runner(tmp_path, own).run()
    words = ["run", "weights", "--results", str(tmp_path)]
    options = parser().parse_args(words)
    wanted = [load("weights")], chosen(["bfq"])
    assert daemon_for(options, *wanted) == own
    assert daemon_for(parser().parse_args([*words, "--fresh"]), *wanted) == Path(STOCK)
    own.unlink()
    assert daemon_for(options, *wanted) == Path(STOCK)


def test_mend_for_another_storage_daemon_names_the_one_before(tmp_path: Path) -> None:
    one, other = (daemon(tmp_path / name / "qemu-storage-daemon") for name in ("one", "other"))
    runner(tmp_path, one).run()
    with pytest.raises(BenchError, match=f"give --daemon {one} to add to them; else give --fresh"):
        runner(tmp_path, other).run()
    one.write_text("#!/bin/sh\necho daemon 2\n")
    with pytest.raises(BenchError, match="qemu-storage-daemon; give --fresh"):
        runner(tmp_path, one).run()


def test_patched_qemu_that_cannot_be_built_is_no_traceback(tmp_path: Path) -> None:
    words = ("run", "weights", "--controllers", "iokeel-exact", "--results", str(tmp_path))
    environment = {**ENVIRON, "IOKEEL_QEMU_BUILD": "--wrong"}
    command = [sys.executable, "-m", "benchmarks.bench", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "the patched QEMU takes 8 minutes to build, once" in done.stderr
    assert "build: unknown option --wrong" in done.stderr
    assert "leave out the controllers that need the patches" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_missing_program_is_named_with_its_package(tmp_path: Path) -> None:
    for program in PACKAGES.keys() - {"fio"}:
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    words = (*RUN, "--results", str(tmp_path / "results"))
    command = [sys.executable, "-m", "benchmarks.bench", *words]
    environment = {**ENVIRON, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "something is missing" in done.stderr
    assert done.stderr.rstrip().endswith("apt-get install fio")


def test_a_disk_that_is_nearly_full_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with mounted(tmp_path / "results", "results", "-t", "tmpfs", "-o", "size=64m") as folder:
        status, _, said = ended(*RUN, "--results", str(folder))
        assert [*folder.iterdir()] == []
    assert status == 2
    assert f"{folder}: the disk has 64 MiB free, a run needs 1024" in said
    assert "--results" in said.splitlines()[-1]


def test_two_runs_do_not_share_a_folder_of_results(tmp_path: Path) -> None:
    words = (*RUN, "--results", str(tmp_path), "--controllers", "none")
    with only_one(tmp_path):
        status, _, said = ended(*words)
    assert status == 2
    assert f"{tmp_path}: another run writes its results there" in said
    assert not result(tmp_path)
    with only_one(tmp_path):
        pass


def test_program_that_is_interrupted_may_clean_up(tmp_path: Path) -> None:
    began, done = tmp_path / "began", tmp_path / "done"
    shell = f"trap 'sleep 1; touch {done}; exit' INT; touch {began}; while :; do sleep 0.1; done"
    script = "import sys; from benchmarks.bench.running.child import child; child(sys.argv[1:])"
    command = [sys.executable, "-c", script, "sh", "-c", shell]
    process = subprocess.Popen(command, env=ENVIRON, stderr=subprocess.DEVNULL)
    eventually(began.exists, 60, process=process)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert done.exists()


def test_cgroups_and_folder_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    left = BLKIO / f"lab-{process.pid}"
    left.mkdir()
    (left / "victim").mkdir()
    folder, other = (
        Path(tempfile.mkdtemp(prefix=f"iokeel-bench-{pid}-")) for pid in (process.pid, os.getpid())
    )
    status, _, said = ended(*RUN, "--results", str(tmp_path), "--controllers", "none")
    assert status == 0, said
    assert not left.exists()
    assert not folder.exists()
    other.rmdir()  # of a run that goes on


def test_scenario_that_is_named_twice_runs_once(tmp_path: Path) -> None:
    words = ("run", "weights", "weights", *RUN[2:], "--results", str(tmp_path))
    status, _, said = ended(*words, "--controllers", "none")
    assert status == 0, said
    assert "[1/1] weights, none" in said


def test_a_controller_that_lacks_nothing_any_more_has_runs_and_no_reason(tmp_path: Path) -> None:
    words = (*RUN, "--results", str(tmp_path), "--controllers")
    status, _, said = ended(*words, "none")
    assert status == 0, said
    before = result(tmp_path)
    assert before is not None
    lacking = {"static-iops": "no limits", "bfq": "no BFQ"}
    write(path_of(tmp_path, "weights"), msgspec.structs.replace(before, lacking=lacking))
    status, out, said = ended(*words, "static-iops")
    assert status == 0, said
    after = result(tmp_path)
    assert after is not None
    assert runs(tmp_path, "static-iops") == 1
    assert after.lacking == {"bfq": "no BFQ"}
    assert "no limits" not in out


def test_seeds_are_the_same_under_all_controllers_and_others_in_each_repeat(tmp_path: Path) -> None:
    programs, kept = tmp_path / "bin", tmp_path / "kept"
    for folder in (programs, kept):
        folder.mkdir()
    fio = programs / "fio"
    fio.write_text(
        f"#!/bin/sh\n[ -e jobs.fio ] && cp jobs.fio {kept}/$(date +%s%N)\n"
        f'exec {shutil.which("fio")} "$@"\n'
    )
    fio.chmod(0o755)
    words = (*RUN, "--repeats", "2", "--results", str(tmp_path), "--controllers", "static-iops")
    environment = {**ENVIRON, "PATH": f"{programs}:{ENVIRON['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", *words], env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    # More than two for each repeat if this machine's hypervisor steals time.
    seeds = [re.findall(r"randseed=(\d+)", path.read_text()) for path in sorted(kept.iterdir())]
    first, again = (found for found, _ in groupby(seeds))
    assert len({*first, *again}) == len(first) + len(again)


def test_run_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    daemon = tmp_path / "daemon"
    script = '#!/bin/sh\n[ "$1" = --version ] && exec echo daemon 1\necho broken >&2; exit 1\n'
    daemon.write_text(script)
    daemon.chmod(0o755)
    words = (*RUN, "--results", str(tmp_path), "--controllers", "none", "static-iops")
    status, _, said = ended(*words, "--daemon", str(daemon))
    assert status == 2
    assert "broken" in said
    for controller in ("none", "static-iops"):
        assert f"a run failed: weights, {controller}: " in said
    assert "runs those again" in said
    assert runs(tmp_path, "none") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "weigths"), "did you mean 'weights'"),
        (("run", "dmeo"), "did you mean 'demo'"),
        (("run", "demo", "weigths"), "did you mean 'weights'"),
        (("run", "demo", "weights", "--controllers", "bqf"), "did you mean 'bfq'"),
        (("run", "weights", "--controllers", "bqf"), "did you mean 'bfq'"),
        (("run", "weights", "--daemon", "/nowhere/qsd"), "apt-get install qemu-system-common"),
        (("compare", "/nowhere", "/nor/here"), "there is nothing to compare"),
        (("report", "--results", "/nowhere"), "run a scenario first"),
    ],
)
def test_wrong_words_end_with_two_and_the_mend(words: Sequence[str], said: str) -> None:
    status, _, err = ended(*words)
    assert status == 2
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--repeats", "abc"), "--repeats: it has to be a whole number, 1 or more"),
        (("--repeats", "0"), "--repeats: it has to be a whole number, 1 or more"),
        (("--shorten", "abc"), "--shorten: it has to be a number from 1 to 100"),
        (("--shorten", "nan"), "--shorten: it has to be a number from 1 to 100"),
    ],
)
def test_a_number_that_is_none_ends_with_two_and_says_which(
    words: Sequence[str], said: str
) -> None:
    status, _, err = ended("run", "weights", *words)
    assert status == 2
    assert err.splitlines()[-1].endswith(f"argument {said}")


def test_bfq_sees_usual_processes_even_if_the_processor_is_lent_only() -> None:
    script = "import subprocess, benchmarks.bench.running.checks as c; c.use_best_effort(); {}"
    script = script.format("print(subprocess.run('ionice', capture_output=True, text=True).stdout)")
    command = ["chrt", "--idle", "0", sys.executable, "-c", script]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "best-effort: prio 4"


def test_list_has_every_question(tmp_path: Path) -> None:
    status, out, _ = ended("list")
    assert status == 0
    scenarios = [path.stem for path in (PROJECT / "benchmarks/scenarios").glob("*.toml")]
    programs = ("demo", "disks", "qemu", "backstop", "parda")
    for name in (*scenarios, *programs, "iokeel-exact", "iokeel-bfq"):
        assert f"  {name} " in out
