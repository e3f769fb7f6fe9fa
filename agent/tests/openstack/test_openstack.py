"""A real OpenStack whose hypervisor has the agent, by the role, and the rules of docs/platforms.md.

The tests are steps of one story, in this order: what each leaves, the next one finds. All that
Nova's guests may do is watched meanwhile.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testing.hypervisors.iotune import TOLERANCE
from testing.machines import guest
from testing.machines.container import VARIABLES
from testing.machines.ssh import admit
from testing.openstack.cloud import Cloud
from testing.openstack.watch import START_S, Disk, Watch, watch
from testing.packages.folder import package_folder
from testing.playbooks.run import PLAYBOOKS, inventory, play
from testing.waiting import eventually

pytestmark = pytest.mark.timeout(3600)

# Low enough for a guest that is emulated beside a whole OpenStack to fill them.
CLASSES = {"gold": {"limit": 400}, "bronze": {"limit": 200}}
GOLD, SOLD, VOLUME = 400, 250, 150
# Limits that hold a drive before it did any I/O; and QEMU lets a tenth of a second's pass at once.
MOST, MOST_DONE = 1.2, TOLERANCE + 0.1
LOOK_S = 12.0
IMAGE = "/tmp/image.raw"


def documented() -> dict[str, object]:
    """Return the role's variables for what docs/platforms.md has for OpenStack."""
    page = (PLAYBOOKS.parent / "docs/platforms.md").read_text().split("## OpenStack\n")[1]
    tables = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    return {f"iokeel_{name}": table for name, table in tables.items()}


@dataclass
class Site:
    """The cloud, and each run of a server's QEMU with what its disks were promised."""

    cloud: Cloud
    watch: Watch
    hosts: Path
    promised: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def create(self, name: str, flavor: str) -> None:
        words = ["server", "create", "--flavor", flavor, "--image", "reader", "--nic", "none"]
        self.cloud.openstack(*words, "--wait", name)
        self.ids[name] = self.cloud.ask("server", "show", name)["id"]

    def domain(self, name: str) -> str:
        return self.cloud.virsh("domname", self.ids[name]).strip()

    def limits(self, name: str, target: str = "vda", flag: str = "--live") -> dict[str, str]:
        """Return a disk's limits, without the group that QEMU puts each disk with limits into."""
        found = guest.limits(self.cloud, self.ids[name], flag, target)
        return {key: value for key, value in found.items() if key != "group_name"}

    def started(self, name: str, **promised: int) -> None:
        """See that a server runs anew, and that its disks are held to what they are promised."""
        self.promised.setdefault(self.ids[name], []).append(promised)
        self.held(name)

    def attached(self, name: str, **promised: int) -> None:
        """See that disks of a server that runs are held to what they are promised."""
        self.promised[self.ids[name]][-1] |= promised
        self.held(name)

    def held(self, name: str) -> None:
        """Look for a while at the disks of a server's last run, and judge what was seen."""
        uuid = self.ids[name]
        wanted = self.promised[uuid]

        def is_seen() -> bool:
            runs = self.watch.runs(uuid)
            return len(runs) == len(wanted) and all(
                target in runs[-1] and runs[-1][target].samples[-1].age_s > LOOK_S
                for target in wanted[-1]
            )

        eventually(is_seen, 60, what=f"{name} runs")
        for target, limit in wanted[-1].items():
            judge(self.watch.runs(uuid)[-1][target], limit, f"{name} {target}")


def judge(disk: Disk, limit: int, what: str) -> None:
    """See that a disk was held in time, and never above its promise after that."""
    held_s = disk.held_after_s(MOST * limit)
    print(f"{what}: libvirt answers after {disk.answered_s:.2f} s, held to {limit} after "
          f"{held_s:.2f} s, then at most {disk.highest_allowed:.0f} allowed and "
          f"{disk.highest_rate:.0f} done")  # fmt: skip
    assert held_s <= disk.answered_s + START_S
    assert disk.highest_allowed <= MOST * limit
    assert disk.highest_rate <= MOST_DONE * limit


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("openstack")
    packages = package_folder(folder / "packages", ["trixie"])
    with Cloud() as cloud:
        variables = documented() | {"iokeel_classes": CLASSES, "iokeel_package": str(packages)}
        hosts = inventory(folder, {"cloud": {**admit(cloud), **VARIABLES}}, **variables)
        flavor = ["flavor", "create", "--ram=64", "--disk=1", "--vcpus=1"]
        cloud.openstack(*flavor, "io1.small")
        cloud.openstack(*flavor, f"--property=quota:disk_total_iops_sec={SOLD}", "m1.sold")
        guest.write_disk(cloud, IMAGE)
        # Nothing in the guest shuts down when it is told to.
        image = ["image", "create", "--property=os_shutdown_timeout=1", "--disk-format=raw"]
        cloud.openstack(*image, f"--file={IMAGE}", "--public", "reader")
        qos = ["volume", "qos", "create", "--consumer=front-end"]
        cloud.openstack(*qos, f"--property=total_iops_sec={VOLUME}", "slow")
        cloud.openstack("volume", "type", "create", "slow")
        cloud.openstack("volume", "qos", "associate", "slow", "slow")
        cloud.openstack("volume", "create", "--size=1", "--type=slow", "data")
        cloud.becomes("volume", "data", "available")
        with watch(cloud) as seen:
            yield Site(cloud, seen, hosts)


def test_the_role_deploys_the_documented_rules(site: Site) -> None:
    played = play("deploy.yml", site.hosts)
    assert played.status == 0, played.out
    assert "flavor-says" in site.cloud.run("iokeel", "rules")


def test_a_server_is_held_to_its_flavors_class(site: Site) -> None:
    site.create("one", "io1.small")
    site.started("one", vda=GOLD)
    why = site.cloud.run("iokeel", "why", site.domain("one"))
    assert "because nova.flavor is io1.small" in why


def test_a_server_is_held_to_what_its_flavor_sells(site: Site) -> None:
    site.create("two", "m1.sold")
    site.started("two", vda=SOLD)
    assert "size_iops_sec" in site.limits("two"), "it is normalized"
    assert site.limits("two", flag="--config") == {"total_iops_sec": str(SOLD)}


def test_a_hard_reboot(site: Site) -> None:
    site.cloud.openstack("server", "reboot", "--hard", "--wait", "one")
    site.started("one", vda=GOLD)


def test_a_resize_to_another_flavor(site: Site) -> None:
    site.cloud.openstack("server", "resize", "--flavor=m1.sold", "--wait", "one")
    site.cloud.openstack("server", "resize", "confirm", "one")
    site.cloud.becomes("server", "one", "active")
    site.started("one", vda=SOLD)


def test_a_rebuild(site: Site) -> None:
    site.cloud.openstack("server", "rebuild", "--image=reader", "--wait", "one")
    site.started("one", vda=SOLD)


def test_a_volume_with_a_quality_of_service_comes_and_goes(site: Site) -> None:
    site.cloud.openstack("server", "add", "volume", "one", "data")
    site.cloud.becomes("volume", "data", "in-use")
    site.attached("one", vdb=VOLUME)
    site.cloud.openstack("server", "remove", "volume", "one", "data")
    site.cloud.becomes("volume", "data", "available")
    assert "vdb" not in site.cloud.virsh("domblklist", site.ids["one"])
    site.cloud.openstack("server", "add", "volume", "one", "data")
    site.cloud.becomes("volume", "data", "in-use")


def test_shelve_and_unshelve(site: Site) -> None:
    site.cloud.openstack("server", "shelve", "one")
    site.cloud.becomes("server", "one", "shelved_offloaded")
    assert site.ids["one"] not in site.cloud.virsh("list", "--all", "--uuid")
    site.cloud.openstack("server", "unshelve", "one")
    site.cloud.becomes("server", "one", "active")
    site.started("one", vda=SOLD, vdb=VOLUME)


def test_no_second_was_above_the_promise(site: Site) -> None:
    for name, uuid in site.ids.items():
        runs = site.watch.runs(uuid)
        assert len(runs) == len(site.promised[uuid])
        for number, (run, promised) in enumerate(zip(runs, site.promised[uuid], strict=True), 1):
            for target, limit in promised.items():
                judge(run[target], limit, f"{name} {target}, run {number}")


def test_removal_leaves_what_nova_wrote(site: Site) -> None:
    played = play("remove.yml", site.hosts)
    assert played.status == 0, played.out
    for name, targets in (("one", {"vda": SOLD, "vdb": VOLUME}), ("two", {"vda": SOLD})):
        for target, limit in targets.items():
            for flag in ("--live", "--config"):
                assert site.limits(name, target, flag) == {"total_iops_sec": str(limit)}
        for flag in ("", "--inactive"):
            assert "iokeel" not in site.cloud.virsh("dumpxml", site.ids[name], *flag.split())
