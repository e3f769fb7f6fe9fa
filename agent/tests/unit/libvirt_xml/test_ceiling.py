"""What a host's ceiling leaves of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    DomainPolicy,
    DrivePolicy,
    VmPolicy,
    checked,
    override,
    vm_policy,
)
from iokeel.libvirt_xml.ceiling import Ceiling, ceiling_of

ALL = Ceiling("all", VmPolicy(reservation=1000, limit=20_000, burst=30_000))
TIGHT = Ceiling(
    "tight",
    VmPolicy(limit=500),
    DrivePolicy(weight=50, latency_target_ms=10.0),
    10**6,
    "acme",
    ("acme-*", "web?"),
)
TARGETS = ("vda", "vdb", "vdc")
RATES = st.none() | st.integers(1, 10**5) | st.sampled_from([1, 500, 1000, 20_000, 10**8])


@st.composite
def promises(draw: st.DrawFn) -> dict[str, object]:
    limit = draw(RATES)
    made: dict[str, object] = {} if limit is None else {"limit": limit}
    if limit is not None and draw(st.booleans()):
        made["burst"] = draw(st.integers(limit, 10**8))
        made["burst_seconds"] = draw(st.integers(0, 3600))
    made["reservation"] = draw(st.integers(0, limit or 10**8))
    return made


@st.composite
def drives(draw: st.DrawFn) -> DrivePolicy:
    given = draw(promises()) | {
        "weight": draw(st.integers(1, 10_000)),
        "latency_target_ms": draw(st.none() | st.floats(0.001, 60_000)),
        "separate_budgets": draw(st.booleans()),
    }
    return override(DrivePolicy(), given, "here")


POLICIES = st.builds(
    DomainPolicy,
    drives=st.dictionaries(st.sampled_from(TARGETS), drives()),
    default=st.none() | drives(),
    tenant=st.none() | st.sampled_from(["acme", "globex"]),
    vm=promises().map(lambda given: vm_policy(given, "here")),
    job_bps=st.none() | st.integers(1 << 16, 10**12),
)


def promised(policy: DomainPolicy) -> Iterator[DrivePolicy]:
    """Yield the policies of drives that have one."""
    return (drive for target in TARGETS if (drive := policy.for_drive(target)) is not None)


@settings(max_examples=500)
@given(POLICIES, st.sampled_from([ALL, TIGHT]), st.booleans())
def test_no_policy_gives_more_than_the_ceiling(
    policy: DomainPolicy, ceiling: Ceiling, known: bool
) -> None:
    held, _ = ceiling.hold(policy, TARGETS if known else None, "here")
    most, burst = ceiling.most, ceiling.most.burst or ceiling.most.limit
    assert most.limit is not None
    assert burst is not None
    if held.vm is None:
        given = [(1 + d.separate_budgets, d.limit, d.burst or d.limit) for d in promised(held)]
        assert len(given) == len(TARGETS), "each drive has a limit"
        assert sum(n * (limit or 10**9) for n, limit, _ in given) <= most.limit
        assert sum(n * (high or 10**9) for n, _, high in given) <= burst
    else:
        assert held.vm.limit is not None
        assert held.vm.limit <= most.limit
        assert (held.vm.burst or 0) <= burst
        assert held.vm.burst_seconds <= most.burst_seconds
        assert held.vm.reservation <= most.reservation
    reserved = promised(held) if known else held.drives.values()
    assert sum(drive.reservation for drive in reserved) <= most.reservation
    assert held.default is None or held.default.reservation <= most.reservation
    for drive in promised(held):
        assert drive.weight <= ceiling.drive.weight
        if drive.latency_target_ms is not None:
            assert ceiling.drive.latency_target_ms is not None
            assert drive.latency_target_ms >= ceiling.drive.latency_target_ms
    assert held.tenant == (ceiling.tenant or policy.tenant)
    assert ceiling.job_bps is None or (held.job_bps or 10**13) <= ceiling.job_bps


@settings(max_examples=500)
@given(POLICIES, st.sampled_from([ALL, TIGHT]))
def test_what_is_left_makes_sense_and_is_no_more_than_was_asked_for(
    policy: DomainPolicy, ceiling: Ceiling
) -> None:
    held, error = ceiling.hold(policy, TARGETS, "here")
    for promise in (*held.drives.values(), held.default, held.vm):
        if promise is not None:
            checked(promise, "here")
    for target, drive in policy.drives.items():
        now = held.drives[target]
        assert drive.limit is None or (now.limit is not None and now.limit <= drive.limit)
        assert now.reservation <= drive.reservation
        assert now.weight <= drive.weight
        assert now.separate_budgets == drive.separate_budgets
    assert ceiling.hold(replace(held, ceiling=None), TARGETS, "here")[1] is None
    assert (held.ceiling == ceiling.name) == (replace(held, ceiling=None) != policy)
    if error is not None:
        assert held.ceiling == ceiling.name


def test_a_policy_below_the_ceiling_is_left_alone() -> None:
    """A limit of the VM would slow drives that begin to work."""
    policy = DomainPolicy({"vda": DrivePolicy(limit=500)}, BUILTIN_CLASSES["bronze"], "acme")
    assert ALL.hold(policy, TARGETS, "here") == (policy, None)


NO_POLICY = DomainPolicy(
    {}, DrivePolicy(), None, VmPolicy(0, 20_000, 30_000, 60), None, None, "all"
)


def test_a_domain_without_a_policy_has_the_ceiling_as_its_limit() -> None:
    for targets in (TARGETS, None):
        assert ALL.hold(None, targets, "here") == (NO_POLICY, None)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (DomainPolicy({}, vm=VmPolicy(limit=501)), "limit 501 -> 500"),
        (DomainPolicy({}, DrivePolicy(limit=400, burst=600)), "class burst 600 -> 500"),
        (DomainPolicy({"vda": DrivePolicy(reservation=9)}), "vda reservation 9 -> 0"),
        (DomainPolicy({"vda": DrivePolicy(weight=101)}), "vda weight 101 -> 50"),
        (
            DomainPolicy({"vda": DrivePolicy(latency_target_ms=1.0)}),
            "vda latency-target-ms 1.0 -> 10.0",
        ),
        (DomainPolicy({}, tenant="globex"), "tenant globex -> acme"),
        (DomainPolicy({}, job_bps=10**7), "job-bps 10000000 -> 1000000"),
        (DomainPolicy({}, DrivePolicy(weight=100), "acme"), None),
        (DomainPolicy({}), None),
    ],
)
def test_what_is_asked_for_in_vain_is_told(policy: DomainPolicy, said: str | None) -> None:
    _, error = TIGHT.hold(policy, TARGETS, "here")
    told = None if error is None else error.what
    assert told == (said and f"the policy asks for more than [ceilings.tight] gives: {said}")


def test_a_domain_has_the_first_ceiling_that_its_name_matches() -> None:
    names = ("acme-1", "web1", "web12", "Acme-1", "")
    found = [ceiling_of((TIGHT, ALL), name) for name in names]
    assert found == [TIGHT, TIGHT, ALL, ALL, ALL]
    assert ceiling_of((TIGHT,), "db1") is None
