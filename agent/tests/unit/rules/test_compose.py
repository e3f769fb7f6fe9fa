"""For each value the first source counts that gives it, and no change of rules lifts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, LastGood, VmPolicy
from iokeel.libvirt_xml.written import Written, WrittenDrive
from iokeel.rules.compose import Composed, compose
from iokeel.rules.rule import OWN, Fit, Layer

GOLD, BRONZE = BUILTIN_CLASSES["gold"], BUILTIN_CLASSES["bronze"]


def fit(*layers: tuple[str, Written], broken: Sequence[str] = (), none: str | None = None) -> Fit:
    names = frozenset(name for name, _ in layers) - {*broken}
    return Fit(tuple(Layer(name, written) for name, written in layers), (), names, none)


def made(
    own: Written | None, rules: Fit, last: Composed | None = None, *targets: str, **more: bool
) -> Composed:
    saved = None
    if last is not None and last.policy is not None:
        saved = LastGood(last.policy, sources=last.sources)
    return compose(own, rules, targets or ("vda",), BUILTIN_CLASSES, saved, **more)


def first(sources: Sequence[Mapping[str, Any]], key: str) -> Any:
    """As ssh_config has it: the first value obtained for each parameter is used."""
    return next((source[key] for source in sources if key in source), None)


NAMES = st.sampled_from([None, "a", "b"])
CLASSES = st.sampled_from([None, None, "gold", "bronze"])
# Figures that make sense together, whichever source each is from.
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "reservation": st.integers(0, 50),
        "limit": st.integers(100, 500),
        "weight": st.integers(1, 9),
        "latency_target_ms": st.sampled_from([1.0, 2.0]),
        "separate_budgets": st.booleans(),
    },
)
SOURCES = st.lists(
    st.builds(
        Written,
        drives=st.dictionaries(
            st.sampled_from(["vda", "vdb"]), st.builds(WrittenDrive, VALUES, CLASSES), max_size=2
        ),
        class_name=CLASSES,
        tenant=NAMES,
        vm=st.fixed_dictionaries({}, optional={"limit": st.integers(900, 999)}),
        job_bps=st.sampled_from([None, 1 << 20]),
    ),
    max_size=4,
)


@given(SOURCES, st.booleans())
def test_the_first_source_of_each_value_counts(sources: list[Written], has_own: bool) -> None:
    own = sources[0] if has_own and sources else None
    rules = [(f"r{n}", each) for n, each in enumerate(sources) if each is not own]
    policy = made(own, fit(*rules), None, "vda", "vdb", "vdc").policy or DomainPolicy({})
    plain = [{k: v for k, v in asdict(each).items() if v is not None} for each in sources]
    assert policy.tenant == first(plain, "tenant")
    assert policy.job_bps == first(plain, "job_bps")
    assert (policy.vm or VmPolicy()).limit == first([each.vm for each in sources], "limit")
    for target in ("vda", "vdb", "vdc"):
        found: list[Mapping[str, Any]] = []
        for each in sources:
            drive = each.drives.get(target, WrittenDrive())
            found += [{"named": True} if target in each.drives else {}, drive.given]
            if name := drive.class_name or each.class_name:
                found.append(asdict(BUILTIN_CLASSES[name]))
                break
        if not any(found):
            assert policy.for_drive(target) == (DrivePolicy() if policy.vm else None)
            continue
        got = policy.for_drive(target)
        assert got is not None
        for field in fields(got):
            if field.name not in ("burst", "reservation"):  # they follow the limit
                expected = first(found, field.name)
                assert getattr(got, field.name) == (field.default if expected is None else expected)
        assert got.burst is None or got.burst >= (got.limit or 0)
        wanted = first(found, "reservation") or 0
        assert got.reservation == (wanted if got.limit is None else min(wanted, got.limit))


def test_a_hand_written_figure_keeps_the_tenant_and_the_class_of_rules() -> None:
    own = Written({"vda": WrittenDrive({"limit": 5000})})
    rules = fit(("all", Written(tenant="acme")), ("io1", Written(class_name="gold")))
    policy = made(own, rules, None, "vda", "vdb").policy
    assert policy is not None
    assert policy.tenant == "acme"
    assert policy.for_drive("vda") == DrivePolicy(1000, 5000, 20_000, 60, 200)
    assert policy.for_drive("vdb") == policy.default == GOLD


def test_each_value_has_its_source() -> None:
    own = Written({"vda": WrittenDrive({"limit": 5000})})
    rules = fit(
        ("all", Written(tenant="acme", vm={"limit": 9000, "burst": 9500})),
        ("io1", Written(class_name="gold")),
    )
    sources = made(own, rules).sources
    assert sources["vda limit"] == OWN
    assert sources["vda burst"] == sources["vda weight"] == "io1"
    assert sources["tenant"] == sources["limit"] == sources["burst"] == "all"


def test_a_limit_of_a_vm_brings_its_own_burst_along() -> None:
    rules = fit(("a", Written(vm={"limit": 100})), ("b", Written(vm={"limit": 900, "burst": 950})))
    policy = made(None, rules).policy
    assert policy is not None
    assert policy.vm == VmPolicy(limit=100)


def test_a_reservation_of_one_source_fits_the_limit_of_another() -> None:
    drive = {"vda": WrittenDrive({"reservation": 4000})}
    rules = fit(("a", Written(drives=drive)), ("b", Written(class_name="bronze")))
    policy = made(None, rules).policy
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(1000, 1000, 2000, 60, 50)
    rules = fit(("a", Written(vm={"reservation": 4000})), ("b", Written(vm={"limit": 1000})))
    policy = made(None, rules).policy
    assert policy is not None
    assert policy.vm == VmPolicy(1000, 1000)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_burst_without_a_limit_fits_that_of_another_source(limit: int | None) -> None:
    given = {} if limit is None else {"limit": limit}
    below = {"vda": WrittenDrive(given)}
    rules = fit(
        ("a", Written(drives={"vda": WrittenDrive({"burst": 500})})), ("b", Written(drives=below))
    )
    policy = made(None, rules).policy
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(limit=limit, burst=limit)


def test_a_guest_that_nothing_gives_anything_has_no_policy() -> None:
    assert made(None, fit()).policy is None
    assert made(None, fit(("a", Written()))).policy is None
    assert made(Written(), fit()).policy == DomainPolicy({}), "an empty policy is one"


# What stays


def test_what_a_rule_gave_stays_when_none_fits_any_more() -> None:
    rules = fit(
        ("all", Written(tenant="acme", vm={"limit": 9000}, job_bps=1 << 20)),
        ("io1", Written({"vdb": WrittenDrive({"limit": 70})}, class_name="gold")),
    )
    before = made(None, rules, None, "vda", "vdb")
    after = made(None, fit(), before, "vda", "vdb")
    assert after.policy == before.policy
    assert set(after.kept.values()) == {"all", "io1"}
    assert made(None, fit(), after, "vda", "vdb") == after, "however often it is read"


def test_a_new_drive_of_a_guest_that_fits_no_rule_any_more_has_the_class_that_it_had() -> None:
    before = made(None, fit(("io1", Written(class_name="gold"))))
    policy = made(None, fit(), before, "vda", "vdb").policy
    assert policy is not None
    assert policy.for_drive("vdb") == GOLD


def test_a_value_that_another_rule_gives_is_that_rules() -> None:
    before = made(None, fit(("all", Written(tenant="acme")), ("io1", Written(class_name="gold"))))
    after = made(None, fit(("rest", Written(class_name="bronze"))), before)
    assert after.policy == DomainPolicy({}, BRONZE, "acme")
    assert after.kept == {"tenant": "all"}


def test_a_rule_that_fits_may_give_less_and_none_lifts_all() -> None:
    before = made(None, fit(("all", Written(tenant="acme", vm={"limit": 9000}))))
    assert made(None, fit(("all", Written(tenant="acme"))), before).policy == DomainPolicy(
        {}, tenant="acme"
    )
    assert made(None, fit(none="infra"), before).policy is None


def test_a_drive_that_a_rule_says_nothing_of_any_more_keeps_what_it_had() -> None:
    """Its rule still fits the VM, but no table of drives fits: its storage is another, say."""
    given = {"vda": WrittenDrive({"limit": 70})}
    before = made(None, fit(("all", Written(given, tenant="acme"))))
    after = made(None, fit(("all", Written(tenant="acme"))), before)
    assert after.policy == before.policy
    assert after.kept == {}, "its rule fits"
    empty = {"vda": WrittenDrive()}
    policy = made(None, fit(("all", Written(empty, tenant="acme"))), before).policy
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(), "an empty table gives it nothing"


def test_what_a_rule_gave_stays_while_its_template_is_bad_unless_another_gives_it() -> None:
    before = made(None, fit(("io1", Written(class_name="gold"))))
    broken = ("io1", Written())
    assert made(None, fit(broken, broken=["io1"]), before).policy == before.policy
    rest = ("rest", Written(class_name="bronze"))
    assert made(None, fit(broken, rest, broken=["io1"]), before).policy == DomainPolicy({}, BRONZE)


def test_a_policy_of_its_own_goes_with_the_metadata_unless_that_counts_no_more() -> None:
    own = Written({"vda": WrittenDrive({"limit": 5000})}, tenant="acme")
    for before in (made(own, fit()), Composed(own.resolved({}))):  # of before there were rules, too
        assert made(None, fit(), before).policy is None
        after = made(None, fit(), before, metadata=False)
        assert after.policy == DomainPolicy({"vda": DrivePolicy(limit=5000)}, tenant="acme")


def limits(known: Composed) -> list[int | None]:
    """Return the limits of a VM and its drives; None for none."""
    policy = known.policy or DomainPolicy({})
    drives = [policy.for_drive(target) for target in ("vda", "vdb", "vdz")]
    return [None if promise is None else promise.limit for promise in (policy.vm, *drives)]


@given(SOURCES, st.lists(SOURCES, max_size=4), st.data())
def test_no_order_of_rules_that_come_and_go_lifts_a_limit(
    sources: list[Written], later: list[list[Written]], data: st.DataObject
) -> None:
    """Whatever rules fit next, each under a name of its own, a limit stays a limit."""
    targets = ("vda", "vdb")
    now = made(None, fit(*((f"0-{n}", each) for n, each in enumerate(sources))), None, *targets)
    for turn, rules in enumerate(later, 1):
        named = [(f"{turn}-{n}", each) for n, each in enumerate(rules)]
        broken = data.draw(st.lists(st.sampled_from([n for n, _ in named]))) if named else []
        after = made(None, fit(*named, broken=broken), now, *targets)
        for has, had in zip(limits(after), limits(now), strict=True):
            assert had is None or has is not None
        if after.policy is not None:
            now = after
