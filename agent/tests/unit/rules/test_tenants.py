"""Tenants without a table of their own."""

from __future__ import annotations

from iokeel.config.load import parse
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import DriveState, State
from iokeel.rules.tenants import with_every_tenant

TENANTS = parse(
    b'[tenants."*"]\nlimit = 600\nweight = 7\n[tenants.big]\nlimit = 9000', "agent.toml"
).tenants
EVERY = TenantPolicy(limit=600, weight=7)


def test_each_tenant_that_a_drive_names_has_the_promise_to_all_but_one_with_its_own() -> None:
    known = State(tenants=TENANTS, drives={DriveId("a", "vda"): DriveState(tenant="was")})
    state = with_every_tenant(known, TENANTS, ["acme", "big", None, "acme"])
    assert dict(state.tenants) == dict(TENANTS) | {"acme": EVERY, "was": EVERY}
    assert with_every_tenant(state, TENANTS, ["acme"]) is state, "a look costs nothing more"


def test_without_that_table_a_tenant_that_nobody_knows_has_no_limit() -> None:
    state = State()
    assert with_every_tenant(state, {}, ["acme"]) is state


def test_the_drives_of_such_a_tenant_share_its_limit() -> None:
    state = State(tenants=TENANTS)
    drives = [DriveId(name, "vda") for name in ("db1", "db2")]
    for second in range(1, 30):
        counters = Counters(second * NS_PER_S, 2000 * second, 4096 * 2000 * second, 0, 0, 0, 0)
        seen = Observation(
            {
                drive: DriveSeen(
                    DrivePolicy(limit=5000), counters, None, tenant="acme", abilities=STOCK
                )
                for drive in drives
            }
        )
        state = with_every_tenant(state, TENANTS, [each.tenant for each in seen.drives.values()])
        state, _ = decide(state, seen, second * NS_PER_S)
    allowed = [state.drives[drive].allowed for drive in drives]
    assert 0 < sum(each or 0 for each in allowed) <= 600
