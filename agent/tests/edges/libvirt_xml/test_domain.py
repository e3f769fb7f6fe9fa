"""Domains as libvirt's XML has them."""

from __future__ import annotations

import pytest

from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import (
    LIBVIRT_NAMES,
    Disk,
    domain_in,
    from_libvirt,
    parse_domain,
    to_libvirt,
    unlimited_for,
)
from iokeel.libvirt_xml.policy import parse_policy
from iokeel.libvirt_xml.schema import NAMESPACE

DOMAIN = f"""<domain type='kvm' id='3'>
  <name>db1</name>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/nova/1.1">
      <nova:name>x</nova:name>
    </nova:instance>
    <iokeel:policy xmlns:iokeel="{NAMESPACE}" class="gold">
      <iokeel:drive target="vdb" limt="400"/>
    </iokeel:policy>
  </metadata>
  <throttlegroups>
    <throttlegroup>
      <group_name>limit0</group_name>
      <total_iops_sec>400</total_iops_sec>
      <total_iops_sec_max>800</total_iops_sec_max>
      <size_iops_sec>5856</size_iops_sec>
    </throttlegroup>
    <throttlegroup>
      <group_name>limit1</group_name>
      <read_bytes_sec>1000000</read_bytes_sec>
    </throttlegroup>
  </throttlegroups>
  <devices>
    <disk type='file' device='disk'>
      <source file='/images/a.qcow2'><reservations/></source>
      <target dev='vda' bus='virtio'/>
      <iotune><total_iops_sec>100</total_iops_sec><group_name>drive-a</group_name></iotune>
      <alias name='virtio-disk0'/>
    </disk>
    <disk type='block'>
      <source dev='/dev/vg/b'/>
      <target dev='sda' bus='scsi'/>
      <throttlefilters>
        <throttlefilter group='limit1'/>
        <throttlefilter group='limit0'/>
      </throttlefilters>
    </disk>
    <disk type='network' device='lun'>
      <source protocol='iscsi' name='iqn.2013-07.com.example:t/1'>
        <host name='fd00::1' port='3260'/>
      </source>
      <target dev='sdb' bus='scsi'/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='rbd' name='pool/image'/>
      <target dev='vdc' bus='virtio'/>
    </disk>
    <disk type='volume' device='disk'>
      <source pool='default' volume='d.raw'/>
      <target dev='vdd' bus='virtio'/>
    </disk>
    <disk type='nvme' device='disk'>
      <source type='pci' managed='yes' namespace='1'/>
      <target dev='vde' bus='virtio'/>
    </disk>
    <disk type='nvme' device='disk'>
      <source type='pci' managed='yes' namespace='2'>
        <address domain='0x0000' bus='0x44' slot='0x01' function='0x3'/>
      </source>
      <target dev='vdf' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='nbd' name='exp'>
        <host transport='unix' socket='/run/a b.sock'/>
      </source>
      <target dev='vdg' bus='virtio'/>
    </disk>
    <disk type='vhostuser' device='disk'>
      <source type='unix' path='/run/spdk.sock'/>
      <target dev='vdh' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'><target dev='hdc'/></disk>
    <disk type='file' device='floppy'><target dev='fda'/></disk>
  </devices>
</domain>"""


def test_a_domain_is_read_in_one_pass() -> None:
    domain = parse_domain(DOMAIN)
    assert domain.name == "db1"
    assert domain.disks == (
        Disk(
            "vda",
            "/images/a.qcow2",
            alias="virtio-disk0",
            iotune_group="drive-a",
            iotune=ThrottleLimits(iops_total=100),
        ),
        Disk("sda", "/dev/vg/b", ("limit1", "limit0")),
        Disk(
            "sdb",
            "iscsi://[fd00::1]:3260/iqn.2013-07.com.example:t/1",
            unthrottled="QEMU doesn't throttle SCSI passthrough",
        ),
        Disk("vdc", "rbd:///pool/image"),
        Disk("vdd", "volume://default/d.raw"),
        Disk("vde"),
        Disk("vdf", "nvme://0000:44:01.3/2"),
        Disk("vdg", "nbd+unix:///exp?socket=/run/a%20b.sock"),
        Disk(
            "vdh",
            "vhost-user+unix:///?socket=/run/spdk.sock",
            unthrottled="the I/O of a vhost-user disk doesn't pass QEMU",
        ),
    )
    assert domain.throttle_groups == {
        "limit0": ThrottleLimits(iops_total=400, iops_total_max=800, iops_size=5856),
        "limit1": ThrottleLimits(bps_read=1_000_000),
    }
    targets = ("vda", "sda", "sdb", "vdc", "vdd", "vde", "vdf", "vdg", "vdh")
    assert domain.targets == targets
    found = domain_in(DOMAIN)
    assert found is not None
    assert found.targets == (*targets,)
    assert {disk.target for disk in domain.drives} == {*targets} - {"sdb", "vdh"}


def test_a_domain_with_500_disks_that_have_limits_is_read() -> None:
    limits = ThrottleLimits(
        bps_total=5, bps_total_max=6, iops_total=7, iops_total_max=8, iops_total_max_length=9,
        iops_size=4096,
    )  # fmt: skip
    iotune = "".join(f"<{k}>{v}</{k}>" for k, v in to_libvirt(limits).items() if v)
    disk = (  # as libvirt has it
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/a'/>"
        f"<target dev='sd{{}}' bus='scsi'/><iotune>{iotune}</iotune><alias name='scsi0-0-0-0'/>"
        "<address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>"
    )
    disks = "".join(map(disk.format, range(500)))
    found = parse_domain(f"<domain><name>db1</name><devices>{disks}</devices></domain>").disks
    assert [each.iotune for each in found] == [limits] * 500


def test_a_lun_on_virtio_is_throttled() -> None:
    disk = "<disk device='lun'><target dev='vda' bus='virtio'/></disk>"
    domain = parse_domain(f"<domain><name>db1</name><devices>{disk}</devices></domain>")
    assert domain.drives == (Disk("vda"),)


@pytest.mark.parametrize("rate", ["", "-5", "4e2", "unlimited", "\u0664", "9" * 20, "<a/>"])
def test_a_throttle_group_with_a_limit_that_makes_no_sense_is_left_out(rate: str) -> None:
    known = "<group_name>a</group_name><total_bytes_sec>5</total_bytes_sec>"
    groups = f"<throttlegroup>{known}<total_iops_sec>{rate}</total_iops_sec></throttlegroup>"
    xml = f"<domain><name>db1</name><throttlegroups>{groups}</throttlegroups></domain>"
    assert parse_domain(xml).throttle_groups == {}


def test_a_bad_policy_does_not_hide_the_domains_disks() -> None:
    disk = "<disk type='file'><source file='/a'/><target dev='vda'/></disk>"
    policy = "<metadata><policy><polic/></policy></metadata>"
    xml = f"<domain><name>db1</name>{policy}<devices>{disk}</devices></domain>"
    assert parse_domain(xml).targets == ("vda",)


@pytest.mark.parametrize(
    "metadata",
    [
        "<other:a xmlns:other='urn:other'>" + "<other:b/>" * 20_000 + "</other:a>",
        "<a>" + "x" * (2 << 20) + "</a>",
        "<metadata>" + "<a b=''/>" * 30_000 + "</metadata>",
    ],
)
def test_metadata_that_is_too_large_does_not_hide_the_domains_disks(metadata: str) -> None:
    disks = "<devices><disk><target dev='vda'/></disk></devices>"
    xml = f"<domain><name>db1</name><metadata>{metadata}</metadata>{disks}</domain>"
    assert parse_domain(xml) == parse_domain(xml.encode())
    assert parse_domain(xml).targets == ("vda",)


def chain(length: int) -> str:
    """Return a <backingStore> with others in it, as libvirt has them."""
    found = "<backingStore/>"
    for i in range(length):
        inside = f"<format type='qcow2'/>\n<source file='/images/{i}.qcow2'/>\n{found}"
        found = f"<backingStore type='file' index='{i + 3}'>\n{inside}\n</backingStore>\n"
    return found


def test_the_images_beneath_disks_make_no_domain_too_large() -> None:
    """libvirt takes chains of 200 (QEMU_DOMAIN_STORAGE_SOURCE_CHAIN_MAX_DEPTH)."""
    disks = "".join(
        f"<disk><source file='/a'/>{chain(200)}<mirror>{chain(1)}</mirror>"
        f"<target dev='vd{i}'/></disk>"
        "<disk><backingStore/><target dev='sda'/></disk>"
        for i in range(60)
    )
    comment = "<metadata><x:a xmlns:x='urn:x'><!-- <backingStore> --></x:a>{}</metadata>"
    policy = f"<policy xmlns='{NAMESPACE}'><drive target='vda' limit='7'/></policy>"
    xml = f"<domain><name>db1</name>{comment.format(policy)}<devices>{disks}</devices></domain>"
    domain = parse_domain(xml)
    assert len(domain.disks) == 120
    beneath = tuple(f"/images/{i}.qcow2" for i in reversed(range(200)))
    assert domain.disks[:2] == (Disk("vd0", "/a", beneath=beneath), Disk("sda"))
    assert parse_policy(xml, {}, "x") == DomainPolicy({"vda": DrivePolicy(limit=7)})


def beneath(*sources: str, top: str = "<source file='/a'/>") -> tuple[str, ...]:
    """Return what is read of a disk's images beneath the topmost: the first of <source>s, ..."""
    found = "<backingStore/>"
    for source in reversed(sources):
        found = f"<backingStore type='file' index='3'>\n{source}\n{found}\n</backingStore>\n"
    devices = f"<devices><disk>{top}{found}<target dev='vda'/></disk></devices>"
    (disk,) = parse_domain(f"<domain><name>db1</name>{devices}</domain>").disks
    assert disk.path == "/a"
    return disk.beneath


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("<source file='/it&apos;s &amp; b'/>", ["/it's & b"]),
        ('<source startupPolicy="optional" file="/b"/>', ["/b"]),
        ("<source dev='/dev/vg/b' index='4'><seclabel model='dac'/></source>", ["/dev/vg/b"]),
        ("<source protocol='rbd' name='p/file'><host name='m'/></source>", []),
        ("<source pool='p' volume='b'/>", [""]),
        ("<source type='pci'><address bus='0x44'/></source>", [""]),
    ],
)
def test_the_paths_of_the_images_beneath_a_disks_own_are_read(
    source: str, paths: list[str]
) -> None:
    assert beneath(source) == (*paths,)
    assert beneath("<source file='/x'/>", source, "<source file='/x'/>") == ("/x", *paths)


def test_the_paths_of_data_files_are_read() -> None:
    """As libvirt 11.3 has them."""
    store = "<dataStore type='file'><format type='raw'/><source file='/{}' index='3'/></dataStore>"
    top = f"<source file='/a' index='1'>{store.format('d')}</source>"
    assert beneath(top=top) == ("/d",)
    assert beneath(f"<source file='/b'>{store.format('e')}</source>", top=top) == ("/d", "/b", "/e")


@pytest.mark.parametrize("odd", ["<backingStore>", "</backingStore>", "<backingStore", "<b>"])
def test_a_chain_of_images_hides_no_fault(odd: str) -> None:
    xml = f"<domain>\n<name>db1</name>{chain(3)}\n{odd}</domain>"
    with pytest.raises(PolicyError, match=f"line {xml.count(chr(10)) + 1}: not well-formed"):
        parse_domain(xml)


@pytest.mark.parametrize("count", [870, 3000])
def test_a_domain_may_have_as_many_disks_as_libvirt_can_tell_of(count: int) -> None:
    """Of Ceph's, with limits and bursts, as libvirt 9.0 writes them."""
    rates = [f"total_{unit}_sec{end}" for unit in ("bytes", "iops") for end in ("", "_max")]
    names = (*rates, "size_iops_sec", *(f"{rate}_length" for rate in rates if "max" in rate))
    iotune = "".join(f"<{name}>1000</{name}>" for name in names)
    hosts = "".join(f"<host name='10.0.0.{i}' port='6789'/>" for i in range(3))
    disks = "".join(
        "<disk type='network' device='disk'><driver name='qemu' type='raw' cache='none'"
        " discard='unmap'/><auth username='cinder'><secret type='ceph'"
        " uuid='457eb676-33da-42ec-9a8c-9293d545c337'/></auth><source protocol='rbd'"
        f" name='volumes/{i}' index='{i}'>{hosts}</source><target dev='sd{i}' bus='scsi'/>"
        f"<iotune>{iotune}</iotune><serial>{i}</serial><alias name='scsi0-0-0-{i}'/><address"
        f" type='drive' controller='0' bus='0' target='0' unit='{i}'/></disk>"
        for i in range(count)
    )
    policy = f"<metadata>\n<policy xmlns='{NAMESPACE}' limit='{{}}'/></metadata>"
    xml = f"<domain><name>db1</name>{policy}<devices>{disks}</devices></domain>"
    found = parse_domain(xml.format(7))
    assert len(found.drives) == count
    assert found.disks[-1].path == f"rbd://10.0.0.0:6789/volumes/{count - 1}"
    said = parse_policy(xml.format(7), {}, "domain db1")
    assert said is not None
    assert (said.vm and said.vm.limit) == 7
    with pytest.raises(PolicyError, match=r"domain db1, line 2.*'x'"):
        parse_policy(xml.format("x"), {}, "domain db1")


def test_a_domain_that_is_too_large_without_its_metadata_is_named() -> None:
    disks = "<devices>" + "<hostdev/>" * 20_000 + "</devices>"
    xml = f"<domain><name>db1</name><metadata/>{disks}</domain>"
    with pytest.raises(PolicyError, match=r"^domain db1: more than 20000 tags"):
        parse_domain(xml, "domain db1")


@pytest.mark.parametrize("xml", ["<policy/>", "<domain/>", "<domain><name/></domain>"])
def test_what_is_no_domain_is_refused(xml: str) -> None:
    with pytest.raises(PolicyError, match=r"line 1: not a domain with a name; give what virsh"):
        parse_domain(xml)


def test_white_space_is_part_of_a_domains_name() -> None:
    names = ("db1", " db1", "db1\t", " ")
    assert tuple(parse_domain(f"<domain><name>{name}</name></domain>").name for name in names) == (
        names
    )


def test_only_a_whole_domain_tells_its_disks() -> None:
    assert domain_in("<policy><drive target='vda'/></policy>") is None
    assert domain_in("<metadata/>") is None
    cdrom = "<disk device='cdrom'><target dev='sda'/></disk>"
    for devices in ("", f"<devices>{cdrom}</devices>"):
        found = domain_in(f"<domain><name>a</name>{devices}</domain>")
        assert found is not None
        assert found.disks == ()


def test_a_disk_cant_be_limited_if_all_its_throttle_groups_have_others() -> None:
    disks = (
        Disk("vda", throttle_groups=("both", "own")),
        Disk("vdb", throttle_groups=("both",)),
        Disk("vdc", unthrottled="why"),
        Disk("vdd"),
        Disk("vde", throttle_groups=("alone", "alone")),
    )
    assert unlimited_for(disks) == {
        "vdb": "each of its throttle groups, 'both', has other disks",
        "vdc": "why",
    }


def test_limits_have_libvirts_names() -> None:
    # As virDomainSetBlockIoTune's documentation lists them, without group_name.
    rates = [
        f"{way}_{unit}_sec" for unit in ("bytes", "iops") for way in ("total", "read", "write")
    ]
    names = {name + end for name in rates for end in ("", "_max", "_max_length")}
    assert set(LIBVIRT_NAMES.values()) == names | {"size_iops_sec"}
    limits = ThrottleLimits(bps_read=5, iops_total_max=7, iops_total=6, iops_size=4096)
    values = to_libvirt(limits)
    assert {name: value for name, value in values.items() if value} == {
        "read_bytes_sec": 5, "total_iops_sec_max": 7, "total_iops_sec": 6, "size_iops_sec": 4096,
    }  # fmt: skip
    assert from_libvirt(values | {"group_name": "a"}) == limits


@pytest.mark.parametrize("value", [-1, "5", None, 5.5])
def test_limits_of_libvirts_that_make_no_sense_are_unknown(value: object) -> None:
    assert from_libvirt({"total_iops_sec": 300, "read_bytes_sec": value}) is None
