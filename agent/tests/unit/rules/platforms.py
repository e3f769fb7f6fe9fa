"""Domains as platforms define them: elements, attributes and values as their own code writes them.

Made after nova/virt/libvirt/config.py and driver.py, vdsm's tests of its domain descriptors,
OpenNebula's LibVirtDriverKVM.cc, KubeVirt's testdata of its converter, and CloudStack's tests of
its libvirt wrappers.
"""

from __future__ import annotations

UUID = "4c3b2f0a-9f0e-4a5e-8d54-0c1d2e3f4a5b"
PROJECT = "1f6f1a3e2d7b4a0f9c55bb5e8d2a7f10"
USER = "c6a3e1b07d5f4c2f8d6c1e9ab0f34d77"
VOLUME = "0d9c2a4e-51f7-4b63-9a3d-6d2e2a1c7b58"
DISK = (
    "<disk type='file' device='disk'><source file='/var/lib/nova/instances/x/disk'/>"
    "<target dev='vda' bus='virtio'/></disk>"
)


def domain(name: str, metadata: str = "", disks: str = DISK, more: str = "") -> str:
    about = f"<metadata>{metadata}</metadata>" if metadata else ""
    return (
        f"<domain type='kvm'><name>{name}</name><uuid>{UUID}</uuid>{about}{more}"
        f"<devices>{disks}</devices></domain>"
    )


def nova(flavor: str = "io1.large", **extra: str) -> str:
    """An instance of Nova's, with a local disk and a Cinder volume on Ceph.

    extra: extra specs, with __ for a colon. None of an OpenStack before 2025.2 are in the XML.
    """
    specs = "".join(
        f'<nova:extraSpec name="{name.replace("__", ":")}">{value}</nova:extraSpec>'
        for name, value in extra.items()
    )
    metadata = f"""
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:package version="32.0.0"/>
      <nova:name>web-1</nova:name>
      <nova:creationTime>2026-03-02 09:14:51</nova:creationTime>
      <nova:flavor name="{flavor}" id="7e6c4a4e-3f0f-4f3e-8a2e-1f2d3c4b5a69">
        <nova:memory>2048</nova:memory>
        <nova:disk>20</nova:disk>
        <nova:swap>0</nova:swap>
        <nova:ephemeral>0</nova:ephemeral>
        <nova:vcpus>2</nova:vcpus>
        <nova:extraSpecs>{specs}</nova:extraSpecs>
      </nova:flavor>
      <nova:owner>
        <nova:user uuid="{USER}">alice</nova:user>
        <nova:project uuid="{PROJECT}">acme</nova:project>
      </nova:owner>
      <nova:root type="image" uuid="155d900f-4e14-4e4c-a73d-069cbf4541e6"/>
    </nova:instance>"""
    volume = f"""
    <disk type="network" device="disk">
      <driver name="qemu" type="raw" cache="none" discard="unmap"/>
      <source protocol="rbd" name="volumes-ssd/volume-{VOLUME}">
        <host name="192.0.2.11" port="6789"/>
      </source>
      <target dev="vdb" bus="virtio"/>
      <serial>{VOLUME}</serial>
      <alias name="ua-{VOLUME}"/>
    </disk>"""
    sysinfo = """
    <sysinfo type="smbios"><system>
      <entry name="manufacturer">OpenStack Foundation</entry>
      <entry name="product">OpenStack Nova</entry>
    </system></sysinfo>"""
    return domain("instance-0000002a", metadata, DISK + volume, sysinfo)


def ovirt() -> str:
    metadata = """
    <ovirt-tune:qos xmlns:ovirt-tune="http://ovirt.org/vm/tune/1.0"/>
    <ovirt-vm:vm xmlns:ovirt-vm="http://ovirt.org/vm/1.0">
      <ovirt-vm:clusterVersion>4.7</ovirt-vm:clusterVersion>
      <ovirt-vm:custom><ovirt-vm:tier>gold</ovirt-vm:tier></ovirt-vm:custom>
      <ovirt-vm:device mac_address="00:16:3e:6a:7a:f9"/>
      <ovirt-vm:device devtype="disk" name="sda">
        <ovirt-vm:domainID>88252cf6-381e-48f0-8795-a294a32c7149</ovirt-vm:domainID>
        <ovirt-vm:imageID>89f05c7d-b961-4935-993f-514499024515</ovirt-vm:imageID>
        <ovirt-vm:poolID>13345997-b94f-42dd-b8ef-a1392f65cebf</ovirt-vm:poolID>
        <ovirt-vm:volumeID>626a493f-5214-4337-b580-96a1ce702c2a</ovirt-vm:volumeID>
      </ovirt-vm:device>
    </ovirt-vm:vm>"""
    disk = """
    <disk type="block" device="disk" snapshot="no">
      <source dev="/rhev/data-center/mnt/blockSD/88252cf6/images/89f05c7d/626a493f"/>
      <target dev="sda" bus="scsi"/>
      <serial>89f05c7d-b961-4935-993f-514499024515</serial>
      <boot order="1"/>
    </disk>"""
    return domain("mail", metadata, disk)


def opennebula() -> str:
    metadata = """
    <one:vm xmlns:one="http://opennebula.org/xmlns/libvirt/1.0">
      <one:system_datastore>/var/lib/one//datastores/0/42</one:system_datastore>
      <one:name>web &lt;1&gt;</one:name>
      <one:uname>alice</one:uname>
      <one:uid>7</one:uid>
      <one:gname>acme</one:gname>
      <one:gid>104</one:gid>
      <one:opennebula_version>7.4.0</one:opennebula_version>
      <one:stime>1750000000</one:stime>
      <one:deployment_time>1750000012</one:deployment_time>
    </one:vm>"""
    return domain("one-42", metadata)


def kubevirt() -> str:
    metadata = """<kubevirt xmlns="http://kubevirt.io">
      <uid>f4686d2c-6e8d-4335-b8fd-81bee22f4814</uid></kubevirt>"""
    disk = """
    <disk device="disk" type="file" model="virtio-non-transitional">
      <source file="/var/run/kubevirt-private/vmi-disks/myvolume/disk.img"/>
      <target bus="virtio" dev="vda"/>
      <alias name="ua-myvolume"/>
    </disk>"""
    return domain("mynamespace_testvmi", metadata, disk)


def cloudstack(name: str = "i-7-42-VM") -> str:
    sysinfo = """
    <sysinfo type="smbios"><system>
      <entry name="manufacturer">Apache Software Foundation</entry>
      <entry name="product">CloudStack KVM Hypervisor</entry>
    </system></sysinfo>"""
    return domain(name, more=sysinfo)
