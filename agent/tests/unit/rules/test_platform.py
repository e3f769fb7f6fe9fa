"""What a platform sells, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from iokeel.config.load import parse
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.libvirt_xml.policy import written_policy
from iokeel.rules.compose import ByRules, compose, follows_platform
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.platform import NAMESPACE, Found, record_text, sold
from tests.unit.rules import platforms

QUOTA = "nova.extra.quota:disk_"
SOLD = """
[[rules]]
name = "sold"
[[rules.drives]]
limit = "platform"
burst = "platform"
[[rules]]
name = "rest"
class = "bronze"
"""


def disk(iotune: str, target: str = "vda", serial: str = "") -> str:
    return (
        f"<disk><source file='/a'/><target dev='{target}'/>{serial}<iotune>{iotune}</iotune></disk>"
    )


def read(xml: str, held: Mapping[str, Found] | None = None) -> Facts:
    return facts_of(xml, parse_domain(xml), "domain x", held=held)


def record_of(facts: Facts) -> str:
    """Return the record of all that the platform gave."""
    return record_text(facts.given)


def with_record(xml: str, record: str) -> str:
    """Return a domain as libvirt has it after a setMetadata."""
    body = record.replace("<found", f"<f:found xmlns:f='{NAMESPACE}'").replace("<drive", "<f:drive")
    return xml.replace(
        "<devices>", f"<metadata>{body.replace('/found', '/f:found')}</metadata><devices>"
    )


@pytest.mark.parametrize(
    ("facts", "given"),
    [
        ({}, {}),
        ({"iotune": "no"}, {}),
        (
            {"iotune.total_iops_sec": "500"},
            {"limit": 500, "separate_budgets": False, "burst": None},
        ),
        (
            {"iotune.read_iops_sec": "300", "iotune.write_iops_sec": "300"},
            {"limit": 300, "separate_budgets": True, "burst": None},
        ),
        (
            {
                "iotune.total_iops_sec": "500",
                "iotune.total_iops_sec_max": "900",
                "iotune.total_iops_sec_max_length": "60",
                "iotune.size_iops_sec": "4096",
                "iotune.total_bytes_sec": "1000000",
            },
            {
                "limit": 500,
                "separate_budgets": False,
                "burst": 900,
                "burst_seconds": 60,
                "max_bytes": 1_000_000,
            },
        ),
        (
            {"iotune.read_iops_sec": "500", "iotune.write_iops_sec": "200"},
            {
                "limit": 500,
                "separate_budgets": True,
                "burst": None,
                "limit_read": 500,
                "limit_write": 200,
            },
        ),
        (  # no direction bursts above what is sold, nor for longer
            {
                "iotune.read_iops_sec": "500",
                "iotune.write_iops_sec": "200",
                "iotune.read_iops_sec_max": "2000",
                "iotune.write_iops_sec_max": "300",
                "iotune.read_iops_sec_max_length": "60",
                "iotune.write_iops_sec_max_length": "20",
            },
            {
                "limit": 500,
                "separate_budgets": True,
                "burst": 750,
                "burst_seconds": 20,
                "limit_read": 500,
                "limit_write": 200,
            },
        ),
        (
            {
                "iotune.read_iops_sec": "300",
                "iotune.write_iops_sec": "300",
                "iotune.read_iops_sec_max": "900",
            },
            {"limit": 300, "separate_budgets": True, "burst": None},
        ),
        ({"iotune.total_bytes_sec": "500"}, {"max_bytes": 500, "separate_budgets": False}),
        (
            {"iotune.read_bytes_sec": "500", "iotune.write_bytes_sec": "300"},
            {"max_bytes": 300},
        ),
        (  # for reads and writes each
            {
                "iotune.read_iops_sec": "300",
                "iotune.write_iops_sec": "300",
                "iotune.total_bytes_sec": "500",
            },
            {"limit": 300, "separate_budgets": True, "burst": None, "max_bytes": 250},
        ),
        (
            {"iotune.total_iops_sec": "500", "iotune.total_iops_sec_max": "900"},
            {"limit": 500, "separate_budgets": False, "burst": 900, "burst_seconds": 1},
        ),
        ({f"{QUOTA}total_iops_sec": "70"}, {"limit": 70, "separate_budgets": False, "burst": None}),
        ({f"{QUOTA}total_bytes_sec": "70"}, {"max_bytes": 70, "separate_budgets": False}),
        ({f"{QUOTA}total_bytes_sec": "much"}, {}),
        ({f"{QUOTA}total_iops_sec": "much"}, {}),
        (
            {f"{QUOTA}total_iops_sec": "9" * 30},
            {"limit": 10**8, "separate_budgets": False, "burst": None},
        ),
        (
            {f"{QUOTA}total_iops_sec": "70", "iotune.total_iops_sec": "500"},
            {"limit": 70, "separate_budgets": False, "burst": None},
        ),
        (  # a volume: the flavor's quota isn't for it
            {f"{QUOTA}total_iops_sec": "70", "iotune.total_iops_sec": "500", "serial": "v"},
            {"limit": 500, "separate_budgets": False, "burst": None},
        ),
    ],
)
def test_a_figure_that_is_sold_counts_as_normalized(
    facts: dict[str, str], given: dict[str, object]
) -> None:
    assert sold(facts, "here") == given


def test_a_figure_for_reads_alone_is_no_policys() -> None:
    facts = {"iotune.read_iops_sec": "300", "iotune.write_iops_sec": "0"}
    with pytest.raises(PolicyError) as caught:
        sold(facts, "here")
    assert str(caught.value) == (
        "here: the platform sells 300 reads and any writes a second; give it a limit in the rule"
    )


def policy(xml: str, facts: Facts | None = None, rules: str = SOLD) -> DomainPolicy | None:
    config = parse(rules.encode(), "agent.toml")
    facts = facts or read(xml)
    fit = config.rules.fit(facts, config.classes, "x")
    return compose(None, fit, parse_domain(xml).targets, config.classes).policy


def test_a_drive_that_nothing_is_sold_for_has_what_the_next_rule_gives() -> None:
    xml = platforms.domain(
        "db1", disks=disk("<total_iops_sec>500</total_iops_sec>") + disk("", "vdb")
    )
    found = policy(xml)
    assert found is not None
    assert found.for_drive("vda") == DrivePolicy(limit=500, weight=50)
    assert found.for_drive("vdb") == found.default


def test_bytes_that_are_sold_hold_beside_the_limit_of_the_next_rule() -> None:
    xml = platforms.domain("db1", disks=disk("<total_bytes_sec>500</total_bytes_sec>"))
    found = policy(xml)
    assert found is not None
    bronze = DrivePolicy(limit=1000, burst=2000, weight=50)
    assert found.for_drive("vda") == replace(bronze, max_bytes=500)
    # They are for reads and writes together, so a class with separate budgets doesn't have them.
    apart = SOLD + '[classes.bronze]\nlimit = 1000\nbudget = "separate"\nlimit_write = 300\n'
    found = policy(xml, rules=apart)
    assert found is not None
    assert found.for_drive("vda") == DrivePolicy(limit=300, max_bytes=500)


def test_a_rules_own_max_bytes_comes_before_what_is_sold() -> None:
    iotune = "<total_iops_sec>700</total_iops_sec><total_bytes_sec>500</total_bytes_sec>"
    rules = SOLD.replace('burst = "platform"', 'burst = "platform"\nmax_bytes = "300M"')
    found = policy(platforms.domain("db1", disks=disk(iotune)), rules=rules)
    assert found is not None
    assert found.for_drive("vda") == DrivePolicy(limit=700, max_bytes=300_000_000, weight=50)


def test_a_limit_of_a_rule_before_brings_down_those_of_one_direction() -> None:
    iotune = "<read_iops_sec>700</read_iops_sec><write_iops_sec>300</write_iops_sec>"
    rules = '[[rules]]\nname = "a"\n[[rules.drives]]\nlimit = 200\n' + SOLD
    found = policy(platforms.domain("db1", disks=disk(iotune)), rules=rules)
    assert found is not None
    assert found.for_drive("vda") == DrivePolicy(
        limit=200, limit_read=200, limit_write=200, separate_budgets=True, weight=50
    )


def test_with_a_record_iotune_is_ours_and_the_record_is_the_platforms() -> None:
    first = platforms.domain("db1", disks=disk("<total_iops_sec>500</total_iops_sec>"))
    before = read(first)
    ours = first.replace("500", "499")  # limits of the agent's
    after = read(with_record(ours, record_of(before)))
    assert after.drives["vda"]["iotune.total_iops_sec"] == "500"
    assert after.drives == before.drives


def test_a_drive_without_a_limit_stays_one_in_the_record() -> None:
    first = platforms.domain("db1", disks=disk(""))
    record = record_of(read(first))
    ours = platforms.domain("db1", disks=disk("<total_iops_sec>500</total_iops_sec>"))
    assert read(with_record(ours, record)).drives["vda"]["iotune"] == "no"


def test_what_this_agent_found_comes_on_record_and_not_its_own_limits() -> None:
    xml = platforms.domain("db1", disks=disk("<total_iops_sec>499</total_iops_sec>"))
    found = ThrottleLimits(iops_total=500)
    facts = read(xml, {"vda": found, "vdz": found})
    assert facts.drives["vda"]["iotune.total_iops_sec"] == "500"
    again = read(with_record(xml, record_of(facts)), {"vda": ThrottleLimits(iops_total=1)})
    assert again.found == {"vda": found}
    assert again.drives == facts.drives


def test_limits_of_the_agents_in_place_of_unknown_ones_are_nobodys() -> None:
    xml = platforms.domain("db1", disks=disk("<total_iops_sec>500</total_iops_sec>"))
    facts = read(xml, {"vda": None})
    assert not any(name.startswith("iotune") for name in facts.drives["vda"])
    again = read(with_record(xml, record_of(facts)))
    assert again.drives == facts.drives
    with pytest.raises(PolicyError, match="isn't known"):
        sold(again.of_drive("vda"), "here")


def test_what_a_throttle_group_of_its_own_had_is_on_record() -> None:
    group = "<throttlegroup><group_name>a</group_name><total_iops_sec>500</total_iops_sec>"
    xml = platforms.domain(
        "db1",
        disks="<disk><target dev='vda'/><throttlefilters><throttlefilter group='a'/>"
        "</throttlefilters></disk>",
    ).replace("<devices>", f"<throttlegroups>{group}</throttlegroup></throttlegroups><devices>")
    facts = read(xml)
    assert facts.drives["vda"]["iotune.total_iops_sec"] == "500"
    after = read(with_record(xml.replace("500", "499"), record_of(facts)))
    assert after.found == {"vda": ThrottleLimits(iops_total=500)}
    assert after.told == {"vda": ThrottleLimits(iops_total=499)}


@pytest.mark.parametrize("value", ["1e3", "-1", "", "9" * 20])
def test_a_record_that_makes_no_sense_is_of_limits_that_nobody_knows(value: str) -> None:
    record = f'<found><drive target="vda" total_iops_sec="{value}"/></found>'
    facts = read(with_record(platforms.domain("db1", disks=disk("")), record))
    assert facts.found == {"vda": None}
    assert "iotune" not in facts.drives["vda"]


@pytest.mark.parametrize(
    ("rules", "own", "follows"),
    [
        (SOLD, "", True),
        (SOLD, "<i:drive target='vda' weight='7'/>", True),
        (SOLD, "<i:drive target='vda' limit='7'/>", False),
        (SOLD, "<i:drive target='vdb' limit='7'/>", True),
        ('[[rules]]\nname = "a"\nclass = "bronze"\n' + SOLD, "", False),
        ('[[rules]]\nname = "a"\n[[rules.drives]]\nlimit = 9\n' + SOLD, "", False),
        (SOLD.replace("[[rules.drives]]", "[[rules.drives]]\nlimit = 9\n[[rules.drives]]"), "",
         False),
        ('[[rules]]\nname = "a"\n[[rules.drives]]\nweight = 9', "", False),
        ('[[rules]]\nname = "a"\nclass = "bronze"', "", False),
    ],
)  # fmt: skip
def test_a_drive_follows_its_platform_unless_something_before_gives_its_limit(
    rules: str, own: str, follows: bool
) -> None:
    about = f"<i:policy xmlns:i='urn:iokeel:policy:1'>{own}</i:policy>"
    xml = platforms.domain("db1", about, disk(""))
    config = parse(rules.encode(), "agent.toml")
    facts = read(xml)
    fit = config.rules.fit(facts, config.classes, "x")
    known = ByRules(facts, fit, written_policy(xml, "x"))
    assert follows_platform(known, "vda") == follows


@pytest.mark.parametrize("figure", ["total_iops_sec", "read_bytes_sec"])
def test_a_drive_with_a_quota_of_its_flavor_follows_that(figure: str) -> None:
    config = parse(SOLD.encode(), "agent.toml")
    facts = Facts({f"{QUOTA}{figure}": "70"}, {"vda": {"target": "vda", "iotune": "no"}})
    fit = config.rules.fit(facts, config.classes, "x")
    assert not follows_platform(ByRules(facts, fit), "vda")
