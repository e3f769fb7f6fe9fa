"""What a snapshot holds, and that reports read nothing else."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import iokeel.cli
import iokeel.report
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve, CostModel
from iokeel.core.values.limits import STOCK, UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import (
    UNKNOWN,
    DomainPolicy,
    DrivePolicy,
    PolicyInPart,
    TenantPolicy,
    VmPolicy,
)
from iokeel.core.values.state import DriveState, State, StorageState, VmPart
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import IokeelError, LimitsRejected, PolicyError
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.libvirt_xml.written import Written, WrittenDrive
from iokeel.report.metrics.table import ERROR_KINDS, METRICS
from iokeel.report.metrics.types import Sample
from iokeel.report.records import Account, ErrorReport, Kept
from iokeel.report.snapshot import Known, Snapshot, series_values, snapshot_of
from iokeel.rules.compose import ByRules
from iokeel.rules.facts import Facts
from iokeel.rules.rule import Fit, Layer

VDA, VDB = DriveId("db1", "vda"), DriveId("web1", "vdb")
POLICY = DrivePolicy(reservation=100, limit=1000)
REJECTED = LimitsRejected("db1/vda", "refused", "see the log")
INVALID = PolicyError("domain web1, line 1", "limit is -5", "give 1 to 100000000")
FILES = [
    file
    for package in (iokeel.report, iokeel.cli)
    for file in sorted(Path(package.__path__[0]).rglob("*.py"))
]


LAW = {"State", "DriveState", "StorageState", "Measured", "Pricing", "Sent", "Division"}


def known(seconds: int = 3) -> Known:
    """Return what an agent knows of two VMs that do 500 and 250 reads of 4 KiB a second."""
    state = State()
    for second in range(1, seconds + 1):
        seen = {
            drive: DriveSeen(
                POLICY,
                Counters(second * NS_PER_S, second * reads, second * reads * 4096, 0, 0, 0, 0),
                None,
                abilities=STOCK,
                storage="sda",
            )
            for drive, reads in ((VDB, 250), (VDA, 500))
        }
        storages = {"sda": StorageSeen(StoragePolicy(capacity=2000))}
        state, _ = decide(state, Observation(seen, storages=storages), second * NS_PER_S)
    vms = {
        "web1": VmInfo("web1", {"vdb": DriveInfo("vdb")}, DomainPolicy({}), INVALID),
        "db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}, None, "acme")),
    }
    return Known(
        state, vms, {"db1": {"io.weight": "100"}}, {VDA: 2}, {VDA: REJECTED}, {"set": 2}, 1
    )


def samples(found: Snapshot, name: str) -> list[Sample]:
    """Return the samples of one metric."""
    (metric,) = [metric for metric in METRICS if metric.description.name == name]
    return [*metric.samples(found)]


def test_all_of_an_agent_is_in_a_snapshot() -> None:
    found = snapshot_of(known())
    assert list(found.vms) == ["db1", "web1"]
    assert list(found.drives) == [VDA, VDB]
    assert found.vms["web1"].policy_error is INVALID
    assert (found.errors, found.reconnects) == ({"set": 2}, 1)


def test_all_that_the_api_tells_is_in_the_records_of_a_snapshot() -> None:
    report = snapshot_of(known()).host_report()
    db1, web1 = report.vms
    assert (db1.domain, db1.tenant, db1.policy_error) == ("db1", "acme", None)
    assert db1.cgroup == {"io.weight": "100"}
    (drive,) = db1.drives
    assert (drive.domain, drive.target, drive.tenant) == ("db1", "vda", "acme")
    assert (drive.storage, drive.mode) == ("sda", "retune")
    assert (drive.limit_iops, drive.normalized_iops, drive.allowed_iops) == (1000, 500, 1000)
    assert (drive.raw_read_iops, drive.mean_read_bytes, drive.raw_write_iops) == (500, 4096, 0)
    assert (drive.errors, drive.error) == (2, ErrorReport.of(REJECTED))
    assert msgspec.to_builtins(drive.error) == {
        "where": "db1/vda",
        "what": "refused",
        "mend": "see the log",
    }
    assert web1.policy_error is not None
    assert str(web1.policy_error.error()) == str(INVALID)
    (storage,) = report.storages
    assert (storage.storage, storage.capacity_iops, storage.drives) == ("sda", 2000, 2)
    assert (storage.normalized_iops, storage.reserved_iops) == (750, 200)
    assert report.fleet is None


def test_a_vm_without_a_policy_is_told_from_one_whose_policy_is_not_known() -> None:
    for policy, told in ((None, False), (UNKNOWN, True), (DomainPolicy({}), True)):
        vms = {"db1": VmInfo("db1", {}, policy)}
        (vm,) = snapshot_of(replace(known(), vms=vms)).host_report().vms
        assert vm.has_policy is told


def test_a_drive_that_its_vms_policy_does_not_cover_is_told_to_have_none() -> None:
    named = DomainPolicy({"vda": DrivePolicy(limit=5)})
    both = {target: DriveInfo(target) for target in ("vda", "vdb")}
    for policy, told in (
        (None, [False, False]),
        (UNKNOWN, [True, True]),
        (named, [True, False]),
        (PolicyInPart(named), [True, True]),  # vdb may be the one that was meant
        (DomainPolicy({}, DrivePolicy()), [True, True]),
        (DomainPolicy({}, vm=VmPolicy(limit=5)), [True, True]),
    ):
        vms = {"db1": VmInfo("db1", both, policy)}
        (vm,) = snapshot_of(replace(known(), vms=vms)).host_report().vms
        assert [drive.has_policy for drive in vm.drives] == told


def test_a_vm_of_libvirt_is_told_from_one_of_the_configuration() -> None:
    vms = {"db1": VmInfo("db1", {}), "router": VmInfo("router", {}, from_libvirt=False)}
    db1, router = snapshot_of(replace(known(), vms=vms)).host_report().vms
    assert (db1.from_libvirt, router.from_libvirt) == (True, False)


def test_limit_and_allowed_rate_are_of_both_budgets_as_the_rate_is() -> None:
    policy = DrivePolicy(limit=1000, separate_budgets=True)
    counters = Counters(NS_PER_S, 0, 0, 0, 0, 0, 0)
    seen = Observation({VDA: DriveSeen(policy, counters, UNLIMITED, abilities=STOCK)})
    state, _ = decide(State(), seen, NS_PER_S)
    vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}))}
    drive = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0)).drives[VDA]
    assert (drive.limit_iops, drive.allowed_iops) == (2000, 2000)
    assert series_values(state)[1] == 2000


def test_a_drive_bursts_if_one_of_its_budgets_is_exceeded() -> None:
    policy = DrivePolicy(limit=1000, burst=3000, burst_seconds=60, separate_budgets=True)
    vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}))}
    state, writes, bursts = State(), 0, []
    for second, rate in enumerate([0, *[0] * 10, 900, 1900], 1):
        writes += rate
        counters = Counters(second * NS_PER_S, 0, 0, writes, writes * 4096, 0, 0)
        seen = Observation({VDA: DriveSeen(policy, counters, None, abilities=STOCK)})
        state, _ = decide(state, seen, second * NS_PER_S)
        drive = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0)).drives[VDA]
        bursts.append((drive.burst_open, drive.bursts))
    assert bursts[0] == (False, False)
    assert bursts[-2:] == [(True, False), (True, True)]


def test_a_vms_own_limit_is_in_its_snapshot_its_record_and_its_metrics() -> None:
    policy = VmPolicy(50, 3000, 6000, 40)
    state = State()
    for second in range(1, 9):
        counters = Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0)
        seen = Observation(
            {VDA: DriveSeen(DrivePolicy(), counters, None, abilities=STOCK, vm=policy)}
        )
        state, _ = decide(state, seen, second * NS_PER_S)
    vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}, vm=policy))}
    found = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0))
    assert found.vms["db1"].policy == policy
    (report,) = found.vm_reports()
    assert (report.limit_iops, report.reservation_iops, report.allowed_iops) == (3000, 50, 6000)
    assert (report.credit_s, report.burst_open) == (7, True)
    assert samples(found, "iokeel_domain_limit_iops") == [(("db1",), 3000)]
    assert samples(found, "iokeel_domain_allowed_iops") == [(("db1",), 6000)]
    assert samples(found, "iokeel_domain_credit_seconds") == [(("db1",), 7)]


def test_metrics_tell_a_drives_storage_tenant_and_mode() -> None:
    found = snapshot_of(known())
    assert samples(found, "iokeel_drive_info") == [
        (("db1", "vda", "sda", "acme", "retune", "", ""), 1),
        (("web1", "vdb", "sda", "", "retune", "", ""), 1),
    ]


def test_metrics_tell_whose_a_vm_is_and_of_which_class_its_drives_are() -> None:
    facts = Facts({"uuid": "4c3b", "nova.project": "1f6f", "nova.name": "w" * 300})
    drives = {"vda": WrittenDrive({"weight": 7})}
    named = ByRules(facts, Fit((Layer("r", Written(drives, "gold")),)), Written(drives))
    vms = known().vms
    vms = {"web1": vms["web1"], "db1": replace(vms["db1"], by_rules=named)}
    found = snapshot_of(replace(known(), vms=vms))
    assert samples(found, "iokeel_domain_info") == [
        (("db1", "4c3b", "acme", "1f6f", "w" * 255), 1),
        (("web1", "", "", "", ""), 1),
    ]
    assert [labels[-1] for labels, _ in samples(found, "iokeel_drive_info")] == ["gold", ""]
    vms["db1"] = replace(vms["db1"], uuid="9f0e")
    found = snapshot_of(replace(known(), vms=vms))
    assert [labels[1] for labels, _ in samples(found, "iokeel_domain_info")] == ["9f0e", ""]


def test_what_drives_did_and_their_promises_are_told_before_anything_is_counted() -> None:
    """Or increase() would overlook what the first sample has."""
    before = known()
    account = Account(reads=7.5, writes=0.25, promises={"limit": Kept(3, 1), "gone": Kept(9, 9)})
    found = snapshot_of(replace(before, accounts={VDA: account}))
    assert samples(found, "iokeel_drive_normalized_operations_total") == [
        ((*VDA, "read"), 7.5),
        ((*VDA, "write"), 0.25),
        ((*VDB, "read"), 0),
        ((*VDB, "write"), 0),
    ]
    assert samples(found, "iokeel_drive_promise_seconds_total") == [
        ((*VDA, "reservation", "kept"), 0),
        ((*VDA, "reservation", "missed"), 0),
        ((*VDA, "limit", "kept"), 3),
        ((*VDA, "limit", "missed"), 1),
        ((*VDB, "reservation", "kept"), 0),
        ((*VDB, "reservation", "missed"), 0),
        ((*VDB, "limit", "kept"), 0),
        ((*VDB, "limit", "missed"), 0),
    ]


def test_an_observed_drive_is_promised_nothing() -> None:
    before = known()
    vms = {name: replace(vm, policy=None, would=vm.policy) for name, vm in before.vms.items()}
    found = snapshot_of(replace(before, vms=vms))
    assert samples(found, "iokeel_drive_promise_seconds_total") == []


def test_every_kind_of_error_has_a_count_before_it_occurs() -> None:
    counts = {kind: n for (kind,), n in samples(snapshot_of(known()), "iokeel_agent_errors_total")}
    assert counts == dict.fromkeys(ERROR_KINDS, 0) | {"set": 2}


def test_only_a_fault_of_the_policy_makes_it_invalid() -> None:
    before = known()
    vms = {name: replace(vm, policy_error=REJECTED) for name, vm in before.vms.items()}
    assert samples(snapshot_of(before), "iokeel_domain_policy_valid") == [
        (("db1",), 1),
        (("web1",), 0),
    ]
    assert samples(snapshot_of(replace(before, vms=vms)), "iokeel_domain_policy_valid") == [
        (("db1",), 1),
        (("web1",), 1),
    ]


def test_metrics_tell_that_a_latency_target_is_exhausted() -> None:
    before = known()
    sda = before.state.storages["sda"]
    exhausted = replace(sda, division=replace(sda.division, exhausted=True))
    after = replace(before, state=replace(before.state, storages={"sda": exhausted}))
    name = "iokeel_storage_latency_exhausted"
    assert samples(snapshot_of(before), name) == [(("sda",), 0)]
    assert samples(snapshot_of(after), name) == [(("sda",), 1)]


def test_limits_have_an_age() -> None:
    set_s = {order: snapshot_of(known(order), ["db1"], 9 * NS_PER_S) for order in (1, 2)}
    decisions = {s: found.decisions[VDA] for s, found in set_s.items()}
    ages = {s: last.age_s(last.known.sent.at_ns) for s, last in decisions.items()}
    assert ages[1] == 8


@pytest.mark.parametrize("domains", [(), ("db1",), ("db1", "web1"), ("none",)])
def test_some_vms_can_be_asked_for(domains: tuple[str, ...]) -> None:
    found = snapshot_of(known(), domains)
    assert found.vms.keys() == {"db1", "web1"} & set(domains)
    assert found.drives.keys() == found.decisions.keys()
    assert {drive.domain for drive in found.drives} == found.vms.keys()
    assert found.storages["sda"].report.drives == 2


def test_a_drive_that_was_never_looked_at_is_unknown() -> None:
    vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")})}
    found = snapshot_of(Known(State(), vms, {}, {}, {}, {}, 0), ["db1"])
    drive = found.drives[VDA]
    assert (drive.normalized_iops, drive.mode, drive.binding) == (None, None, [])
    assert (drive.raw_read_iops, drive.read_requests, drive.read) == (None,) * 3
    assert found.decisions[VDA].known.sent.limits is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_the_snapshot_and_why_read_the_laws_state(file: Path) -> None:
    names = {
        alias.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "iokeel.core.values.state"
        for alias in node.names
    }
    assert file.name in ("snapshot.py", "explain.py") or not names & LAW


def test_drives_tell_that_their_tenant_or_storage_has_gone() -> None:
    gone = IokeelError("[storage.sda]", "has gone", "put it back")
    shown = snapshot_of(replace(known(), gone={("storage", "sda"): gone}))
    assert shown.drives[VDB].error == ErrorReport.of(gone)
    assert shown.drives[VDA].error == ErrorReport.of(REJECTED), "its own error comes first"


def test_flushes_and_discards_are_counted_where_somebody_counts_them() -> None:
    for flushes, discards in ((7, 3), (7, None), (None, None)):
        state = State()
        for second in (1, 2):
            counters = Counters(
                second * NS_PER_S, 0, 0, 0, 0, 0, 0, None,
                flushes and flushes * second, flushes and 2 * NS_PER_S,
                discards and discards * second, discards and 4096, discards and NS_PER_S,
            )  # fmt: skip
            seen = Observation({VDA: DriveSeen(POLICY, counters, None, abilities=STOCK)})
            state, _ = decide(state, seen, second * NS_PER_S)
        vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}))}
        found = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0))
        drive = found.drives[VDA]
        assert (drive.raw_flush_iops, drive.flush_requests, drive.flush_s) == (
            (7, 14, 2) if flushes else (None, None, None)
        )
        assert (drive.raw_discard_iops, drive.discard_requests, drive.discard_s) == (
            (3, 6, 1) if discards else (None, None, None)
        )
        assert samples(found, "iokeel_drive_flushes_total") == [(VDA, 14 if flushes else None)]
        assert samples(found, "iokeel_drive_discards_total") == [(VDA, 6 if discards else None)]
        of_bytes = samples(found, "iokeel_drive_discarded_bytes_total")
        assert of_bytes == [(VDA, 4096 if discards else None)]


def test_a_large_requests_wait_is_that_of_the_lowest_limit() -> None:
    curve = CostCurve(((4096, 1.0), (1 << 20, 50.0)))
    own = StoragePolicy(model=CostModel(curve, DEFAULT_CURVE))
    for limit, vm, tenant, waits in (
        (100, None, None, 1.5), (100, 50, None, 3.0), (100, 50, 10, 15.0), (None, None, None, None),
    ):  # fmt: skip
        # 150 by the dearer curve, that of writes
        state = State(
            drives={VDA: DriveState(
                policy=DrivePolicy(limit=limit), storage="sda", tenant="acme",
                vm=None if vm is None else VmPart(VmPolicy(limit=vm)),
            )},
            tenants={} if tenant is None else {"acme": TenantPolicy(limit=tenant)},
            storages={"sda": StorageState(own)},
        )  # fmt: skip
        vms = {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}))}
        (drive,) = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0)).drives.values()
        assert drive.large_wait_s == waits
