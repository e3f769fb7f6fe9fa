"""Which rules of a configuration fit a guest, and what they give it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.config.load import parse
from iokeel.config.rules import rule_complaints
from iokeel.config.settings import Config
from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, VmPolicy
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.rules.compose import Composed, compose
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.patterns import Patterns, why_never
from iokeel.rules.rule import Rule, Rules
from tests.unit.rules import platforms
from tests.unit.rules.platforms import PROJECT

GOLD, BRONZE = BUILTIN_CLASSES["gold"], BUILTIN_CLASSES["bronze"]
# Section 9 of the design, without what the platform sells.
SITE = """
[[rules]]
name = "infrastructure"
when = {name = ["infra-*", "octavia-*"]}
policy = "none"

[[rules]]
name = "flavor-says"
when = {"nova.extra.iokeel:class" = "*"}
class = "{nova.extra.iokeel:class}"

[[rules]]
name = "io1"
when = {"nova.flavor" = "io1.*"}
class = "gold"
limit = 12000

[[rules]]
name = "all-of-Nova"
when = {"nova.project" = "*"}
tenant = "{nova.project}"
  [[rules.drives]]
  when = {storage = "rbd:volumes-ssd"}
  limit = 3000
  [[rules.drives]]
  class = "bronze"

[[rules]]
name = "default"
limit = 5000
"""


def config(text: str) -> Config:
    return parse(text.encode(), "agent.toml")


def made(settings: Config, xml: str) -> Composed:
    domain = parse_domain(xml)
    fit = settings.rules.fit(facts_of(xml, domain, "domain x"), settings.classes, "domain x")
    return compose(None, fit, domain.targets, settings.classes)


def test_the_rules_of_a_site_give_each_guest_what_they_say() -> None:
    site = config(SITE)
    # Its class fills all values of its drives, and leaves the tenant to a later rule.
    assert made(site, platforms.nova()).policy == DomainPolicy(
        {}, GOLD, PROJECT, VmPolicy(limit=12_000)
    )
    small = made(site, platforms.nova("m1.small")).policy
    assert small is not None
    assert (small.tenant, small.vm) == (PROJECT, VmPolicy(limit=5000))
    assert small.for_drive("vda") == BRONZE
    assert small.for_drive("vdb") == DrivePolicy(0, 3000, 3000, 60, 50)
    silver = made(site, platforms.nova(iokeel__class="silver")).policy
    assert silver is not None
    assert silver.default == BUILTIN_CLASSES["silver"]
    assert made(site, platforms.domain("infra-1")).policy is None
    assert made(site, platforms.opennebula()).policy == DomainPolicy({}, vm=VmPolicy(limit=5000))


def test_a_drive_has_the_first_value_of_the_tables_that_fit_it() -> None:
    rule = """
    [[rules]]
    name = "volumes"
      [[rules.drives]]
      when = {target = "vdb"}
      limit = 3000
      [[rules.drives]]
      when = {bus = "virtio"}
      limit = 10
      weight = 7
      class = "bronze"
      [[rules.drives]]
      latency_target_ms = 2
    """
    policy = made(config(rule), platforms.nova()).policy
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(0, 10, 2000, 60, 7)
    assert policy.for_drive("vdb") == DrivePolicy(0, 3000, 3000, 60, 7)
    assert policy.for_drive("vdc") is None, "only drives that are there fit a table"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{one.gname}", "needs one.gname, which isn't known; ask for it in the rule's when"),
        ("x-{nova.extra.a}", "makes 'x-a/b', not a name; give 1 to 64 of the characters"),
        ("{nova.extra.b}", "makes 'aaaaaaaaaaa"),
    ],
)
def test_a_template_that_makes_no_name_leaves_the_value_to_the_next_rule(
    template: str, said: str
) -> None:
    rules = f"""
    [[rules]]
    name = "one"
    tenant = "{template}"
    limit = 700
    [[rules]]
    name = "two"
    tenant = "rest"
    """
    found = made(config(rules), platforms.nova(a="a/b", b="a" * 65))
    assert found.policy == DomainPolicy({}, tenant="rest", vm=VmPolicy(limit=700))
    (error,) = found.errors
    assert error.where == "domain x, rule one"
    assert said in str(error)


def test_a_class_that_a_template_makes_and_nobody_knows_leaves_it_to_the_next_rule() -> None:
    rules = """
    [[rules]]
    name = "flavor"
    class = "{nova.extra.class}"
    [[rules.drives]]
    class = "{nova.extra.class}"
    [[rules]]
    name = "rest"
    class = "bronze"
    """
    found = made(config(rules), platforms.nova(**{"class": "golld"}))
    assert found.policy == DomainPolicy({}, BRONZE)
    assert [str(error) for error in found.errors] == [
        "domain x, rule flavor: class 'golld' is not known; give one that is: bronze, gold, silver"
    ]


def test_a_fact_of_the_tenants_counts_if_the_operator_trusts_it() -> None:
    rule = '[[rules]]\nname = "a"\nwhen = {"nova.name" = "web-*"}\nclass = "gold"\n'
    assert made(config(f'[policy]\ntrust = ["nova.n*"]\n{rule}'), platforms.nova()).policy


def test_a_rule_says_why_it_fits() -> None:
    rule = '[[rules]]\nname = "io1"\nwhen = {"nova.flavor" = "io1.*"}\nclass = "gold"'
    site = config(rule)
    (layer,) = site.rules.fit(Facts({"nova.flavor": "io1.\x1b[2J"}), site.classes, "x").layers
    assert layer.because == "nova.flavor is io1.\\x1b[2J", "no terminal acts upon it"


PATTERN = st.text("ab*?[]!.", min_size=1, max_size=5)


@given(st.lists(PATTERN, min_size=1, max_size=3), st.text("ab.]!", max_size=5))
def test_patterns_fit_as_fnmatch_has_it(patterns: list[str], text: str) -> None:
    positive = [p for p in patterns if not p.startswith("!")]
    expected = (not positive or any(fnmatchcase(text, p) for p in positive)) and not any(
        fnmatchcase(text, p[1:]) for p in patterns if p.startswith("!")
    )
    asked = Patterns(tuple(patterns))
    assert asked.fit(text) == expected
    assert not asked.fit(None)
    if asked.texts is not None:
        assert asked.fit(text) == (text in asked.texts)


FACTS = st.dictionaries(
    st.sampled_from(["name", "nova.flavor", "nova.project"]), st.sampled_from(["a", "b", "ab"])
)
WHENS = st.dictionaries(
    st.sampled_from(["name", "nova.flavor", "nova.project"]),
    st.lists(st.sampled_from(["a", "b", "a*", "!b"]), min_size=1, max_size=2),
    max_size=2,
)


@given(st.lists(WHENS, max_size=12), FACTS)
def test_the_index_finds_the_rules_that_fit_in_their_order(
    whens: list[dict[str, list[str]]], facts: dict[str, str]
) -> None:
    rules = Rules(
        tuple(
            Rule(f"r{n}", {fact: Patterns(tuple(each)) for fact, each in when.items()})
            for n, when in enumerate(whens)
        )
    )
    expected = [
        rule.name
        for rule in rules.rules
        if all(patterns.fit(facts.get(fact)) for fact, patterns in rule.when.items())
    ]
    found = rules.fit(Facts(facts), {}, "x")
    assert [layer.rule for layer in found.layers] == expected


def complaints(text: str) -> list[str]:
    return [str(error) for error in rule_complaints(config(text))]


def test_a_rule_after_one_that_leaves_it_nothing_is_told() -> None:
    every = '[[rules]]\nname = "every"\nclass = "gold"\n'
    late = '[[rules]]\nname = "late"\nwhen = {"name" = "db*"}\nclass = "bronze"\n'
    said = "rule late: never counts, because rule every before it leaves nothing to give"
    assert complaints(every + late) == [f"{said}; put it before every, or remove it"]
    assert complaints(late + every) == []
    assert complaints(every + late + 'tenant = "acme"\n') == [], "the tenant is left to give"
    assert complaints(late + late.replace("late", "two")) == [
        "rule two: never counts, because rule late before it leaves nothing to give; put it before"
        " late, or remove it"
    ]
    none = every.replace('class = "gold"', 'policy = "none"')
    assert len(complaints(none + late + 'tenant = "acme"\n')) == 1
    template = every.replace("gold", "{nova.extra.x}")
    assert complaints(template + late) == [], "it may make no class"


@pytest.mark.parametrize(
    ("when", "drives", "said"),
    [
        ('name = ["db1", "!db*"]', "", "name fits 'db1' only where '!db*' excludes it"),
        ('name = ["db*", "dc*", "!d*"]', "", "name fits 'db*' only where '!d*' excludes it"),
        ('name = ["d?[1]", "!d?[1]"]', "", "name fits 'd?[1]' only where '!d?[1]' excludes it"),
        ('name = "!*"', "", "name fits '*' only where '!*' excludes it"),
        ('name = ["db1", "!db?"]', "", "name fits 'db1' only where '!db?' excludes it"),
        ('name = ["db*", "a", "!db*"]', "", None),
        ('name = ["d*", "!db*"]', "", None),
        ('name = ["d*", "!d?*"]', "", None),  # d itself
        ('name = ["db?", "!db??"]', "", None),
        ('name = ["!a", "!b"]', "", None),
        ('"nova.flavor" = "a", "one.gname" = "b"', "",
         "nova.flavor and one.gname are facts of two platforms, and no guest has both"),
        ('"nova.flavor" = "a", "panel.plan" = "b"', "", None),
        ('"nova.flavor" = "a"', '"ovirt.domain" = "b"',
         "nova.flavor and ovirt.domain are facts of two platforms, and no guest has both"),
        ('"nova.flavor" = "a"', '"iotune.total_iops_sec" = "7"', None),
        ("", 'size_gb = ">100"', "size_gb is a number, and '>100' is none"),
        ("", 'size_gb = ["1*", "[5-9]?"]', None),
        ("", '"iotune.total_iops_sec" = "5k"',
         "iotune.total_iops_sec is a number, and '5k' is none"),
        ('"nova.flavor" = "io1.*"', '"nova.flavor" = "m1.large"',
         "the rule asks for 'io1.*' as nova.flavor, and this table for 'm1.large'"),
        ('"nova.flavor" = "io1.*"', '"nova.flavor" = "io2.*"',
         "the rule asks for 'io1.*' as nova.flavor, and this table for 'io2.*'"),
        ('"nova.flavor" = "io1.*"', '"nova.flavor" = "io*"', None),
        ('"nova.flavor" = "io1.*"', '"nova.flavor" = "!io1.large"', None),
    ],
)  # fmt: skip
def test_what_never_fits_is_told(when: str, drives: str, said: str | None) -> None:
    text = f'[[rules]]\nname = "a"\nwhen = {{{when}}}\n'
    text += f"[[rules.drives]]\nwhen = {{{drives}}}\nlimit = 5\n"
    where = "rule a, [[rules.drives]] 1" if drives else "rule a"
    told = f"{where}: never fits: {said}; correct when, or remove the table"
    assert complaints(text) == ([] if said is None else [told])


def test_a_platforms_prefix_that_is_mistyped_is_told() -> None:
    text = '[[rules]]\nname = "a"\nwhen = {"nvoa.flavor" = "io1"}\nclass = "gold"'
    said = "nvoa.flavor is a fact of your own files; did you mean 'nova.flavor'?"
    assert complaints(text) == [f"rule a: {said}"]
    assert complaints(text.replace("nvoa", "panel")) == []


@given(
    st.lists(st.text("ab*?!", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab*?!", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_nothing_that_fits_a_text_is_said_never_to(one: list[str], other: list[str]) -> None:
    mine, theirs = {"name": Patterns(tuple(one))}, {"name": Patterns(tuple(other))}
    if why_never(mine, theirs) is not None:
        texts = ("".join(t) for n in range(5) for t in product("ab!", repeat=n))
        assert not any(mine["name"].fit(t) and theirs["name"].fit(t) for t in texts)


def test_a_digest_is_that_of_what_rules_give() -> None:
    one = '[[rules]]\nname = "a"\nwhen = {name = "x", title = "y"}\nclass = "gold"\n'
    trust = '[policy]\ntrust = ["title"]\n'
    digest = config(trust + one).rules.digest
    assert digest
    same = one.replace('name = "x", title = "y"', 'title = ["y"], name = ["x"]')
    assert config(trust + same + "[agent]\ntick_seconds = 2").rules.digest == digest
    others = [
        one.replace("gold", "silver"),
        one + '[[rules]]\nname = "b"\nclass = "gold"',
        one + "[classes.gold]\nlimit = 9",
    ]
    assert len({digest, *(config(trust + each).rules.digest for each in others)}) == 4
    assert config("[classes.gold]\nlimit = 9").rules.digest == ""


def test_the_configuration_says_what_rules_there_are() -> None:
    site = config("[policy]\nmetadata = false\n" + SITE)
    assert [rule.name for rule in site.rules.rules][::4] == ["infrastructure", "default"]
    assert not site.rules.metadata
    assert not config("").rules
