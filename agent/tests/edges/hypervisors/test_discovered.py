"""The sockets of [[discover]], and the files of facts beside them, as they may be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.core.values.policy import UNKNOWN, LastGood
from iokeel.hypervisors.qmp import discovered as module
from iokeel.hypervisors.qmp.discovered import Discovered, Told
from iokeel.hypervisors.source import SourceNews
from iokeel.libvirt_xml.domain import Disk
from tests.edges.hypervisors.sources import lines

RULES = '[[rules]]\nname = "sold"\n[[rules.drives]]\nlimit = "platform"\n'
CONF = "scsi0: local-lvm:vm-100-disk-0,iops=700\n"
SCSI0 = Disk("scsi0", "/x")


def limit_of(told: Told) -> int | None:
    """Return the limit of scsi0; -1 if its policy isn't known."""
    drive = None if told.policy is None else told.policy.for_drive("scsi0")
    return -1 if drive is UNKNOWN else None if drive is None else drive.limit


class Host:
    """A folder of sockets, and one of files of facts."""

    def __init__(self, folder: Path, facts: bool = True) -> None:
        self.folder, self.last_good = folder, dict[str, LastGood]()
        self.conf = folder / "pve/qemu-server/100.conf"
        self.conf.parent.mkdir(parents=True)
        (folder / "100.qmp").touch()
        table = f'[[discover]]\nsockets = "{folder}/*.qmp"\n'
        if facts:
            table += f'format = "proxmox"\nfacts = "{self.conf.parent}/{{name}}.conf"\n'
        self.config = parse((table + RULES).encode(), "x")
        self.discovered = Discovered(self.config, self.last_good, SourceNews())
        self.vms = self.discovered.vms()

    def write(self, text: str | bytes, mode: int = 0o640) -> None:
        self.conf.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.conf.chmod(mode)

    async def limit(self) -> int | None:
        """Return the limit of scsi0, as the files are now; -1 if it isn't known."""
        await self.discovered.read()
        told = self.discovered.policy(self.vms["100"], [SCSI0], None)
        return limit_of(told)


BAD = {
    "missing": (None, 0, "can't be read, no such file or directory"),
    "empty": (b"\n", 0o640, "is empty"),
    "not text": (b"\xff\xfe", 0o640, "not UTF-8, so it describes no VM"),
    "large": (b"#" * (1 << 20) + b"#", 0o640, "more than 1 MiB, so it describes no VM"),
    "open": (CONF.encode(), 0o666, "others than root may write it; chown root, and chmod go-w"),
}


@pytest.mark.parametrize(("data", "mode", "fault"), BAD.values(), ids=BAD)
async def test_a_bad_file_leaves_the_last_facts_and_without_any_nothing_is_known(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data: bytes | None,
    mode: int,
    fault: str,
) -> None:
    host = Host(tmp_path)
    if data is not None:
        host.write(data, mode)
    assert await host.limit() == -1
    (line,) = lines(caplog)
    assert line.startswith(f"VM 100: {host.conf}: {fault}; see that it is there, or correct facts")
    assert line.endswith("there is no last good one, so its limits stay")
    host.write(CONF)
    assert await host.limit() == 700
    caplog.clear()
    host.conf.unlink()
    if data is not None:
        host.write(data, mode)
    for _ in range(2):
        assert await host.limit() == 700
    assert lines(caplog) == [f"VM 100: {host.conf}: {fault}; its last facts stay"]
    # Another agent knows the last good policy.
    other = Discovered(host.config, host.last_good, SourceNews())
    other.vms()
    await other.read()
    assert limit_of(other.policy(host.vms["100"], [SCSI0], None)) == 700


async def test_a_file_system_that_hangs_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_S", 0.1)
    host = Host(tmp_path)
    host.write(CONF)
    assert await host.limit() == 700
    host.conf.unlink()
    os.mkfifo(host.conf)
    for _ in range(3):
        assert await asyncio.wait_for(host.limit(), 10.0) == 700
    assert lines(caplog) == [
        f"{host.conf.parent}: no answer in 0.1 s; the last facts stay; see what holds its disk up"
    ]
    os.close(os.open(host.conf, os.O_RDWR))


async def test_without_a_format_rules_go_by_name_and_by_the_operators_files(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, facts=False)
    assert await host.limit() is None
    told = host.discovered.policy(host.vms["100"], [SCSI0], None)
    assert told.by_rules is not None
    assert dict(told.by_rules.facts.vm) == {"name": "100"}
    (facts_d := tmp_path / "facts.d").mkdir()
    (facts_d / "a.json").write_text('{"100": {"site.plan": "gold"}}')
    (facts_d / "a.json").chmod(0o644)
    text = host.config.text.decode().replace(RULES, f'[policy]\nfacts_dir = "{facts_d}"\n')
    text += '[[rules]]\nname = "gold"\nwhen = {"site.plan" = "gold"}\nclass = "gold"\n'
    host.discovered.configure(parse(text.encode(), "x"))
    assert host.discovered.facts_changed()
    assert await host.limit() == 10_000


def test_more_sockets_than_any_host_has_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_VMS", 3)
    for number in range(101, 105):
        (tmp_path / f"{number}.qmp").touch()
    host = Host(tmp_path)
    assert [*host.vms] == ["100", "101", "102"]
    assert [*host.discovered.vms()] == ["100", "101", "102"]
    assert lines(caplog) == ["[[discover]]: 2 more sockets than 3, which aren't served; name fewer"]


async def test_the_last_policy_of_a_vm_goes_once_its_platform_has_it_no_more(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    host.write(CONF)
    assert await host.limit() == 700
    host.discovered.forget(host.vms["100"])
    assert host.last_good, "it is only off"
    host.conf.unlink()
    await host.discovered.read()
    host.discovered.forget(host.vms["100"])
    assert not host.last_good
