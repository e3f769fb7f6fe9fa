"""What Proxmox VE's files tell of a VM."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.rules.facts import Facts
from iokeel.rules.known import info_of, who_controls
from iokeel.rules.platform import sold
from iokeel.rules.proxmox import drives_of, pools_of, proxmox_facts, settings_of

# As `qm config` of a VM with a snapshot and a pending change prints its file.
CONF = """\
#scsi0%3A local%3A1,iops=1
#tags: from-the-notes
boot: order=scsi0;ide2;net0
cores: 2
efidisk0: local-lvm:vm-100-disk-1,efitype=4m,pre-enrolled-keys=1,size=4M
ide2: local:iso/debian-13.iso,media=cdrom,size=783M
name: web
net0: virtio=BC:24:11:2E:C3:5D,bridge=vmbr0,firewall=1
scsi0: local-lvm:vm-100-disk-0,iops=700,iops_max=1400,iops_max_length=30,mbps=2.5,size=33793M
scsihw: virtio-scsi-single
smbios1: uuid=4c3b2f0a-9f0e-4a5e-8d54-0c1d2e3f4a5b
tags: gold;web
virtio1: file=ceph:vm-100-disk-2,iops_rd=300,iops_wr=300,ro=1,serial=abc,size=1T
sata3: /dev/disk/by-id/x,size=100K

[PENDING]
scsi0: local-lvm:vm-100-disk-0,iops=9
tags: pending

[before]
name: old
scsi0: local-lvm:vm-100-disk-0,iops=8
"""
TARGETS = ("scsi0", "virtio1", "sata3", "efidisk0", "by-hand")


def facts(conf: str = CONF, pool: str = "acme") -> Facts:
    disks = tuple(Disk(target, f"/dev/{target}") for target in TARGETS)
    return proxmox_facts(f"{pool}\n{conf}", DomainXml("100", disks), "VM 100")


def test_a_vm_has_the_facts_of_its_file_and_its_pool() -> None:
    assert facts().vm == {
        "name": "100",
        "uuid": "4c3b2f0a-9f0e-4a5e-8d54-0c1d2e3f4a5b",
        "pve.vmid": "100",
        "pve.name": "web",
        "pve.pool": "acme",
        "pve.tags": "gold;web",
        "pve.tag.gold": "yes",
        "pve.tag.web": "yes",
    }
    assert "pve.pool" not in facts(pool="").vm


def test_metrics_tell_its_pool_and_its_name() -> None:
    assert info_of(facts().vm) == ("acme", facts().vm["pve.name"])


def test_drives_have_their_storage_their_size_and_what_is_sold() -> None:
    drives = facts().drives
    assert drives["scsi0"] == {
        "target": "scsi0",
        "source": "/dev/scsi0",
        "pve.storage": "local-lvm",
        "pve.volume": "local-lvm:vm-100-disk-0",
        "readonly": "no",
        "size_gb": "34",
        "iotune": "yes",
        "iotune.total_iops_sec": "700",
        "iotune.total_iops_sec_max": "1400",
        "iotune.total_iops_sec_max_length": "30",
        "iotune.total_bytes_sec": "2621440",
    }
    assert sold(drives["scsi0"], "x") == {
        "limit": 700, "separate_budgets": False, "burst": 1400, "burst_seconds": 30,
        "max_bytes": 2621440,
    }  # fmt: skip
    assert sold(drives["virtio1"], "x") == {"limit": 300, "separate_budgets": True, "burst": None}
    assert drives["virtio1"]["size_gb"] == "1024"
    assert drives["virtio1"]["readonly"] == "yes"
    assert drives["virtio1"]["serial"] == "abc"
    assert drives["sata3"]["pve.volume"] == "/dev/disk/by-id/x"
    assert "pve.storage" not in drives["sata3"]
    assert sold(drives["sata3"], "x") == {}
    assert drives["by-hand"] == {"target": "by-hand", "source": "/dev/by-hand"}


def test_each_fact_is_known() -> None:
    found = facts()
    names = {*found.vm, *(name for drive in found.drives.values() for name in drive)}
    assert [name for name in names if who_controls(name) is None] == []


def test_cd_rom_drives_are_no_disks() -> None:
    drives = drives_of(CONF)
    assert [target for target, drive in drives.items() if not drive.is_disk] == ["ide2"]


@pytest.mark.parametrize("figure", ["many", "", "-1", "1e3", "0x10", "5,5", "1" * 16, "\u0665"])
def test_a_limit_that_is_no_number_is_told_and_never_none(figure: str) -> None:
    conf = CONF.replace("iops=700", f"iops={figure}")
    if figure == "5,5":  # an option of no name
        assert facts(conf).drives["scsi0"]["iotune.total_iops_sec"] == "5"
        return
    with pytest.raises(PolicyError) as caught:
        facts(conf)
    assert str(caught.value).startswith("VM 100, drive scsi0: iops is ")


def test_pools_are_those_of_user_cfg() -> None:
    users = """\
user:root@pam:1:0:::a@example.com::
group:admins:root@pam::
pool:acme:for acme:100,101:local-lvm:
pool:acme/web::102::
pool:empty:::local:
pool:broken
acl:1:/pool/acme:@admins:PVEVMAdmin:
"""
    assert pools_of(users) == {"100": "acme", "101": "acme", "102": "acme/web"}


@given(st.text() | st.text("scsi0:, =\n[]#iopstags;1").map(lambda text: text * 3))
@example("scsi0:\nscsi0: \ntags:;;\n: x\nscsi0: ,,=,=1,iops\n")
def test_junk_raises_nothing_but_the_error_that_is_told(junk: str) -> None:
    settings = settings_of(junk)
    assert all(key and value == value.strip() for key, value in settings.items())
    assert all(isinstance(vmid, str) for vmid in pools_of(junk))
    try:
        found = facts(junk, pool="")
    except PolicyError:
        return
    for drive in found.drives.values():
        for name, text in drive.items():
            if name.startswith("iotune."):
                assert int(text) > 0


@given(
    st.lists(st.sampled_from(CONF.split("\n"))), st.sampled_from(["\n[snap]\n", "\n[PENDING]\n"])
)
def test_sections_and_notes_never_count(lines: list[str], section: str) -> None:
    current = [line for line in lines if not line.startswith("[")]
    text = "\n".join(current)
    assert settings_of(text + section + CONF) == settings_of(text)
    assert settings_of("\n".join(f"#{line}" for line in current)) == {}
