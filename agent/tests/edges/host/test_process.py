"""Which process a VM is."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from iokeel.host.process import (
    Process,
    guest,
    has_booted,
    is_guest,
    is_qemu,
    parent,
    peer,
    process,
    qemu,
)
from testing.host.cgroups import Host, scope

UUID = "4c3b2f0a-9f0e-4a5e-8d54-0c1d2e3f4a5b"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_process_is_a_pid_and_when_it_started() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        found = process(child.pid)
        assert found is not None
        assert found.pid == child.pid
        fields = subprocess.check_output(["cat", f"/proc/{child.pid}/stat"], text=True).split()
        assert found.started == int(fields[21])  # proc(5), field 22
        assert parent(child.pid) == os.getpid()
    finally:
        child.kill()
        child.wait()
    assert process(child.pid) is None
    assert parent(child.pid) is None


def test_a_zombie_is_no_process() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process(child.pid) is None
    child.wait()


@pytest.mark.parametrize(
    ("command", "name", "expected"),
    [
        ("qemu-system-x86_64 -name guest=db1,debug-threads=on -S", "db1", True),
        ("qemu-kvm -S -name guest=db1", "db1", True),
        ("qemu-kvm -name guest=db1", "db", False),
        ("qemu-kvm -name guest=a,,b,debug-threads=on", "a,b", True),
        ("qemu-kvm -name guest=a,,b,debug-threads=on", "a", False),
        ("qemu-kvm -uuid guest=db1", "db1", False),
        ("qemu-kvm -name", "db1", False),
        ("", "db1", False),
    ],
)
def test_a_guests_qemu_says_its_name(host: Host, command: str, name: str, expected: bool) -> None:
    host.process(5, command, "/x")
    assert is_guest(5, name, host.proc) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/libexec/qemu-kvm -S", True),
        ("qemu-storage-daemon", True),
        ("/usr/bin/kvm", True),
        ("/usr/bin/python3 qemu-kvm", False),
        ("/lib/systemd/systemd", False),
        ("", False),
    ],
)
def test_a_qemu_is_told_by_its_program(host: Host, command: str, expected: bool) -> None:
    host.process(5, command, "/x")
    assert is_qemu(5, host.proc) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("qemu-system-x86_64 -S -name guest=db1", True),
        ("qemu-system-x86_64 -S -incoming defer", False),
        ("qemu-system-x86_64 --incoming tcp:0:4444", False),
        ("kvm -id 100 -loadstate /var/lib/vz/vm-100-state.raw", False),
        ("qemu-system-x86_64 -loadvm before", False),
        ("qemu-system-x86_64 -name incoming", True),
        ("", False),
    ],
)
def test_a_guest_has_booted_unless_its_qemu_goes_on_with_one(
    host: Host, command: str, expected: bool
) -> None:
    host.process(5, command, "/x")
    assert has_booted(5, host.proc) is expected


def test_a_pid_file_is_believed_when_the_process_is_that_guest(host: Host, tmp_path: Path) -> None:
    for name, text in (("db1", "5"), ("web", "6"), ("gone", "7"), ("odd", "x"), ("neg", "-1")):
        (tmp_path / f"{name}.pid").write_text(text)
    host.process(5, "qemu-kvm -name guest=db1", "/x", started=12)
    host.process(6, "qemu-kvm -name guest=db1", "/x")  # the pid was used again
    assert guest("db1", tmp_path, host.proc) == Process(5, 12)
    for name in ("web", "gone", "odd", "neg", "none"):
        assert guest(name, tmp_path, host.proc) is None


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        (scope(1, "db1") + "/libvirt/emulator", "db1", True),
        (scope(12, r"my\x2ddb.1"), "my-db.1", True),
        (scope(1, "myb"), "m\u00fcyb ", True),  # what a host's name can't have is left out
        (scope(1, "a" * 45), "a" * 60, True),  # a long name is cut
        (scope(1, "db"), "db1", False),
        (scope(1, "db1"), "db", False),
        (scope(1, r"\x2d"), "\u00fc", False),
        ("machine/qemu-3-db1.libvirt-qemu/emulator", "db1", True),
        ("system.slice/db1.service", "db1", False),
    ],
)
def test_a_qemu_that_overwrites_its_command_line_is_known_by_its_pid_file_and_its_group(
    host: Host, tmp_path: Path, path: str, name: str, expected: bool
) -> None:
    (tmp_path / f"{name}.pid").write_text("5")
    found = host.process(5, "", f"/{path}")
    assert guest(name, tmp_path, host.proc) == (found if expected else None)


def test_without_a_pid_file_a_guest_is_the_one_qemu_that_has_its_name_and_its_uuid(
    host: Host, tmp_path: Path
) -> None:
    ours = host.process(5, f"qemu-kvm -name guest=db1 -uuid {UUID}", "/docker/1")
    host.process(6, f"qemu-kvm -name guest=db2 -uuid {UUID}", "/docker/1")
    host.process(7, "qemu-kvm -name guest=db1 -uuid another", "/docker/2")
    assert guest("db1", tmp_path, host.proc, UUID) == ours
    assert guest("db1", tmp_path, host.proc) is None
    host.process(8, f"qemu-kvm -name guest=db1 -uuid {UUID}", "/docker/1")
    assert guest("db1", tmp_path, host.proc, UUID) is None


def test_a_qemu_that_says_it_is_another_or_forks_is_not_taken_for_it(
    host: Host, tmp_path: Path
) -> None:
    said = f"qemu-kvm -name guest=db1 -uuid {UUID}"
    host.process(4, said, f"/{scope(1, 'evil')}", started=3)
    ours = host.process(5, said, f"/{scope(2, 'db1')}/libvirt/emulator", started=7)
    host.process(6, said, f"/{scope(2, 'db1')}/libvirt/emulator", started=9)  # its own child
    assert guest("db1", tmp_path, host.proc, UUID) == ours


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("/usr/bin/qemu-system-x86_64", True),
        ("/usr/bin/qemu-system-x86_64 (deleted)", True),  # replaced by an upgrade
        ("/usr/bin/python3.11", False),
    ],
)
def test_a_qemu_that_overwrites_its_command_line_is_known_by_the_file_that_it_runs(
    host: Host, program: str, expected: bool
) -> None:
    host.process(5, "sleep", "/x")
    (host.proc / "5/exe").symlink_to(program)
    assert is_qemu(5, host.proc) is expected


@pytest.mark.parametrize("pid", ["", "x", "\u00b2", "9" * 5000])
def test_a_pid_file_without_a_number_is_not_believed(host: Host, tmp_path: Path, pid: str) -> None:
    (tmp_path / "db1.pid").write_text(pid)
    assert guest("db1", tmp_path, host.proc) is None


@pytest.mark.parametrize("started", ["x", "\u00b2", "9" * 5000])
def test_a_process_with_a_start_that_is_no_number_is_none(host: Host, started: str) -> None:
    stat = host.proc / "1/stat"
    stat.write_text(stat.read_text().replace(" 7 0\n", f" {started} 0\n"))
    assert process(1, host.proc) is None


def test_who_listens_at_a_socket_is_a_vm_when_it_is_a_qemu(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        pid = peer(client).pid
        assert qemu(pid) is None  # it is this test
        host = Host(tmp_path / "host")
        host.process(os.getpid(), "qemu-system-x86_64 -qmp unix:s", "/x", started=9)
        assert qemu(pid, host.proc) == Process(os.getpid(), 9)
