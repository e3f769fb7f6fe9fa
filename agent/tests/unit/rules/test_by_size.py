"""Limits that follow the size of a drive, and figures of several tables that have to fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.config.load import parse
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.rules.by_size import PerGb
from iokeel.rules.compose import Composed, compose
from iokeel.rules.facts import facts_of
from tests.unit.rules import platforms

GIB = 1 << 30


def made(rules: str, size_bytes: int | None, xml: str = "") -> Composed:
    config = parse(rules.encode(), "agent.toml")
    xml = xml or platforms.domain("db1")
    domain = parse_domain(xml)
    sizes = None if size_bytes is None else {"vda": size_bytes}
    fit = config.rules.fit(facts_of(xml, domain, "x", sizes=sizes), config.classes, "x")
    return compose(None, fit, domain.targets, config.classes)


TABLE = '[[rules]]\nname = "a"\n[[rules.drives]]\n'
PER_GB = TABLE + "limit = {per_gb = 3, least = 300, most = 20000}\nburst = {per_gb = 6}\n"


@pytest.mark.parametrize(
    ("size_bytes", "limit", "burst"),
    [
        (GIB, 300, 300),
        (100 * GIB, 300, 600),
        (100 * GIB + 1, 303, 606),
        (1000 * GIB, 3000, 6000),
        (100_000 * GIB, 20_000, 600_000),
        (0, 300, 300),
    ],
)
def test_a_limit_follows_the_size_within_its_bounds(
    size_bytes: int, limit: int, burst: int
) -> None:
    policy = made(PER_GB, size_bytes).policy
    assert policy == DomainPolicy({"vda": DrivePolicy(limit=limit, burst=burst)})


def test_a_drive_whose_size_nobody_knows_has_what_the_next_rule_gives_and_it_is_told() -> None:
    found = made(PER_GB + '[[rules]]\nname = "rest"\nclass = "bronze"', None)
    assert found.policy is not None
    assert found.policy.for_drive("vda") == found.policy.default
    assert "the size of drive vda isn't known" in str(found.errors[0])


def test_a_pattern_may_ask_for_a_size() -> None:
    rules = TABLE + 'when = {size_gb = ["?", "[12]?"]}\nlimit = 70\n'
    assert made(rules, 29 * GIB).policy == DomainPolicy({"vda": DrivePolicy(limit=70)})
    assert made(rules, 30 * GIB).policy is None


@pytest.mark.parametrize("text", [PER_GB, TABLE + 'when = {size_gb = "1"}\nlimit = 7'])
def test_only_rules_that_ask_for_sizes_cost_a_question(text: str) -> None:
    assert parse(text.encode(), "a").rules.ask_sizes
    assert not parse((TABLE + "limit = 7").encode(), "a").rules.ask_sizes


FIGURES = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.one_of(
            st.integers(1, 100).map(str),
            st.just('"platform"'),
            st.integers(1, 9).map(lambda n: f"{{per_gb = {n}}}"),
        ),
        "burst": st.integers(100, 200).map(str),
        "reservation": st.integers(0, 1).map(str),
        "class": st.sampled_from(['"bronze"', '"gold"']),
    },
)


@given(st.lists(FIGURES, min_size=1, max_size=4), st.integers(0, 100))
def test_figures_of_tables_that_fit_one_drive_make_a_policy(
    tables: list[dict[str, str]], size_gb: int
) -> None:
    """Whatever comes together of limits, bursts and reservations of several sources."""
    text = '[[rules]]\nname = "a"\nclass = "silver"\n'
    for table in tables:
        lines = "".join(f"{name} = {value}\n" for name, value in table.items())
        text += f"[[rules.drives]]\n{lines}"
    sold = "<iotune><total_iops_sec>50</total_iops_sec></iotune></disk>"
    xml = platforms.domain("db1", disks=platforms.DISK.replace("</disk>", sold))
    policy = made(text, size_gb * GIB, xml).policy
    assert policy is not None
    drive = policy.for_drive("vda")
    assert drive is not None
    assert drive.limit is not None
    assert drive.reservation <= drive.limit <= (drive.burst or drive.limit)


def test_a_figure_by_size_is_never_nothing() -> None:
    assert PerGb(0.001).of(0) == 1
    assert PerGb(1e8).of(10**9) == 10**8
