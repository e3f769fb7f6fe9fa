"""VMs' groups: how they are found, set, and restored."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.core.enforce.backstop import CgroupOrder, IoMax
from iokeel.errors import CgroupRefused
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.cgroup.place import group_of, io_hierarchy
from iokeel.host.process import Process
from iokeel.store.store import StateStore
from testing.host.cgroups import Host, Memory, scope
from testing.waiting import eventually

SDB = "8:16"
NOBODY = 65534
LIMITS = IoMax(rbps=1_000_000, riops=500, wiops=300)
ORDER = CgroupOrder({SDB: LIMITS})
MAX = f"{SDB} rbps=1000000 wbps=max riops=500 wiops=300"
UNSET = f"{SDB} rbps=max wbps=max riops=max wiops=max"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def cgroups(host: Host, memory: Memory) -> Cgroups:
    return Cgroups(memory, host.proc, host.sys)


def place(host: Host, qemu: Process) -> Path | None:
    hierarchy = io_hierarchy(host.proc)
    assert hierarchy is not None
    return group_of("db1", qemu, hierarchy, host.proc)


def refusal(host: Host, qemu: Process) -> str:
    with pytest.raises(CgroupRefused) as caught:
        place(host, qemu)
    assert caught.value.mend
    return str(caught.value)


# Which group


@pytest.mark.parametrize("root", ["/", "/user.slice/x.scope"])
def test_a_libvirt_guests_group_is_its_scope(tmp_path: Path, root: str) -> None:
    host = Host(tmp_path, root=root)
    group, qemu = host.guest(1, "db1")
    assert place(host, qemu) == group


def test_a_libvirt_guests_group_without_systemd_is_its_own_too(host: Host) -> None:
    host.group("machine/qemu-3-db1.libvirt-qemu")
    group = host.group("machine/qemu-3-db1.libvirt-qemu/emulator", 5)
    qemu = host.process(5, "qemu-kvm", "/machine/qemu-3-db1.libvirt-qemu/emulator")
    assert place(host, qemu) == group.parent


def test_v1_bounds_the_very_group_of_the_process(tmp_path: Path) -> None:
    host = Host(tmp_path, version=1)
    group, qemu = host.guest(1, "db1")
    assert place(host, qemu) == group
    inner = host.group("machine/qemu-3-db1.libvirt-qemu/emulator", 5)
    qemu = host.process(5, "qemu-kvm", "/machine/qemu-3-db1.libvirt-qemu/emulator")
    assert place(host, qemu) == inner


def test_a_units_group_is_the_vms_where_nothing_else_is_in_it(host: Host) -> None:
    group = host.group("system.slice/vm@db1.service", 5, 6, 7)
    qemu = host.process(5, "qemu-kvm", "/system.slice/vm@db1.service")
    host.process(6, "helper", "/system.slice/vm@db1.service", parent=5)
    host.process(7, "helper", "/system.slice/vm@db1.service", parent=6)
    assert place(host, qemu) == group


def test_the_group_that_libvirt_makes_is_its_guests_whoever_is_in_it(host: Host) -> None:
    group, qemu = host.guest(1, "db1")
    (group / "libvirt/emulator/cgroup.procs").write_text(f"{qemu.pid}\n77\n")
    host.process(77, "/usr/bin/swtpm socket", "/x")
    assert place(host, qemu) == group
    host.process(77, "/usr/bin/qemu-kvm -name guest=db1", "/x")  # its parent has ended
    assert place(host, qemu) == group


def test_a_group_of_others_is_refused(host: Host) -> None:
    host.group("user.slice/session-1.scope", 4, 5)
    host.process(4, "bash", "/user.slice/session-1.scope")
    qemu = host.process(5, "qemu-kvm", "/user.slice/session-1.scope", parent=4)
    assert refusal(host, qemu) == (
        "VM db1: is in cgroup /user.slice/session-1.scope, which process 4 is in too, so it has "
        "no backstop; start each VM in a group of its own, as libvirt or a systemd unit does"
    )


def test_a_group_with_others_below_it_is_refused(host: Host) -> None:
    host.group("vms", 5)
    host.group("vms/other", 9)
    host.process(9, "sleep", "/vms/other")
    qemu = host.process(5, "qemu-kvm", "/vms")
    assert "process 9 is in too" in refusal(host, qemu)


def test_the_root_and_the_agents_own_group_are_refused(host: Host) -> None:
    assert "the root of all groups" in refusal(host, host.process(5, "qemu-kvm", "/"))
    host.group("system.slice/iokeel.service", 5)
    for path in ("/system.slice/iokeel.service", "/system.slice"):
        qemu = host.process(5, "qemu-kvm", path)
        assert "which the agent is in itself" in refusal(host, qemu)


def test_a_group_outside_of_the_agents_namespace_is_refused(tmp_path: Path) -> None:
    host = Host(tmp_path, root="/container")
    for path in ("/../elsewhere", "/elsewhere"):
        qemu = host.process(5, "qemu-kvm", path)
        assert "doesn't see" in refusal(host, qemu)


def test_a_process_that_is_gone_or_another_has_no_group(host: Host) -> None:
    _, qemu = host.guest(1, "db1")
    assert place(host, Process(qemu.pid, qemu.started + 1)) is None
    assert place(host, Process(4242, 7)) is None
    deleted = host.process(5, "qemu-kvm", f"/{scope(1, 'db1')} (deleted)")
    assert place(host, deleted) is None


@pytest.mark.parametrize("path", ["", "relative", " ", "/a\0b"])
def test_a_group_with_a_path_that_is_none_is_not_there(host: Host, path: str) -> None:
    assert place(host, host.process(5, "qemu-kvm", path)) is None


@pytest.mark.parametrize("end", ["\v", "\f", "\x1c", "\x85", "\u2028"])
def test_a_name_with_what_ends_lines_elsewhere_is_no_other_groups(host: Host, end: str) -> None:
    host.group("vms", 9)
    group = host.group(f"vms{end}x", 5)
    assert place(host, host.process(5, "qemu-kvm", f"/vms{end}x")) == group


def test_a_line_of_mountinfo_without_a_number_is_passed_over(host: Host) -> None:
    mountinfo = host.proc / "self/mountinfo"
    mountinfo.write_text("x 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mountinfo.read_text())
    assert io_hierarchy(host.proc) is not None


def test_a_pid_that_is_no_number_is_nobody(host: Host) -> None:
    folder = host.group("a.service")
    (folder / "cgroup.procs").write_text("5\n\u00b2\n")
    assert place(host, host.process(5, "qemu-kvm", "/a.service")) == folder


def test_v2_is_taken_where_it_has_io_and_else_v1(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (host.proc / "self/mountinfo").write_text(
        f"30 1 0:30 / {tmp_path}/v1 rw - cgroup cgroup rw,cpu\n"
        f"31 1 0:31 / {tmp_path}/blkio rw - cgroup cgroup rw,blkio\n"
        f"32 1 0:32 / {host.cgroups} rw - cgroup2 cgroup2 rw\n"
    )
    found = io_hierarchy(host.proc)
    assert found is not None
    assert (found.version, found.folder) == (2, host.cgroups)
    (host.cgroups / "cgroup.controllers").write_text("cpu memory\n")
    found = io_hierarchy(host.proc)
    assert found is not None
    assert (found.version, found.folder) == (1, tmp_path / "blkio")
    (host.proc / "self/mountinfo").write_text("")
    assert io_hierarchy(host.proc) is None


# Setting


def test_bounds_are_set_and_taken_away_in_v2(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    assert groups.held == {"db1": {"io.max 8:16": MAX.removeprefix(f"{SDB} ")}}
    assert list(memory.saved) == [str(group)]
    groups.apply({"db1": CgroupOrder({SDB: IoMax()})}, {"db1": qemu})
    assert (group / "io.max").read_text() == UNSET
    groups.restore()
    assert memory.saved == {}
    assert groups.held == {}


def test_a_group_is_left_as_it_is_while_its_vms_share_is_not_known(
    host: Host, memory: Memory
) -> None:
    group, qemu = host.guest(1, "db1")
    cgroups(host, memory).apply({"db1": ORDER}, {"db1": qemu})
    after = cgroups(host, memory)  # a new agent
    after.apply({"db1": None}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    after.apply({}, {"db1": qemu})
    assert (group / "io.max").read_text() == UNSET


@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_is_left_as_it_is_while_what_its_drives_may_do_is_not_known(
    host: Host, memory: Memory, restarted: bool
) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    if restarted:
        groups = cgroups(host, memory)
    for _ in range(2):
        groups.apply({"db1": CgroupOrder({"8:0": IoMax(), SDB: None})}, {"db1": qemu})
        assert (group / "io.max").read_text() == MAX
        assert groups.held == {"db1": {"io.max 8:16": MAX.removeprefix(f"{SDB} ")}}
    groups.apply({"db1": CgroupOrder({"8:0": IoMax(), SDB: IoMax()})}, {"db1": qemu})
    assert (group / "io.max").read_text() == UNSET


def test_bounds_are_set_and_taken_away_in_v1(tmp_path: Path, memory: Memory) -> None:
    host = Host(tmp_path, version=1)
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})

    def text(name: str) -> str:
        return (group / f"blkio.throttle.{name}_device").read_text()

    assert text("read_bps") == "8:16 1000000"
    assert text("read_iops") == "8:16 500"
    assert text("write_iops") == "8:16 300"
    assert text("write_bps") == ""
    groups.restore()
    assert [text(name) for name in ("read_bps", "read_iops", "write_iops")] == ["8:16 0"] * 3
    assert memory.saved == {}


def test_what_was_there_comes_back_and_is_never_loosened(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    before = "8:16 rbps=max wbps=4096 riops=100 wiops=900\n"
    (group / "io.max").write_text(before)
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == "8:16 rbps=1000000 wbps=4096 riops=100 wiops=300"
    groups.restore()
    assert (group / "io.max").read_text() == before.strip()


def test_what_was_there_comes_back_after_a_crash(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    before = "8:16 rbps=max wbps=max riops=max wiops=900"
    (group / "io.max").write_text(before)
    for riops in (500, 700, 100):
        order = CgroupOrder({SDB: IoMax(riops=riops)})
        cgroups(host, memory).apply({"db1": order}, {"db1": qemu})  # each a new agent
    assert "riops=100 wiops=900" in (group / "io.max").read_text()
    cgroups(host, memory).restore()
    assert (group / "io.max").read_text() == before


def test_a_crash_between_the_note_and_the_change_forgets_nothing(
    host: Host, memory: Memory
) -> None:
    group, qemu = host.guest(1, "db1")
    cgroups(host, memory).apply({"db1": ORDER}, {"db1": qemu})
    noted = (group / "io.max").read_text()
    second = CgroupOrder({SDB: IoMax(riops=7)})
    cgroups(host, memory).apply({"db1": second}, {"db1": qemu})
    (group / "io.max").write_text(noted)  # as if the second had never been written
    cgroups(host, memory).apply({"db1": CgroupOrder({SDB: IoMax(riops=9)})}, {"db1": qemu})
    cgroups(host, memory).restore()
    assert (group / "io.max").read_text() == UNSET


def test_what_somebody_else_has_set_since_stays(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    (group / "io.max").write_text("8:16 rbps=1 wbps=2 riops=3 wiops=4")
    groups.restore()
    assert (group / "io.max").read_text() == "8:16 rbps=1 wbps=2 riops=3 wiops=4"
    assert memory.saved == {}


def test_what_can_not_be_read_for_a_while_is_put_back_later(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    bounds = group / "io.max"
    bounds.rename(group / "hidden")
    bounds.mkdir()  # reading it fails
    groups.restore()
    assert list(memory.saved) == [str(group)]
    bounds.rmdir()
    (group / "hidden").rename(bounds)
    groups.restore()
    assert bounds.read_text() == UNSET
    assert memory.saved == {}


def test_what_the_kernel_no_longer_has_is_not_put_back(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    (group / "io.max").unlink()  # the controller was turned off
    groups.restore()
    assert memory.saved == {}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("unread", [None, {"web", "other"}])
def test_a_vm_without_an_order_is_put_back_unless_it_can_not_be_read(
    host: Host, memory: Memory, unread: set[str] | None, restarted: bool
) -> None:
    (one, first), (two, second) = host.guest(1, "db1"), host.guest(2, "web")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER, "web": ORDER}, {"db1": first, "web": second})
    if restarted:
        groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": first}, unread=unread)
    assert (two / "io.max").read_text() == MAX
    groups.apply({"db1": ORDER}, {"db1": first}, unread={"other"})
    assert [(g / "io.max").read_text() for g in (one, two)] == [MAX, UNSET]
    assert list(memory.saved) == [str(one)]


@pytest.mark.parametrize("unread", [None, {"other"}])
def test_a_vm_that_loses_its_policy_is_put_back_although_another_can_not_be_read(
    host: Host, memory: Memory, unread: set[str] | None
) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu}, unread=unread)
    groups.apply({}, {"db1": qemu}, unread=unread)
    assert (group / "io.max").read_text() == UNSET
    assert memory.saved == {}


def test_a_group_stays_as_it_is_while_its_vms_process_is_not_found(
    host: Host, memory: Memory
) -> None:
    host.device(SDB, "none [bfq]")
    group, qemu = host.guest(1, "db1")
    (group / "io.bfq.weight").write_text("default 100\n")
    groups, order = cgroups(host, memory), CgroupOrder({SDB: LIMITS}, weight=300)
    groups.apply({"db1": order}, {"db1": qemu})
    held = groups.held
    groups.apply({"db1": order}, {})
    assert (group / "io.max").read_text() == MAX
    assert groups.held == held
    assert groups.weighted == {"db1": True}
    groups.apply({}, {})
    assert (group / "io.max").read_text() == UNSET


def test_a_group_that_an_older_version_saved_stays_while_any_vm_can_not_be_read(
    host: Host, memory: Memory
) -> None:
    group, qemu = host.guest(1, "db1")
    cgroups(host, memory).apply({"db1": ORDER}, {"db1": qemu})
    saved = json.loads(memory.saved[str(group)])
    assert saved.pop("vm") == "db1"
    memory.saved[str(group)] = json.dumps(saved)
    groups = cgroups(host, memory)
    groups.apply({}, {}, unread={"other"})
    assert (group / "io.max").read_text() == MAX
    groups.apply({}, {})
    assert (group / "io.max").read_text() == UNSET


def test_a_small_change_of_a_bound_is_not_written(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    written = []
    for riops in (1000, 990, 950, 1000, 910, 1001, 950, 500, 520):
        groups.apply({"db1": CgroupOrder({SDB: IoMax(riops=riops)})}, {"db1": qemu})
        written.append(int((group / "io.max").read_text().split()[3].partition("=")[2]))
    assert written == [1000, 1000, 1000, 1000, 1000, 1001, 1001, 500, 520]


def test_what_is_unchanged_is_seldom_read(
    host: Host, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    by_hand = f"{SDB} rbps=max wbps=max riops=9000 wiops=max"
    (group / "io.max").write_text(by_hand)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == by_hand
    now = time.monotonic()
    monkeypatch.setattr("iokeel.host.cgroup.groups.time.monotonic", lambda: now + 61)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    groups.restore()
    assert (group / "io.max").read_text() == by_hand


# Weights and latency


@pytest.mark.parametrize(
    ("scheduler", "qos", "expected"),
    [
        ("[none] mq-deadline bfq", "", {}),
        ("none [bfq]", "", {"io.bfq.weight": "default 1000"}),
        ("[none]", "8:16 enable=1 ctrl=user\n", {"io.weight": "default 3000"}),
        ("[none]", "8:16 enable=0 ctrl=auto\n", {}),
        ("[none]", "8:32 enable=1 ctrl=auto\n", {}),
    ],
)
def test_a_weight_is_set_where_something_goes_by_it(
    host: Host, memory: Memory, scheduler: str, qos: str, expected: dict[str, str]
) -> None:
    group, qemu = host.guest(1, "db1")
    host.device(SDB, scheduler)
    (host.cgroups / "io.cost.qos").write_text(qos)
    for name in ("io.weight", "io.bfq.weight"):
        (group / name).write_text("default 100\n")
    groups = cgroups(host, memory)
    groups.apply({"db1": CgroupOrder({SDB: IoMax()}, weight=3000)}, {"db1": qemu})
    for name in ("io.weight", "io.bfq.weight"):
        assert (group / name).read_text() == expected.get(name, "default 100\n")
    groups.restore()
    for name in expected:
        assert (group / name).read_text() == "default 100"


def test_bfqs_weight_in_v1_is_a_number_alone(tmp_path: Path, memory: Memory) -> None:
    host = Host(tmp_path, version=1)
    group, qemu = host.guest(1, "db1")
    host.device(SDB, "none [bfq]")
    groups = cgroups(host, memory)
    groups.apply({"db1": CgroupOrder({SDB: IoMax()}, weight=250)}, {"db1": qemu})
    assert (group / "blkio.bfq.weight").read_text() == "250"
    groups.restore()
    assert (group / "blkio.bfq.weight").read_text() == "100"


def test_vms_whose_weights_bfq_has_are_told(host: Host, memory: Memory) -> None:
    groups = cgroups(host, memory)
    assert groups.weighted == {}
    host.device(SDB, "none [bfq]")
    qemus = {}
    for number, vm in enumerate(("db1", "web1", "heavy", "bare")):
        group, qemus[vm] = host.guest(number + 1, vm)
        if vm != "bare":
            (group / "io.bfq.weight").write_text("default 100\n")
    on_it = {SDB: IoMax()}
    orders = {
        "db1": CgroupOrder(on_it, weight=300),
        "web1": CgroupOrder(on_it, weight=100),
        "heavy": CgroupOrder(on_it, weight=1001),  # which BFQ can't have
        "bare": CgroupOrder(on_it, weight=300),
    }
    weighted = {"db1": True, "web1": True, "heavy": False, "bare": False}
    groups.apply(orders, qemus)
    assert groups.weighted == weighted
    groups.apply({**orders, "db1": None}, qemus)  # it stays as it is
    assert groups.weighted == weighted
    host.device(SDB, "[none] bfq")
    groups.apply(orders, qemus)
    assert groups.weighted == dict.fromkeys(orders, False)


def test_a_latency_target_is_set_where_the_kernel_has_it(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    order = CgroupOrder({SDB: LIMITS}, latency_targets_s={SDB: 0.0025})
    cgroups(host, memory).apply({"db1": order}, {"db1": qemu})
    assert not (group / "io.latency").exists()
    (group / "io.latency").write_text("")
    groups = cgroups(host, memory)
    groups.apply({"db1": order}, {"db1": qemu})
    assert (group / "io.latency").read_text() == "8:16 target=2500"
    groups.restore()
    assert (group / "io.latency").read_text() == "8:16 target=max"


# Failures


def test_a_group_that_vanishes_is_normal(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    shutil.rmtree(group)
    shutil.rmtree(host.proc / str(qemu.pid))
    groups.apply({"db1": CgroupOrder({SDB: IoMax(riops=1)})}, {"db1": qemu})
    groups.apply({}, {})
    groups.restore()
    assert memory.saved == {}
    assert not caplog.records
    assert not groups.errors


def test_another_group_of_the_same_name_starts_anew(host: Host, memory: Memory) -> None:
    group, qemu = host.guest(1, "db1")
    (group / "io.max").write_text("8:16 rbps=1 wbps=1 riops=1 wiops=1")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    os.rename(group, group.with_name("old"))
    group, qemu = host.guest(1, "db1")
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    groups.restore()
    assert (group / "io.max").read_text() == UNSET


def test_a_refused_group_is_said_once_and_the_others_are_served(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    shared = host.process(5, "qemu-kvm", "/")
    groups = cgroups(host, memory)
    for riops in (1, 100, 200):
        order = CgroupOrder({SDB: IoMax(riops=riops)})
        groups.apply({"bad": order, "db1": order}, {"bad": shared, "db1": qemu})
    assert "riops=200" in (group / "io.max").read_text()
    assert len(caplog.records) == 1
    assert groups.errors["shared"] == 1  # and not looked at again for a while


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_that_was_a_vms_alone_keeps_its_bounds_whoever_joins_it(
    host: Host, memory: Memory, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("iokeel.host.cgroup.groups.time.monotonic", lambda: now)
    group = host.group("vms", 5)
    qemu = host.process(5, "qemu-kvm", "/vms")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    host.process(6, "qemu-kvm", "/vms")  # a child of a child that has ended
    (group / "cgroup.procs").write_text("5\n6\n")
    for riops in (500, 100, 900):
        now += 61
        if restarted:
            groups = cgroups(host, memory)
        groups.apply({"db1": CgroupOrder({SDB: IoMax(riops=riops)})}, {"db1": qemu})
        assert f"riops={riops} " in (group / "io.max").read_text()
    assert not groups.errors
    groups.apply({}, {"db1": qemu})
    assert (group / "io.max").read_text() == UNSET


def test_the_group_of_a_configured_vm_that_is_silent_keeps_its_bounds_while_it_has_processes(
    host: Host, memory: Memory
) -> None:
    group = host.group("vms", 5)
    qemu = host.process(5, "qemu-kvm", "/vms")
    cgroups(host, memory).apply({"db1": ORDER}, {"db1": qemu})
    groups = cgroups(host, memory)
    groups.configured = {"db1"}
    groups.apply({}, {})
    assert (group / "io.max").read_text() == MAX
    (group / "cgroup.procs").write_text("")
    groups.apply({}, {})
    assert (group / "io.max").read_text() == UNSET


def test_the_group_of_a_vm_that_has_gone_from_the_configuration_is_put_back(
    host: Host, memory: Memory
) -> None:
    group = host.group("vms", 5)
    qemu = host.process(5, "qemu-kvm", "/vms")
    groups = cgroups(host, memory)
    groups.configured = {"db1"}
    groups.apply({"db1": ORDER}, {"db1": qemu})
    groups.configured = {"web"}
    groups.apply({}, {})
    assert (group / "io.max").read_text() == UNSET


def test_a_group_that_another_vm_joins_loses_its_bounds_at_once(host: Host, memory: Memory) -> None:
    group = host.group("vms", 5)
    qemu = host.process(5, "qemu-kvm", "/vms")
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    (group / "cgroup.procs").write_text("5\n6\n")
    second = host.process(6, "qemu-kvm", "/vms")
    groups.apply({"db1": ORDER, "web": ORDER}, {"db1": qemu, "web": second})
    assert (group / "io.max").read_text() == UNSET
    assert groups.held == {}


def test_a_vm_without_a_process_is_passed_over(host: Host, memory: Memory) -> None:
    cgroups(host, memory).apply({"db1": ORDER}, {})
    assert memory.saved == {}


def test_missing_rights_are_said_once(
    short_folder: Path, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(short_folder / "rights")
    group, qemu = host.guest(1, "db1")
    (group / "io.max").chmod(0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        said_once(host, memory, caplog, qemu, "permission", "may not write it")
    finally:
        os.seteuid(user)


def test_a_group_without_the_controller_is_said_once(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    (group / "io.max").unlink()
    switch = group.parent / "cgroup.subtree_control"
    said_once(host, memory, caplog, qemu, "controller", f"echo +io >{switch} turns it on")


def said_once(
    host: Host,
    memory: Memory,
    caplog: pytest.LogCaptureFixture,
    qemu: Process,
    kind: str,
    what: str,
) -> None:
    groups = cgroups(host, memory)
    for riops in (1, 100, 200):
        groups.apply({"db1": CgroupOrder({SDB: IoMax(riops=riops)})}, {"db1": qemu})
    (record,) = caplog.records
    assert what in record.message
    assert groups.errors[kind] == 3


def test_a_host_without_the_controllers_is_said_once(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    _, qemu = host.guest(1, "db1")
    (host.proc / "self/mountinfo").write_text("")
    groups = cgroups(host, memory)
    groups.apply({}, {})
    assert not caplog.records
    for _ in range(3):
        groups.apply({"db1": ORDER}, {"db1": qemu})
    assert [r.message for r in caplog.records] == [
        "cgroup: no io or blkio controller is mounted, so no VM has a backstop"
    ]


def test_a_full_store_stops_nothing(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    memory.full = True
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    assert len(caplog.records) == 1
    memory.full = False
    groups.apply({"db1": CgroupOrder({SDB: IoMax(riops=1)})}, {"db1": qemu})
    assert list(memory.saved) == [str(group)]


def test_a_store_that_hangs_stops_nothing(
    host: Host, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    memory.answers.clear()
    groups = cgroups(host, memory)
    for riops in (1, 500):
        groups.apply({"db1": CgroupOrder({SDB: replace(LIMITS, riops=riops)})}, {"db1": qemu})
        assert f"riops={riops} " in (group / "io.max").read_text()
    assert not memory.saved
    assert len(caplog.records) == 1
    assert "the state folder's disk doesn't answer; see what holds the disk up" in caplog.text
    memory.answers.set()
    eventually(lambda: memory.saved, what="the first write ends")
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert MAX.removeprefix(f"{SDB} ") in memory.saved[str(group)]


@pytest.mark.parametrize(
    "saved",
    [
        *("", "[]", "{}", '{"inode": 1, "what": 2}', '{"inode": 1, "found": {}, "ours": {}}'),
        '{"inode": INODE, "found": 5, "ours": {}}',
        '{"inode": INODE, "found": {"io.max 8:16 x": "a"}, "ours": {"io.max 8:16 x": []}}',
        '{"inode": INODE, "found": {"../x": "a"}, "ours": {"../x": ["a"]}}',
        '{"inode": INODE, "found": {}, "ours": {"io.max 8:16": ["UNSET"]}}',
        '{"inode": INODE, "found": {"io.max 8:16": 5}, "ours": {"io.max 8:16": ["UNSET"]}}',
        '{"inode": INODE, "vm": 5, "found": {}, "ours": {}}',
        "[" * 100_000,
    ],
)
def test_nonsense_in_the_store_is_passed_over(host: Host, memory: Memory, saved: str) -> None:
    group, qemu = host.guest(1, "db1")
    inode = str(group.stat().st_ino)
    memory.saved[str(group)] = saved.replace("INODE", inode).replace("UNSET", UNSET[5:])
    groups = cgroups(host, memory)
    groups.apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
    groups.restore()
    assert (group / "io.max").read_text() == UNSET


@pytest.mark.parametrize(
    ("there", "forgotten"), [(None, True), ("", True), (UNSET, True), (MAX, False)]
)
def test_nonsense_in_the_store_is_forgotten_unless_its_group_has_a_bound(
    host: Host, memory: Memory, there: str | None, forgotten: bool
) -> None:
    group, _ = host.guest(1, "db1")
    memory.saved[str(group)] = "{"
    if there is None:
        shutil.rmtree(group)
    else:
        (group / "io.max").write_text(there)
    groups = cgroups(host, memory)
    memory.full = True
    groups.apply({}, {})
    assert memory.saved == {str(group): "{"}
    memory.full = False
    groups.apply({}, {})
    assert (memory.saved == {}) is forgotten
    shutil.rmtree(group, ignore_errors=True)
    groups.apply({}, {})
    assert memory.saved == {}


def test_groups_are_kept_in_the_agents_database(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group, qemu = host.guest(1, "db1")
    made: Callable[[], Cgroups] = lambda: Cgroups(StateStore(tmp_path), host.proc, host.sys)  # noqa: E731
    made().apply({"db1": ORDER}, {"db1": qemu})
    made().restore()
    assert (group / "io.max").read_text() == UNSET
    assert StateStore(tmp_path).load_cgroups() == {}
    (tmp_path / "state.db").write_bytes(b"nonsense" * 1000)
    with caplog.at_level(logging.WARNING):
        made().apply({"db1": ORDER}, {"db1": qemu})
    assert (group / "io.max").read_text() == MAX
