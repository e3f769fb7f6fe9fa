"""Policies by rule, of domains of libvirt's own test driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from iokeel.config.load import parse
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    UNKNOWN,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    PolicyInPart,
    VmPolicy,
)
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.rules.platform import NAMESPACE as FOUND
from iokeel.rules.platform import record_text
from tests.edges.hypervisors.sources import lines

URI = "test:///default"
UUID = "1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11"
DISK = "<disk type='file'><source file='/{0}'/><target dev='{0}' bus='virtio'/></disk>"
GOLD = BUILTIN_CLASSES["gold"]
RULES = """
[[rules]]
name = "io1"
when = {"nova.flavor" = "io1.*"}
class = "gold"
[[rules]]
name = "projects"
when = {"nova.project" = "*"}
tenant = "{nova.project}"
"""


def xml(flavor: str | None = "io1.large", own: str = "", *targets: str) -> str:
    """Return a domain as Nova makes it. flavor: None for one that isn't Nova's."""
    nova = ""
    if flavor is not None:
        nova = f"""<nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'>
          <nova:flavor name='{flavor}'/>
          <nova:owner><nova:project uuid='acme'>Acme Ltd</nova:project></nova:owner>
        </nova:instance>"""
    return f"""<domain type='test'><name>web</name><uuid>{UUID}</uuid><memory>1024</memory>
    <os><type>hvm</type></os><metadata>{nova}{own}</metadata>
    <devices>{"".join(map(DISK.format, targets or ("vda",)))}</devices></domain>"""


def own(text: str) -> str:
    return f"<i:policy xmlns:i='urn:iokeel:policy:1' {text}</i:policy>"


@pytest.fixture
def libvirtd() -> Iterator[Any]:
    connection = libvirt.open(URI)
    yield connection
    for domain in connection.listAllDomains():
        if domain.name() == "web":
            domain.destroy()
    connection.close()


class Rig:
    """An agent's source of domains with rules, as its configuration has them."""

    def __init__(self, libvirtd: Any, rules: str = RULES) -> None:
        self.libvirtd = libvirtd
        self.saved: dict[str, LastGood] = {}
        self.start(rules)

    def start(self, rules: str) -> None:
        """Start it, or start it again."""
        config = parse(rules.encode(), "agent.toml")
        self.source = LibvirtSource(URI, config.classes, self.saved, config.ceilings, config.rules)

    def reload(self, rules: str) -> None:
        self.source.configure(parse(rules.encode(), "agent.toml"))

    async def defined(self, text: str) -> object:
        """Return the policy of a guest that is started anew with another definition."""
        for domain in self.libvirtd.listAllDomains():
            if domain.name() == "web":
                domain.destroy()
        self.libvirtd.createXML(text, 0)
        return await self.policy()

    async def policy(self) -> object:
        await self.source.resync()
        return self.source.vms()["web"].policy

    @property
    def error(self) -> str:
        return str(self.source.vms()["web"].policy_error)


@pytest.fixture
async def rig(libvirtd: Any) -> Rig:
    return Rig(libvirtd)


async def test_a_guest_has_what_the_rules_give_it(rig: Rig) -> None:
    policy = DomainPolicy({}, GOLD, "acme")
    assert await rig.defined(xml()) == policy
    assert rig.error == "None"
    assert rig.saved[UUID].policy == policy
    assert rig.saved[UUID].sources["tenant"] == "projects"
    assert await rig.defined(xml(None)) == policy, "it fits none any more"


async def test_a_guest_that_fits_no_rule_is_left_alone(rig: Rig) -> None:
    assert await rig.defined(xml(None)) is None
    assert rig.saved == {}


async def test_its_own_policy_comes_first_unless_metadata_does_not_count(rig: Rig) -> None:
    text = xml("io1.large", own("tenant='x'><i:drive target='vda' limit='50'/>"))
    drive = DrivePolicy(50, 50, 20_000, 60, 200)
    assert await rig.defined(text) == DomainPolicy({"vda": drive}, GOLD, "x")
    rig.reload("[policy]\nmetadata = false\n" + RULES)
    assert await rig.policy() == DomainPolicy({}, GOLD, "acme")


@pytest.mark.parametrize("again", ["reload", "restart"])
@pytest.mark.parametrize("rules", ["", RULES.replace("io1.*", "io2.*").replace("gold", "bronze")])
async def test_what_no_rule_gives_any_more_stays_and_the_log_says_so_once(
    rig: Rig, again: str, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = await rig.defined(xml())
    if again == "reload":
        rig.reload(rules)
    else:
        rig.start(rules)
    assert await rig.policy() == policy
    assert await rig.policy() == policy
    what = "domain web: no rule gives a policy of vda{} any more, as rule io1{} did"
    lost = ("", "") if rules else (", the tenant", ", projects")
    assert rig.error.startswith(what.format(*lost))
    (line,) = lines(caplog)
    assert line == f"{rig.error}; it stays as it was last"
    assert rig.source.errors["policy"] == 1
    rig.reload('[[rules]]\nname = "free"\npolicy = "none"')
    caplog.set_level(logging.INFO)
    assert await rig.policy() is None
    assert "web: it has no policy any more, because rule free leaves it alone" in caplog.text
    assert rig.saved == {}


async def test_a_resize_to_a_flavor_of_no_rule_lifts_nothing(rig: Rig) -> None:
    assert await rig.defined(xml("io1.large")) == await rig.defined(xml("m1.small"))
    assert "as rule io1 did" in rig.error
    rig.reload(RULES + '[[rules]]\nname = "rest"\nclass = "bronze"')
    assert await rig.policy() == DomainPolicy({}, BUILTIN_CLASSES["bronze"], "acme")
    assert rig.error == "None"


async def test_a_template_without_a_name_is_told_and_lifts_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    bad = RULES.replace('"gold"', '"{nova.extra.class}"')
    rig.reload(bad)
    assert await rig.defined(xml()) == DomainPolicy({}, tenant="acme")
    assert "nova.extra.class, which isn't known" in rig.error
    assert lines(caplog) == [f"{rig.error}; the next rule counts"]
    rig.reload(RULES)
    assert await rig.policy() == DomainPolicy({}, GOLD, "acme")
    rig.reload(bad)
    assert await rig.policy() == DomainPolicy({}, GOLD, "acme"), "its last policy stays"


async def test_a_guest_whose_only_rule_is_bad_keeps_its_limits(rig: Rig) -> None:
    rig.reload('[[rules]]\nname = "a"\nclass = "{nova.extra.class}"')
    assert await rig.defined(xml()) is UNKNOWN
    assert "rule a: '{nova.extra.class}' needs" in rig.error


async def test_a_bad_policy_of_its_own_leaves_a_new_guest_to_its_rules(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    bad = own("tenant='x'><i:drive target='vda' limit='5O'/>")
    assert await rig.defined(xml("io1.large", bad)) == DomainPolicy({}, GOLD, "acme")
    assert lines(caplog)[0].endswith("there is no last good one, so its rules alone count")
    good = bad.replace("5O", "50")
    had = await rig.defined(xml("io1.large", good))
    assert await rig.defined(xml("io1.large", bad)) == had, "the last good one"


async def test_metadata_that_is_too_large_for_facts_lifts_nothing(rig: Rig) -> None:
    much = "<x:a xmlns:x='urn:x'>" + "<x:b/>" * 30_000 + "</x:a>"
    assert await rig.defined(xml("io1.large", much)) is UNKNOWN
    policy = await rig.defined(xml())
    assert await rig.defined(xml("io1.large", much)) == policy
    assert "more than 20000 tags" in rig.error


async def test_an_own_policy_of_a_drive_that_is_not_there_holds_up_what_rules_say_of_others(
    rig: Rig,
) -> None:
    """Another drive may be the one that was meant."""
    before = await rig.defined(xml("io1.large", own("><i:drive target='vda' limit='50'/>")))
    assert isinstance(before, DomainPolicy)
    text = xml("io1.large", own("><i:drive target='vdz' limit='50'/>"), "vda", "vdb")
    policy = await rig.defined(text)
    assert isinstance(policy, PolicyInPart)
    assert policy.for_drive("vda") is UNKNOWN
    assert policy.for_new("vda") == before.drives["vda"]
    assert policy.for_drive("vdb") is UNKNOWN
    assert policy.for_new("vdb") == GOLD
    assert "the policy names vdz" in rig.error


async def test_tables_of_drives_follow_the_drives_that_there_are(rig: Rig) -> None:
    rig.reload(
        '[[rules]]\nname = "a"\n[[rules.drives]]\nwhen = {target = "vdb"}\nlimit = 7\n'
        "[[rules.drives]]\nlimit = 9"
    )
    nine, seven = DrivePolicy(limit=9), DrivePolicy(limit=7)
    assert await rig.defined(xml()) == DomainPolicy({"vda": nine})
    two = DomainPolicy({"vda": nine, "vdb": seven})
    assert await rig.defined(xml("x", "", "vda", "vdb")) == two
    assert await rig.defined(xml()) == DomainPolicy({"vda": nine}), "it is unplugged"
    assert rig.error == "None"


async def test_a_ceiling_holds_what_rules_give_too(rig: Rig) -> None:
    rig.reload(RULES + "[ceilings.all]\nlimit = 600\n")
    policy = await rig.defined(xml())
    assert isinstance(policy, DomainPolicy)
    assert policy.for_drive("vda") == DrivePolicy(0, 600, 600, 60, 100)
    assert policy.ceiling == "all"
    assert rig.saved[UUID].policy == DomainPolicy({}, GOLD, "acme")


async def test_a_false_record_gives_no_more_than_the_ceiling(libvirtd: Any) -> None:
    rules = '[[rules]]\nname = "sold"\n[[rules.drives]]\nlimit = "platform"\n'
    record = record_text({"vda": ThrottleLimits(iops_total=1_000_000)})
    text = xml(own=record.replace("<found", f"<found xmlns='{FOUND}'"))
    rig = Rig(libvirtd, rules)
    for table, limit in (("", 1_000_000), ("[ceilings.all]\nlimit = 600\n", 600)):
        rig.reload(rules + table)
        policy = await rig.defined(text)
        assert isinstance(policy, DomainPolicy)
        drive = policy.for_drive("vda")
        assert drive is not None
        assert drive.limit == limit


async def test_a_serial_of_its_own_policy_is_asked_for_after_it_went(rig: Rig) -> None:
    await rig.defined(xml("io1.large", own("serial='7' limit='50'>")))
    policy = await rig.defined(xml())
    assert isinstance(policy, DomainPolicy)
    assert policy.vm == VmPolicy(limit=50)
    assert "one with serial 7 has been in force" in rig.error
