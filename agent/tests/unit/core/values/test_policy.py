"""The figures of a policy, alone and together."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    MOST_BURST_SECONDS,
    MOST_IOPS,
    MOST_LATENCY_MS,
    MOST_WEIGHT,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    checked,
    override,
)
from iokeel.errors import PolicyError

GOLD = DrivePolicy(reservation=1_000, limit=10_000, burst=20_000, weight=200)

GOOD = [
    DrivePolicy(),
    DrivePolicy(reservation=500, limit=500),
    DrivePolicy(limit=1),
    DrivePolicy(limit=4_000, burst=4_000, burst_seconds=0),
    DrivePolicy(limit=MOST_IOPS, burst=MOST_IOPS, burst_seconds=MOST_BURST_SECONDS),
    DrivePolicy(weight=1, latency_target_ms=0.001),
    DrivePolicy(weight=MOST_WEIGHT, latency_target_ms=MOST_LATENCY_MS),
    TenantPolicy(),
    TenantPolicy(reservation=10, limit=10),
]

BAD = [
    (DrivePolicy(limit=0), "limit is 0; give 1 to 100000000, or leave it out"),
    (DrivePolicy(limit=-5), "limit is -5; give 1 to 100000000, or leave it out"),
    (DrivePolicy(limit=MOST_IOPS + 1), "limit is 100000001; give 1 to 100000000, or leave it out"),
    (DrivePolicy(reservation=-1), "reservation is -1; give 0 to 100000000"),
    (DrivePolicy(limit=5, burst=0), "burst is 0; give 1 to 100000000, or leave it out"),
    (DrivePolicy(burst_seconds=-1), "burst-seconds is -1; give 0 to 3600"),
    (DrivePolicy(burst_seconds=3_601), "burst-seconds is 3601; give 0 to 3600"),
    (DrivePolicy(weight=0), "weight is 0; give 1 to 10000"),
    (DrivePolicy(weight=10_001), "weight is 10001; give 1 to 10000"),
    (
        DrivePolicy(latency_target_ms=0.0),
        "latency-target-ms is 0.0; give 0.001 to 60000, or leave it out",
    ),
    (
        DrivePolicy(latency_target_ms=float("nan")),
        "latency-target-ms is nan; give 0.001 to 60000, or leave it out",
    ),
    (
        DrivePolicy(reservation=500, limit=400),
        "limit 400 is below reservation 500; raise the limit or lower the reservation",
    ),
    (DrivePolicy(burst=400), "burst 400 without a limit; give a limit"),
    (
        DrivePolicy(limit=500, burst=400),
        "burst 400 is below limit 500; raise the burst or leave it out",
    ),
    (TenantPolicy(weight=0), "weight is 0; give 1 to 10000"),
    (
        TenantPolicy(reservation=2, limit=1),
        "limit 1 is below reservation 2; raise the limit or lower the reservation",
    ),
]


@pytest.mark.parametrize("policy", GOOD, ids=str)
def test_a_policy_that_makes_sense_passes(policy: DrivePolicy | TenantPolicy) -> None:
    checked(policy, "here")


@pytest.mark.parametrize(("policy", "message"), BAD, ids=[message for _, message in BAD])
def test_a_policy_that_makes_none_is_named_with_its_mend(
    policy: DrivePolicy | TenantPolicy, message: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        checked(policy, "domain db1, drive vda")
    assert str(caught.value) == f"domain db1, drive vda: {message}"


def test_a_field_is_spelt_as_the_place_spells_it() -> None:
    with pytest.raises(PolicyError, match="burst_seconds is -1"):
        override(DrivePolicy(), {"burst_seconds": -1}, "[classes.gold]", str)


@pytest.mark.parametrize(("name", "policy"), BUILTIN_CLASSES.items())
def test_builtin_classes_make_sense(name: str, policy: DrivePolicy) -> None:
    checked(policy, name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, GOLD),
        ({"weight": 7}, DrivePolicy(1_000, 10_000, 20_000, weight=7)),
        ({"limit": 15_000}, DrivePolicy(1_000, 15_000, 20_000, weight=200)),
        # A limit above the class's burst takes it along.
        ({"limit": 30_000}, DrivePolicy(1_000, 30_000, 30_000, weight=200)),
        # A limit below the class's reservation lowers what is owed.
        ({"limit": 400}, DrivePolicy(400, 400, 20_000, weight=200)),
        ({"limit": 400, "burst": 600}, DrivePolicy(400, 400, 600, weight=200)),
        ({"separate_budgets": True}, DrivePolicy(1_000, 10_000, 20_000, 60, 200, None, True)),
    ],
)
def test_a_drive_overrides_its_class(given: dict[str, object], expected: DrivePolicy) -> None:
    assert override(GOLD, given, "here") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"burst": 9_000}, "burst 9000 is below limit 10000"),
        ({"reservation": 11_000}, "limit 10000 is below reservation 11000"),
        ({"limit": 30_000, "burst": 25_000}, "burst 25000 is below limit 30000"),
        ({"limit": 400, "reservation": 500}, "limit 400 is below reservation 500"),
    ],
)
def test_what_a_drive_says_itself_is_never_changed_to_fit(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        override(GOLD, given, "here")


def test_a_class_covers_every_drive_but_those_named() -> None:
    named = DrivePolicy(limit=5)
    policy = DomainPolicy({"vdb": named}, GOLD)
    assert policy.for_drive("vdb") == named
    assert policy.for_drive("vdz") == GOLD
    assert DomainPolicy({"vdb": named}).for_drive("vdz") is None


FIGURES = {
    "reservation": st.integers(-2, MOST_IOPS + 2),
    "limit": st.integers(-2, MOST_IOPS + 2),
    "burst": st.integers(-2, MOST_IOPS + 2),
    "burst_seconds": st.integers(-2, MOST_BURST_SECONDS + 2),
    "weight": st.integers(-2, MOST_WEIGHT + 2),
    "latency_target_ms": st.floats(),
    "separate_budgets": st.booleans(),
}


@given(st.sampled_from(list(BUILTIN_CLASSES.values())), st.fixed_dictionaries({}, optional=FIGURES))
def test_what_is_accepted_holds_together(base: DrivePolicy, given: dict[str, object]) -> None:
    try:
        policy = override(base, given, "here")
    except PolicyError:
        return
    assert 0 <= policy.reservation <= MOST_IOPS
    assert policy.limit is not None
    assert policy.burst is not None
    assert max(policy.reservation, 1) <= policy.limit <= policy.burst <= MOST_IOPS
    for field in fields(policy):
        if field.name in given:
            assert getattr(policy, field.name) == given[field.name]
