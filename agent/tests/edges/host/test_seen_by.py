"""A path as a QEMU in another mount namespace sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from iokeel.host.block_devices import StoragePaths
from iokeel.host.process import ENDED, Process, process

Start = Callable[[str], Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes in mount namespaces of their own, after some commands."""
    children: list[subprocess.Popen[bytes]] = []

    def started(commands: str) -> Process:
        inside = ["unshare", "-m", "sh", "-ec", f"{commands}\necho; exec sleep 600"]
        child = subprocess.Popen(inside, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        found = process(child.pid)
        assert found is not None
        return found

    yield started
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Return a folder on another storage than tmp_path, with an image."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "vm.raw").write_bytes(b"x")
        yield Path(folder)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a folder with an image of the same name."""
    folder = tmp_path / "volume"
    folder.mkdir()
    (folder / "vm.raw").write_bytes(b"x")
    return folder


def test_another_process_sees_another_storage_at_a_path(
    start: Start, elsewhere: Path, volume: Path
) -> None:
    inside = start(f"mount --bind {elsewhere} {volume}")
    there = StoragePaths().places(str(elsewhere))
    here = StoragePaths().places(str(volume))
    assert here != there
    assert StoragePaths().places(str(volume / "vm.raw"), inside) == there
    assert StoragePaths().places(str(volume / "vm.raw")) == here


def test_a_path_that_is_missing_here_is_found_there(
    start: Start, elsewhere: Path, volume: Path, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    inside = start(
        f"mount -t tmpfs none {tmp_path}/own; mkdir {tmp_path}/own/v;"
        f" mount --bind {volume} {tmp_path}/own/v; ln -s {tmp_path}/own/v/vm.raw {tmp_path}/own/l"
    )
    paths = StoragePaths()
    here = paths.places(str(volume))
    # A link, too, leads to where it leads there.
    for name in ("v/vm.raw", "l"):
        assert paths.places(f"{tmp_path}/own/{name}", inside) == here
        assert paths.places(f"{tmp_path}/own/{name}") == ()


@pytest.mark.parametrize("climbs", ["", "../" * 40])
def test_no_link_leads_out_of_a_containers_root(
    climbs: str, start: Start, elsewhere: Path, volume: Path, tmp_path: Path
) -> None:
    """Out there is another storage."""
    root = tmp_path / "root"
    root.mkdir()
    image = f"{volume}/vm.raw"
    inside = start(
        f"mount --rbind / {root}; mount --bind {elsewhere} {root}{volume};"
        f" mount -t tmpfs none {root}/mnt; ln -s {climbs or '/'}{image[1:]} {root}/mnt/l;"
        f" exec chroot {root} sh -c 'echo; exec sleep 600'"
    )
    there = StoragePaths().places(str(elsewhere))
    assert StoragePaths().places(image) not in ((), there)
    for path in (image, "/mnt/l", f"/mnt/{'../' * 40}{image[1:]}"):
        assert StoragePaths().places(path, inside) == there


def test_a_path_that_is_missing_there_is_not_looked_for_here(start: Start, volume: Path) -> None:
    inside = start(f"mount -t tmpfs none {volume}")
    assert StoragePaths().places(str(volume / "vm.raw")) != ()
    assert StoragePaths().places(str(volume / "vm.raw"), inside) == ()


def test_a_file_that_a_process_still_has_open_counts_wherever_its_root_is(
    start: Start, volume: Path
) -> None:
    image = volume / "vm.raw"
    inside = start(f"exec 3<{image}; mount -t tmpfs none {volume}")
    assert StoragePaths().places(str(image), inside) == StoragePaths().places(str(image)) != ()


def test_a_device_is_the_same_in_a_dev_of_its_own(start: Start) -> None:
    number = Path("/sys/class/block/loop0/dev").read_text().strip().replace(":", " ")
    inside = start(f"mount -t tmpfs devfs /dev; mknod /dev/loop0 b {number}")
    paths = StoragePaths()
    assert paths.places("/dev/loop0", inside) == paths.places("/dev/loop0") != ()


def test_a_process_that_has_ended_sees_nothing(start: Start, volume: Path) -> None:
    image, inside = str(volume / "vm.raw"), start("true")
    assert StoragePaths().places(image, inside) != ()
    for gone in (ENDED, inside._replace(started=inside.started + 1)):  # the pid was used again
        assert StoragePaths().places(image, gone) == ()


@pytest.mark.parametrize("is_same", [True, False])
def test_without_the_right_to_look_the_same_mount_counts(
    is_same: bool, start: Start, elsewhere: Path, volume: Path
) -> None:
    inside = start("true" if is_same else f"mount --bind {elsewhere} {volume}")
    code = (
        "import sys; from iokeel.host.block_devices import StoragePaths;"
        "from iokeel.host.process import process;"
        "print(StoragePaths().places(sys.argv[1], process(int(sys.argv[2]))))"
    )
    # As the service was before it got CAP_SYS_PTRACE; sleep has all capabilities.
    drop = ["setpriv", "--bounding-set=-all,+dac_override", "--inh-caps=-all"]
    command = [*drop, sys.executable, "-c", code, str(volume / "vm.raw"), str(inside.pid)]
    told = subprocess.check_output(command, text=True).strip()
    assert told == str(StoragePaths().places(str(volume)) if is_same else ())
