"""Guests as a cloud makes them, held by rules: their domains say nothing of iokeel."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest

from iokeel.core.values.policy import BUILTIN_CLASSES
from testing.agents import HostAgent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.migration import destroy, migrate
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)

RULES = """
[[rules]]
name = "io1"
when = {"nova.flavor" = "io1.*"}
tenant = "{nova.project}"
class = "silver"
"""
REST = '[[rules]]\nname = "rest"\nclass = "bronze"\n'
UUID = "4c3b2f0a-9f0e-4a5e-8d54-0c1d2e3f4a5b"
SILVER, BRONZE = (BUILTIN_CLASSES[name].limit or 0 for name in ("silver", "bronze"))
# Limits of any request size that hold a drive before it did any I/O, and QEMU's own tolerance.
LEAST, MOST = 0.8, 1.2
START_S = 2.0  # from the start of a guest until it is held


@pytest.fixture(scope="module")
def disk(host: Host) -> Path:
    return make_disk(host.dir / "disk.raw", 16)


@pytest.fixture
def cloud(host: Host, disk: Path) -> Iterator[Cloud]:
    made = Cloud(host, disk)
    yield made
    made.gone()


class Cloud:
    """Defines a server's domain anew at each start, as Nova does."""

    def __init__(self, host: Host, disk: Path) -> None:
        self.host, self.disk, self.vm = host, disk, Vm(host, "server")

    def start(self, flavor: str | None, iotune: Mapping[str, int] | None = None) -> None:
        """Define and start the server.

        flavor: None for a domain without any metadata. iotune: the limits that are sold with it.
        """
        self.gone()
        nova = f"""<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
          <nova:name>web-1</nova:name><nova:flavor name="{flavor}" id="1"/>
          <nova:owner><nova:user uuid="u">alice</nova:user>
            <nova:project uuid="1f6f1a3e2d7b4a0f9c55bb5e8d2a7f10">acme</nova:project></nova:owner>
        </nova:instance>"""
        drives = [DiskSpec("vda", self.disk, iotune)]
        policy = None if flavor is None else nova
        xml = domain_xml("server", drives, image=image(), folder=self.host.dir, policy=policy)
        self.vm.define(xml.replace("</name>", f"</name><uuid>{UUID}</uuid>", 1))
        self.vm.launch()
        self.started = time.monotonic()

    def gone(self) -> None:
        if "server" in self.host.virsh("list", "--all", "--name").split():
            self.vm.destroy()
            self.host.virsh("undefine", "server")

    @property
    def rate(self) -> float:
        return highest_rate(blkdeviotune(self.host, "server"))

    def is_held(self, limit: int) -> Callable[[], bool]:
        return lambda: LEAST * limit <= self.rate <= MOST * limit

    def in_time(self, limit: int) -> None:
        """Wait until the server is held to a limit, which is soon after its start."""
        eventually(self.is_held(limit))
        took_s = time.monotonic() - self.started
        print(f"held to {limit} after {took_s:.2f} s")
        assert took_s < START_S


def rules(agent: HostAgent, *words: str | Path) -> tuple[int, str]:
    """Return the exit status of `iokeel rules`, and what it prints."""
    command = [*agent.command, "rules", *words, "--socket", str(agent.socket)]
    with agent.popen(command, stdout=PIPE, stderr=PIPE) as process:
        out, _ = process.communicate(timeout=60)
    return process.returncode, out


@pytest.mark.alone
def test_a_server_is_held_to_its_flavors_class_from_each_start_on(host: Host, cloud: Cloud) -> None:
    """Five lines of rules, and no word of iokeel in the domain."""
    with HostAgent(host, RULES + REST) as agent:
        cloud.start("io1.large")
        cloud.in_time(SILVER)
        assert "Rule io1 gives a limit of 4000 iops" in agent.why("server")
        assert "because nova.flavor is io1.large" in agent.why("server")
        assert agent.drive("server")["tenant"] == "1f6f1a3e2d7b4a0f9c55bb5e8d2a7f10"
        assert agent.drive("server")["rule"] == "io1"

        # A policy by hand comes first, and is lost at the next start, as Nova makes the XML anew.
        set_metadata(host, "server", '<policy><drive target="vda" limit="500"/></policy>')
        eventually(cloud.is_held(500))
        assert "Its own policy and rule io1 give a limit of 500" in agent.why("server")
        cloud.start("io1.large")  # a hard reboot
        cloud.in_time(SILVER)
        cloud.start("m1.small")  # a resize
        cloud.in_time(BRONZE)

        status, out = rules(agent, "--json")
        listed = json.loads(out)
        assert status == 0
        assert [guest["fits"] for guest in listed["guests"]] == [["rest"]]


def test_an_xml_without_any_policy_lifts_nothing(host: Host, cloud: Cloud) -> None:
    """Not even if it says nothing of the platform any more, and the agent starts anew."""
    with HostAgent(host, RULES) as agent:
        cloud.start("io1.large")
        eventually(cloud.is_held(SILVER))
        cloud.start(None)
        eventually(cloud.is_held(SILVER))
        assert agent.says("no rule gives a policy of vda, the tenant any more, as rule io1 did")
        assert agent.metrics()['iokeel_domain_policy_valid{domain="server"}'] == 0
        agent.stop()
        cloud.start(None)
        agent.start()
        eventually(cloud.is_held(SILVER))

        # The rules go from the file, which diff says before, and nothing is lifted.
        new = host.dir / "new.toml"
        new.write_text(agent.config.read_text().replace(RULES, ""))
        status, out = rules(agent, "diff", new)
        assert status == 1
        assert "loses its limit" in out
        agent.config.write_text(new.read_text())
        agent.send(signal.SIGHUP)
        eventually(lambda: agent.says("the configuration was read again"))
        time.sleep(3)
        assert cloud.is_held(SILVER)()
        agent.config.write_text(new.read_text() + '[[rules]]\nname = "a"\npolicy = "none"\n')
        agent.send(signal.SIGHUP)
        eventually(lambda: blkdeviotune(host, "server") == {})


NONE = '[[rules]]\nname = "a"\npolicy = "none"\n'
SOLD = """
[[rules]]
name = "sold"
[[rules.drives]]
limit = "platform"
burst = "platform"
"""


def test_what_the_platform_sells_is_kept_on_record_and_normalized(host: Host, cloud: Cloud) -> None:
    with HostAgent(host, SOLD) as agent:
        cloud.start("io1.large", iotune={"total_iops_sec": 700})
        eventually(cloud.is_held(700))
        assert "size_iops_sec" in blkdeviotune(host, "server"), "it is normalized"
        eventually(lambda: "urn:iokeel:found" in host.virsh("dumpxml", "server"))
        found = host.virsh("metadata", "server", "--uri", "urn:iokeel:found:1")
        assert found.split() == ["<found>", "<drive", 'target="vda"', 'total_iops_sec="700"/>',
                                 "</found>"]  # fmt: skip

        # Neither a restart of the agent nor a restore takes the agent's limits for the platform's.
        agent.stop(signal.SIGKILL)
        agent.start()
        with cloud.vm.saved():
            pass
        eventually(lambda: agent.drive("server")["limit_iops"] == 700)
        assert 'total_iops_sec="700"' in host.virsh("dumpxml", "server")

        cloud.start("io1.large", iotune={"total_iops_sec": 300})  # another offering
        eventually(cloud.is_held(300))
        # Without a policy the platform's own figures are back, and no word of ours is left.
        rules_before = agent.config.read_text()
        agent.config.write_text(rules_before.replace(SOLD, NONE))
        agent.send(signal.SIGHUP)
        eventually(lambda: blkdeviotune(host, "server") == {"total_iops_sec": 300})
        eventually(lambda: "urn:iokeel" not in host.virsh("dumpxml", "server"))
        agent.config.write_text(rules_before)
        agent.send(signal.SIGHUP)
        eventually(lambda: "urn:iokeel" in host.virsh("dumpxml", "server"))

        cloud.start("io1.large")  # one without a limit
        eventually(lambda: blkdeviotune(host, "server") == {})
        valid = 'iokeel_domain_policy_valid{domain="server"}'
        eventually(lambda: agent.metrics().get(valid) == 1)


def test_a_released_host_has_the_platforms_figures_and_no_record(host: Host, cloud: Cloud) -> None:
    with HostAgent(host, SOLD) as agent:
        cloud.start("io1.large", iotune={"total_iops_sec": 700})
        eventually(cloud.is_held(700))
        agent.stop()
        assert "urn:iokeel" in host.virsh("dumpxml", "server")
        with agent.popen([*agent.command, "agent", "--release", "--config", agent.config]) as last:
            assert last.wait(60) == 0
        assert blkdeviotune(host, "server") == {"total_iops_sec": 700}
        assert "urn:iokeel" not in host.virsh("dumpxml", "server")


def test_what_a_platform_changes_at_run_time_is_sold_from_then_on(host: Host, cloud: Cloud) -> None:
    def is_sold(sold: int) -> bool:
        return bool(agent.drive("server")["limit_iops"] == sold)

    tune = ("blkdeviotune", "server", "vda", "--live", "--total-iops-sec")
    with HostAgent(host, SOLD) as agent:
        cloud.start("io1.large", iotune={"total_iops_sec": 700})
        eventually(cloud.is_held(700))
        for sold in (300, 900, 1500):
            host.virsh(*tune, str(sold))
            eventually(partial(is_sold, sold))
            eventually(cloud.is_held(sold))
            eventually(lambda: "size_iops_sec" in blkdeviotune(host, "server"))  # normalized
        agent.stop(signal.SIGKILL)
        host.virsh(*tune, "400")  # while no agent runs
        agent.start()
        eventually(lambda: agent.drive("server")["limit_iops"] == 400)
        eventually(cloud.is_held(400))
        time.sleep(3)
        assert agent.drive("server")["limit_iops"] == 400, "the agent's own are not the platform's"
        agent.config.write_text(agent.config.read_text().replace(SOLD, NONE))
        agent.send(signal.SIGHUP)
        eventually(lambda: blkdeviotune(host, "server") == {"total_iops_sec": 400})


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with Host.bookworm() as a, Host.bookworm() as b:
        for each in (a, b):
            each.start_libvirtd()
        yield [a, b]
        destroy("server", [a, b])


@pytest.mark.parametrize("end", ["policy", "release", "release without its state"])
@pytest.mark.parametrize("rules", ["", SOLD])
def test_after_a_migration_a_guest_gets_back_what_it_had_before_any_agent(
    hosts: list[Host], end: str, rules: str
) -> None:
    source, target = hosts
    cloud = Cloud(source, make_disk(source.dir / "disk.raw", 16))
    with HostAgent(source, rules), HostAgent(target, rules) as there:
        cloud.start("io1.large", iotune={"total_iops_sec": 700})
        if not rules:  # its own policy alone
            set_metadata(source, "server", '<policy><drive target="vda" limit="500"/></policy>')
        eventually(lambda: "urn:iokeel:found" in source.virsh("dumpxml", "server"))
        migrate("server", source, target)
        eventually(lambda: there.drive("server")["limit_iops"] == (700 if rules else 500))
        assert blkdeviotune(target, "server") != {"total_iops_sec": 700}
        if end.startswith("release"):
            there.stop()
            if end != "release":  # as if no agent had run here
                shutil.rmtree(there.state)
            with there.popen(
                [*there.command, "agent", "--release", "--config", there.config]
            ) as last:
                assert last.wait(60) == 0
        elif rules:
            there.config.write_text(there.config.read_text().replace(rules, NONE))
            there.send(signal.SIGHUP)
        else:
            metadata = ("metadata", "server", "--uri", "urn:iokeel:policy:1", "--live")
            target.virsh(*metadata, "--remove")
        eventually(lambda: blkdeviotune(target, "server") == {"total_iops_sec": 700})
        eventually(lambda: "urn:iokeel:found" not in target.virsh("dumpxml", "server"), 70)


def test_a_limit_by_size_follows_a_resize(host: Host, cloud: Cloud) -> None:
    rule = '[[rules]]\nname = "size"\n[[rules.drives]]\nlimit = {per_gb = 500}\n'
    with HostAgent(host, rule) as agent:
        cloud.start("io1.large")
        eventually(cloud.is_held(500))
        host.virsh("blockresize", "server", "vda", "3G")
        agent.send(signal.SIGHUP)  # or it takes up to a minute
        eventually(cloud.is_held(1500))
