"""QEMU's names of a drive, and the storage of its image."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.limits import ThrottleLimits
from iokeel.hypervisors.qemu.drives import (
    Block,
    Image,
    Medium,
    Node,
    Object,
    drives_of,
    groups_of,
    unthrottled_of,
)
from tests.edges.hypervisors.sources import json_values


@pytest.mark.parametrize(
    ("block", "target"),
    [
        (Block("", "/machine/peripheral/vda/virtio-backend"), "vda"),
        (Block("drive0", "/machine/peripheral/vda/virtio-backend"), "vda"),
        (Block("", "scsi0-0-0"), "scsi0-0-0"),
        (Block("drive0", "/machine/peripheral-anon/device[0]/virtio-backend"), "drive0"),
        (Block("", "/machine/peripheral-anon/device[1]/virtio-backend"), "device[1]"),
        (Block("ide0-cd1", "/machine/unattached/device[23]"), "ide0-cd1"),
        (Block("", "/machine/unattached/device[23]"), "device[23]"),
        (Block("drive0", ""), "drive0"),
    ],
)
def test_a_target_is_the_devices_id_or_the_drives_name_or_the_last_of_its_path(
    block: Block, target: str
) -> None:
    block.inserted = Medium()
    assert list(drives_of([block])) == [target]


def test_two_drives_never_have_one_target() -> None:
    anonymous = "/machine/peripheral-anon/device[0]"
    blocks = [Block("", "vda", Medium()), Block("vda", anonymous, Medium())]
    assert list(drives_of(blocks)) == ["vda", "/machine/peripheral-anon/device[0]"]


def test_a_passed_through_drive_without_an_id_goes_by_its_drives_name() -> None:
    devices = [Object("type", "string"), Object("device[0]", "child<scsi-generic>")]
    blocks = [Block("drive0", "/machine/peripheral-anon/device[0]", Medium())]
    assert unthrottled_of(devices, blocks) == {"drive0": "QEMU doesn't throttle SCSI passthrough"}


def test_of_many_drives_in_one_group_a_few_are_named() -> None:
    blocks = [Block("", f"d{i}", Medium(group="g")) for i in range(500)]
    drives = drives_of(blocks)
    assert drives["d0"].shares == tuple(f"d{i}" for i in range(1, 11))
    assert all(10 <= len(drive.shares) <= 11 for drive in drives.values())
    assert all(target not in drive.shares for target, drive in drives.items())


def test_a_file_name_that_qemu_cut_is_no_path_and_no_throttle_group() -> None:
    cut = 'json:{"driver": "throttle", "throttle-group": "tg", "file": {"driver": "fi...'
    (drive,) = drives_of([Block("", "vda", Medium(cut, iops=4))]).values()
    assert (drive.path, drive.throttle_group) == (None, None)
    assert drive.in_force == ThrottleLimits(iops_total=4)


def test_the_images_beneath_a_drives_own_are_told_and_their_data_files() -> None:
    qcow2 = {"type": "qcow2", "data": {"compat": "1.1"}}
    with_data = {"type": "qcow2", "data": {"data-file": "c.raw"}}
    elsewhere = {"type": "qcow2", "data": {"data-file": "/d.raw"}}
    base = {"filename": 'json:{"driver": "raw", "file": {"driver": "file", "filename": "/x"}}'}
    unknown = {"filename": 'json:{"driver": "null-co"}', "backing-image": base}
    middle = {
        "filename": "/images/b",
        "format-specific": with_data,
        "backing-image": unknown,
    }
    top = {"filename": "/a", "format-specific": elsewhere, "backing-image": middle}
    (drive,) = drives_of(
        [Block("", "vda", Medium("/a", image=msgspec.convert(top, Image)))]
    ).values()
    assert drive.path == "/a"
    assert drive.beneath == ("/d.raw", "/images/b", "/images/c.raw", "", "/x")
    alone = msgspec.convert({"filename": "/a", "format-specific": qcow2}, Image)
    (drive,) = drives_of([Block("", "vda", Medium("/a", image=alone))]).values()
    assert drive.beneath == ()


@pytest.mark.parametrize(
    "odd",
    [
        {"backing_file": "/b"},
        {"image": {"format-specific": {"type": "qcow2", "data": {"data-file": "/d"}}}},
    ],
)
def test_a_storage_daemon_with_images_beneath_others_does_not_say_whose(
    odd: dict[str, object],
) -> None:
    objects = [Object("alice", "child<throttle-group>")]
    nodes: list[dict[str, object]] = [{"drv": "qcow2", "file": "/a", "backing_file_depth": 0}]
    assert groups_of(objects, msgspec.convert(nodes, list[Node]))["alice"].beneath == ()
    nodes.append(odd)
    assert groups_of(objects, msgspec.convert(nodes, list[Node]))["alice"].beneath == ("",)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        # As QEMU 7.2 answers query-block.
        ("/images/top.qcow2", "/images/top.qcow2"),
        ("nbd+unix:///exp?socket=/run/n.sock", "nbd+unix:///exp?socket=/run/n.sock"),
        (
            'json:{"throttle-group": "tg", "driver": "throttle", "file": {"server.path": '
            '"/run/n.sock", "driver": "nbd", "export": "exp", "server.type": "unix"}}',
            "nbd+unix:///exp?socket=/run/n.sock",
        ),
        (
            'json:{"backing": {"driver": "raw", "file": {"driver": "file", "filename": '
            '"/images/base.raw"}}, "driver": "qcow2", "file": {"driver": "file", "filename": '
            '"/images/top.qcow2"}}',
            "/images/top.qcow2",
        ),
        # As qapi/block-core.json has the options.
        (
            'json:{"driver": "nbd", "server": {"type": "inet", "host": "fd00::1", '
            '"port": "10809"}}',
            "nbd://[fd00::1]:10809/",
        ),
        (
            'json:{"driver": "raw", "file": {"driver": "rbd", "pool": "vms", "image": "a", '
            '"server": [{"host": "mon1", "port": "6789"}, {"host": "mon2", "port": "6789"}]}}',
            "rbd://mon1:6789/vms/a",
        ),
        (
            'json:{"driver": "iscsi", "portal": "filer:3260", "target": "iqn.x", "lun": 1, '
            '"transport": "tcp"}',
            "iscsi://filer:3260/iqn.x/1",
        ),
        (
            'json:{"driver": "gluster", "volume": "vol", "path": "a.img", "server": '
            '[{"type": "inet", "host": "filer", "port": "24007"}]}',
            "gluster://filer:24007/vol/a.img",
        ),
        (
            'json:{"driver": "nfs", "server": {"type": "inet", "host": "filer"}, "path": "/x/a"}',
            "nfs://filer/x/a",
        ),
        (
            'json:{"driver": "nvme", "device": "0000:44:01.3", "namespace": 1}',
            "nvme://0000:44:01.3/1",
        ),
        (
            'json:{"driver": "virtio-blk-vhost-user", "path": "/run/spdk.sock"}',
            "vhost-user+unix:///?socket=/run/spdk.sock",
        ),
        ('json:{"driver": "host_device", "filename": "/dev/sdb"}', "/dev/sdb"),
        ('json:{"driver": "null-co"}', None),
        ("", None),
    ],
)
def test_a_drive_tells_what_its_topmost_image_is_in(file: str, path: str | None) -> None:
    (drive,) = drives_of([Block("", "vda", Medium(file))]).values()
    assert drive.path == path


@given(
    st.lists(
        st.builds(
            Block,
            st.sampled_from(["", "d0", "d1"]),
            st.sampled_from(["", "vda", "/machine/peripheral/vda/virtio-backend", "/"]),
            st.none()
            | st.builds(
                Medium,
                st.text() | json_values.map(lambda value: "json:" + json.dumps({"file": value})),
                st.none() | st.text(),
                iops=st.integers(),
                bps_max=st.integers(),
            ),
        ),
        max_size=4,
    )
)
def test_whatever_a_drive_is_said_to_be_is_taken_without_a_failure(blocks: list[Block]) -> None:
    for target, drive in drives_of(blocks).items():
        assert drive.target == target
        assert drive.path is None or isinstance(drive.path, str)
        limits = drive.in_force.items() if drive.in_force is not None else []
        assert all(value is None or value > 0 for _, value in limits)
