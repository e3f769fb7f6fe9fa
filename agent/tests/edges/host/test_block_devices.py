"""The storages of drives: in fake trees of sysfs, and in a real filesystem on a loop device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.core.values.storage import Place
from iokeel.host.block_devices import StoragePaths
from iokeel.host.network_storage import network_place


class Host:
    """A host's block devices as sysfs shows them, and its mounts."""

    def __init__(self, folder: Path) -> None:
        self.sys = folder / "sys"
        self.proc = folder / "proc"
        (self.sys / "dev/block").mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        self.mounts = ""
        self.folders: dict[str, Path] = {}

    def device(self, name: str, number: str, *on: str, partition_of: str | None = None) -> None:
        folder = self.sys / "devices" / (partition_of or "") / name
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        if partition_of is not None:
            (folder / "partition").write_text("1\n")
        else:
            (folder / "slaves").mkdir()
        (self.sys / "dev/block" / number).symlink_to(folder)
        for slave in on:
            (folder / "slaves" / slave).symlink_to(self.folders[slave])
        self.folders[name] = folder

    def loop(self, name: str, number: str, backing_file: object) -> None:
        self.device(name, number)
        folder = self.sys / "devices" / name / "loop"
        folder.mkdir()
        (folder / "backing_file").write_text(f"{backing_file}\n")

    def mount(self, line: str) -> None:
        self.mounts += f"{line}\n"
        (self.proc / "self/mountinfo").write_text(self.mounts, errors="surrogateescape")

    @property
    def paths(self) -> StoragePaths:
        return StoragePaths(self.sys, self.proc)

    def names(self, number: str) -> list[str]:
        return [place.name for place in self.paths.of_device(number)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image with blanks.raw"
    path.write_bytes(b"x")
    return path


def number_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def mount_id(path: Path) -> int:
    handle = os.open(path, os.O_PATH)
    try:
        text = Path(f"/proc/self/fdinfo/{handle}").read_text()
    finally:
        os.close(handle)
    return int(re.findall(r"mnt_id:\s*(\d+)", text)[0])


# Devices


def test_a_file_is_on_the_disk_under_its_filesystem(host: Host, image: Path) -> None:
    host.device("sda", "8:0")
    host.device("sda2", number_of(image), partition_of="sda")
    assert host.paths.places(str(image)) == (Place("sda", "8:0"),)
    assert host.paths.places(str(image.parent)) == (Place("sda", "8:0"),)


def test_a_partition_is_its_whole_disk(host: Host) -> None:
    host.device("nvme0n1", "259:0")
    host.device("nvme0n1p3", "259:3", partition_of="nvme0n1")
    assert host.paths.of_device("259:3") == (Place("nvme0n1", "259:0"),)


def test_a_volume_on_one_disk_is_followed_through_all_that_is_between(host: Host) -> None:
    host.device("sda", "8:0")
    host.device("sda1", "8:1", partition_of="sda")
    host.device("dm-0", "253:0", "sda1")  # crypt
    host.device("dm-1", "253:1", "dm-0")  # linear
    assert host.names("253:1") == ["dm-1", "dm-0", "sda"]


def test_a_volume_over_two_partitions_of_one_disk_is_on_that_disk(host: Host) -> None:
    host.device("sda", "8:0")
    host.device("sda1", "8:1", partition_of="sda")
    host.device("sda2", "8:2", partition_of="sda")
    host.device("dm-0", "253:0", "sda1", "sda2")
    assert host.names("253:0") == ["dm-0", "sda"]


def test_a_raid_is_where_it_ends(host: Host) -> None:
    host.device("sda", "8:0")
    host.device("sdb", "8:16")
    host.device("md0", "9:0", "sda", "sdb")
    host.device("dm-0", "253:0", "md0")
    host.device("dm-1", "253:1", "md0")
    assert host.names("253:0") == ["dm-0", "md0"]
    assert host.names("253:1") == ["dm-1", "md0"]


def test_thin_volumes_share_their_pool(host: Host) -> None:
    for name, number in (("sda", "8:0"), ("sdb", "8:16"), ("sdc", "8:32")):
        host.device(name, number)
    host.device("dm-0", "253:0", "sdc")  # metadata
    host.device("dm-1", "253:1", "sda", "sdb")  # data
    host.device("dm-2", "253:2", "dm-0", "dm-1")  # pool
    host.device("dm-3", "253:3", "dm-2")
    host.device("dm-4", "253:4", "dm-2")
    assert host.names("253:3") == ["dm-3", "dm-2"]
    assert host.names("253:4") == ["dm-4", "dm-2"]


def test_a_volume_with_a_part_that_is_not_there_is_where_it_ends(host: Host) -> None:
    host.device("sda", "8:0")
    host.device("dm-0", "253:0", "sda")
    (host.sys / "devices/dm-0/slaves/sdz").mkdir()
    (host.sys / "devices/dm-0/slaves/sdz/dev").write_text("8:400\n")
    assert host.names("253:0") == ["dm-0"]


def test_a_name_has_its_slash_back(host: Host) -> None:
    host.device("cciss!c0d0", "104:0")
    assert host.names("104:0") == ["cciss/c0d0"]


def test_a_mapped_rbd_image_is_in_its_pool(host: Host) -> None:
    host.device("rbd0", "252:0")
    (host.sys / "devices/rbd0/device").mkdir()
    (host.sys / "devices/rbd0/device/pool").write_text("vms\n")
    assert host.names("252:0") == ["rbd0", "rbd:vms"]


def test_a_loop_device_is_on_what_its_file_is_on(host: Host, image: Path) -> None:
    host.device("vda", number_of(image))
    host.loop("loop3", "7:3", image)
    assert host.names("7:3") == ["loop3", "vda"]


@pytest.mark.parametrize("lacking", ["gone", "deleted", "no device"])
def test_a_loop_device_without_a_device_below_is_where_it_ends(
    host: Host, image: Path, lacking: str
) -> None:
    host.device("sdz", "8:400")
    if lacking == "deleted":
        host.device("vda", number_of(image))
    if lacking == "no device":  # such as a tmpfs
        host.mount(f"{mount_id(image)} 1 {number_of(image)} / /ram rw - tmpfs tmpfs rw")
    backing = {"gone": "/no/such/file", "deleted": f"{image} (deleted)"}.get(lacking, image)
    host.loop("loop3", "7:3", backing)
    assert host.names("7:3") == ["loop3"]


def test_a_loop_device_whose_file_seems_to_be_on_itself_ends(host: Host, image: Path) -> None:
    host.loop("loop3", number_of(image), image)
    assert host.names(number_of(image)) == ["loop3"]


def test_what_is_not_there_is_on_nothing(host: Host, tmp_path: Path) -> None:
    for path in (tmp_path / "gone", Path("/dev/null"), Path("/a\0b")):
        assert host.paths.places(str(path)) == ()
    assert host.paths.of_device("8:0") == ()
    assert StoragePaths(tmp_path / "no sysfs", tmp_path).of_device("8:0") == ()


def test_a_socket_is_on_nothing(host: Host, tmp_path: Path) -> None:
    host.device("sda", number_of(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    assert host.paths.places(str(tmp_path / "fifo")) == ()


# Filesystems without a device number of their own


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tmpfs tmpfs rw", "/mnt/a b"),
        ("nfs4 filer:/export/vms rw,hard", "nfs:filer:/export/vms"),
        ("zfs tank/vms/db rw", "zfs:tank"),
        ("overlay overlay rw,lowerdir=/l,upperdir=/no/such,workdir=/w", "/mnt/a b"),
        ("fuse.sshfs me@far: rw", "/mnt/a b"),
        ("btrfs /dev/no-such rw", "/mnt/a b"),
    ],
)
def test_a_filesystem_without_a_device_is_called_by_what_people_call_it(
    host: Host, image: Path, kind: str, expected: str
) -> None:
    host.mount("20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw")
    host.mount(f"21 20 {number_of(image)} / /mnt/a\\040b rw shared:2 master:1 - {kind}")
    host.mount(f"{mount_id(image)} 20 {number_of(image)} / /srv rw - {kind}")  # a bind mount
    assert host.paths.places(str(image)) == (Place(expected),)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tmpfs tmpfs rw", r"/mnt/caf\xe9"),
        ("nfs4 filer:/caf\udce9 rw,hard", r"nfs:filer:/caf\xe9"),
        ("nfs4 filer:/café rw,hard", "nfs:filer:/café"),
    ],
)
def test_a_name_can_be_written_though_it_is_no_utf_8(
    host: Host, image: Path, kind: str, expected: str
) -> None:
    host.mount(f"{mount_id(image)} 20 {number_of(image)} / /mnt/caf\udce9 rw - {kind}")
    assert host.paths.places(str(image)) == (Place(expected),)


def test_what_an_overlay_writes_is_on_what_its_upper_folder_is_on(
    host: Host, image: Path, tmp_path: Path
) -> None:
    if number_of(Path("/dev/shm")) == number_of(image):
        pytest.skip("/dev/shm and the folder for temporary files are one filesystem")
    host.device("sda", number_of(image))
    upper = str(tmp_path).replace(" ", "\\040")
    shm = Path("/dev/shm")
    options = f"rw,lowerdir=/l,upperdir={upper},workdir=/w"
    host.mount(f"{mount_id(shm)} 1 {number_of(shm)} / / rw - overlay overlay {options}")
    assert host.paths.places(str(shm)) == (Place("sda", number_of(image)),)


def test_a_mount_that_is_not_listed_is_not_known(host: Host, image: Path) -> None:
    host.mount("nonsense")
    host.mount("")
    assert host.paths.places(str(image)) == ()


def test_the_mount_point_of_a_path_is_told_without_looking_at_the_path(host: Host) -> None:
    host.mount("1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    host.mount("2 1 0:50 / /dead\\040nfs rw - nfs x:/y rw")
    assert host.paths.mount_point("/dead nfs/vm.raw") == "/dead nfs"
    assert host.paths.mount_point("/dead nfsx") == "/"


# Over a network


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nbd://filer/export", "nbd:filer:10809"),
        ("nbd://filer:1/export", "nbd:filer:1"),
        ("nbds://filer/export", "nbd:filer:10809"),
        ("nbds+unix:///exp?socket=/run/x.sock", "nbd:unix:/run/x.sock"),
        ("nbd://[fd00::1]:1/export", "nbd:[fd00::1]:1"),
        ("nbd+unix:///exp?socket=/run/a%20b.sock", "nbd:unix:/run/a b.sock"),
        ("nbd+unix://?socket=/run/x.sock", "nbd:unix:/run/x.sock"),
        ("rbd:///pool/image", "rbd:pool"),
        ("rbd://mon1:6789/pool/space/image", "rbd:pool"),
        ("rbd:pool/image:id=admin:conf=/etc/ceph/x", "rbd:pool"),
        ("rbd:pool/image@snapshot", "rbd:pool"),
        ("iscsi://filer/iqn.2013-07.com.example:t/1", "iscsi:filer:3260/iqn.2013-07.com.example:t"),
        ("iscsi://u%25p@[fd00::1]:3261/iqn.x/0", "iscsi:[fd00::1]:3261/iqn.x"),
        ("gluster+tcp://filer/vol/a/b.img", "gluster:filer/vol"),
        ("nfs://filer/export/a.raw", "nfs:filer"),
        ("ssh://me@filer:22/a.raw", "ssh:filer:22"),
        ("https://filer/a.raw", "https:filer"),
        ("nvme://0000:44:00.0/1", "nvme:0000:44:00.0"),
        ("volume://Default/d.raw", "pool:Default"),
        ("vhost-user+unix:///?socket=/run/spdk.sock", "vhost-user:unix:/run/spdk.sock"),
    ],
)
def test_a_network_storage_is_known_by_its_url(url: str, expected: str) -> None:
    assert network_place(url) == Place(expected)
    assert StoragePaths().places(url) == (Place(expected),)


@pytest.mark.parametrize(
    "url", ["", "a.raw", "null-co://", "rbd:", "rbd://", "nbd://h:port/x", "nbd://[x/", "json:{"]
)
def test_what_is_no_network_storage_is_nothing(url: str) -> None:
    assert network_place(url) is None


# The real thing


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A loop device with a filesystem over a file: its path and mount point."""
    for tool in ("losetup", "mkfs.ext4", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not there")
    if os.geteuid() != 0:
        pytest.skip("only root can set up a loop device")
    backing, point = tmp_path / "backing.img", tmp_path / "mnt"
    with backing.open("wb") as file:
        file.truncate(16 << 20)
    point.mkdir()
    made = subprocess.run(
        ["losetup", "--find", "--show", backing], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        subprocess.run(["mount", device, point], check=True)
        try:
            yield device, point
        finally:
            subprocess.run(["umount", point], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_a_file_on_a_real_loop_device_is_followed_to_the_disk(
    mounted: tuple[str, Path], tmp_path: Path
) -> None:
    device, point = mounted
    image = point / "vm.raw"
    image.write_bytes(b"x")
    name = Path(device).name
    number = Path(f"/sys/block/{name}/dev").read_text().strip()
    on_filesystem = StoragePaths().places(str(image))
    assert on_filesystem[0] == Place(name, number)
    assert StoragePaths().places(device) == on_filesystem
    under = StoragePaths().places(str(tmp_path / "backing.img"))
    assert on_filesystem[1:] == (under if under[-1].number else ())
    # findmnt and lsblk say the same in their own ways.
    source = subprocess.check_output(["findmnt", "-no", "SOURCE", "-T", image], text=True)
    assert source.strip() == device


def test_what_the_host_runs_from_is_found() -> None:
    places = StoragePaths().places("/")
    source = subprocess.check_output(["findmnt", "-no", "SOURCE", "/"], text=True).strip()
    if source.startswith("/dev/"):
        name = subprocess.check_output(["lsblk", "-no", "PKNAME", source], text=True).split()
        assert places[-1].name == (name[0] if name else Path(source).resolve().name)
    else:
        assert len(places) >= 1
