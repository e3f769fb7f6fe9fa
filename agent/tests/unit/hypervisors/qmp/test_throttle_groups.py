"""The words of both series of patches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.counters import Took
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.hypervisors.qemu.limits import (
    DirectionStats,
    QemuAbilities,
    SchemaEntry,
    block_values,
    from_group,
    keep_patched,
    knows_more,
    object_values,
)
from testing.hypervisors.abilities import PATCHED, TODAYS

LINE = CostCurve(((4096, 1.0), (1048576, 100.0)))
FORMER_NAMES = {"cost-read", "cost-write", "idle-credit-ms", "split-size"}
NAMES = FORMER_NAMES | {"max-in-flight", "latency"}
EXTRA = "__iokeel_extra"
curves = st.sampled_from([None, DEFAULT_CURVE, LINE])
any_limits = st.builds(
    lambda **values: ThrottleLimits(**values),  # or it would make up the rest
    iops_total=st.integers(1, 10**15),
    bps_write=st.none() | st.integers(1, 10**15),
    cost_read=curves,
    cost_write=curves,
    split_size=st.none() | st.sampled_from([4096, 1 << 30]),
    idle_credit_ms=st.integers(0, 100),
    max_in_flight=st.none() | st.floats(0.001, 1e9),
    latency=st.booleans(),
)
abilities = st.builds(
    Abilities, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from(["__iokeel_", ""]),
)  # fmt: skip


@given(any_limits)
def test_limits_go_to_todays_qemu_and_come_back(limits: ThrottleLimits) -> None:
    sent = object_values(limits, TODAYS)
    assert from_group(json.dumps(sent).encode()) == ThrottleLimits.of(limits._asdict())


@given(any_limits)
def test_limits_go_to_a_former_qemu_and_come_back_without_what_it_lacks(
    limits: ThrottleLimits,
) -> None:
    sent = object_values(limits, PATCHED)
    told = ThrottleLimits.of(limits._replace(max_in_flight=None, latency=False)._asdict())
    assert from_group(json.dumps(sent).encode()) == told


@given(any_limits, abilities)
def test_a_qemu_is_sent_only_what_it_has_shown(limits: ThrottleLimits, able: Abilities) -> None:
    if not able.dialect:
        able = able._replace(measures_latency=False, bounds_in_flight=False)
    told = object_values(limits, able)
    more = told.get(EXTRA, {}).keys() if able.dialect else told.keys() & FORMER_NAMES
    assert told.keys() - object_values(limits, STOCK).keys() <= {EXTRA} | FORMER_NAMES
    assert knows_more(able) == bool(more)
    for field, can in (
        ("cost-read", able.cost_curve),
        ("cost-write", able.cost_curve),
        ("idle-credit-ms", able.cost_curve),
        ("split-size", able.splits),
        ("max-in-flight", able.bounds_in_flight),
        ("latency", able.measures_latency),
    ):
        assert (field in more) == can


@pytest.mark.parametrize("values", [object_values, block_values])
def test_todays_qemu_takes_all_that_stock_qemu_lacks_in_one_member(
    values: Callable[[ThrottleLimits, Abilities], dict[str, Any]],
) -> None:
    limits = ThrottleLimits(iops_total=7, cost_read=LINE, cost_write=LINE, max_in_flight=2.5)
    sent = values(limits, TODAYS)
    extra = sent.pop(EXTRA)
    assert sent == values(limits, STOCK)
    assert extra.keys() == NAMES
    assert (extra["max-in-flight"], extra["latency"]) == (2.5, False)
    assert EXTRA not in values(limits, STOCK._replace(dialect="__iokeel_"))


def test_limits_that_need_nothing_remove_everything() -> None:
    sent = object_values(UNLIMITED, TODAYS)[EXTRA]
    assert sent == {
        "cost-read": [],
        "cost-write": [],
        "idle-credit-ms": 100,
        "split-size": 0,
        "max-in-flight": 0,
        "latency": False,
    }
    assert sent["latency"] is False, "QAPI takes no 0 for it"


@given(any_limits, any_limits)
def test_a_source_without_the_patches_fields_changes_none(
    limits: ThrottleLimits, last: ThrottleLimits
) -> None:
    assert keep_patched(limits.stock, last).stock == limits.stock
    assert keep_patched(limits.stock, last)[len(limits.items()) :] == last[len(limits.items()) :]


@pytest.mark.parametrize(
    "extra",
    [
        {"max-in-flight": -1},
        {"max-in-flight": -0.5},
        {"max-in-flight": True},
        {"max-in-flight": "4"},
        {"max-in-flight": 1e300},
        {"max-in-flight": []},
        {"latency": 1},
        {"latency": "true"},
        {"idle-credit-ms": -1},
        {"idle-credit-ms": 2.5},
        {"split-size": True},
        {"split-size": {}},
        {"cost-read": [{"size": -1, "cost": 1}]},
        5,
        [],
        None,
    ],
)
def test_a_group_with_a_limit_that_makes_no_sense_is_unknown(extra: object) -> None:
    assert from_group(json.dumps({"iops-total": 400, EXTRA: extra}).encode()) is None


def test_limits_without_the_extra_member_have_its_defaults() -> None:
    assert from_group(b'{"iops-total": 400}') == ThrottleLimits(iops_total=400)
    raw = b'{"iops-total": 400, "__iokeel_extra": {"latency": false, "new": 5}}'
    assert from_group(raw) == ThrottleLimits(iops_total=400)


def test_only_names_of_its_series_are_read_beside_stock_qemus() -> None:
    told = {"iops-total": 400, "latency": 5, "max-in-flight": [], EXTRA: {"bps-total": 1}}
    assert from_group(json.dumps(told).encode()) == ThrottleLimits(iops_total=400)


def entry(name: str, features: Sequence[str] = (), /, **members: str) -> SchemaEntry:
    listed = [{"name": m.replace("_", "-"), "type": of} for m, of in members.items()]
    found = {"name": name, "meta-type": "object", "members": listed, "features": features}
    return msgspec.convert(found, SchemaEntry)


def test_upstreams_own_names_are_not_taken_for_todays() -> None:
    """Nor an object of the right shape, or a feature, that isn't that of limits."""
    schema = [
        entry("5", ("deprecated",), iops_total="int", latency="bool", max_in_flight="number"),
        entry("6", ("__iokeel_keeps-levels",), other="7"),
        entry("7", cost_read="8", cost_write="8", idle_credit_ms="int", max_in_flight="number"),
    ]
    assert QemuAbilities.of(schema).throttle == STOCK


def test_the_first_patches_alone_keep_levels() -> None:
    schema = [entry("5", ("__iokeel_keeps-levels",), iops_total="int")]
    found = QemuAbilities.of(schema)
    assert found.throttle == Abilities(keeps_levels=True, dialect="__iokeel_")
    assert not knows_more(found.throttle or STOCK)


def test_times_are_read_as_they_are_told() -> None:
    """Ranges begin at 0 or a power of two."""
    told = {
        "requests": 5, "bytes": 20480, "cost": 5.0, "waited": 0, "wait-total-ns": 0, "waiting": 0,
        "sizes": [{"least": 4096, "requests": 5}], "in-flight": 2, "ended": 3,
        "latency-total-ns": 700_001,
        "latencies": [{"least": 0, "requests": 1}, {"least": 262144, "requests": 2}],
    }  # fmt: skip
    count = msgspec.convert(told, DirectionStats).count()
    assert count.took == Took(3, 700_001, ((0, 1), (262144, 2)))
    assert count.sizes == ((4096, 5),)
    former = {name: told[name] for name in told if "latenc" not in name and name != "ended"}
    former["sizes"] = [{"size": 4096, "requests": 5}]
    assert msgspec.convert(former, DirectionStats).count() == count._replace(took=None)
