"""Why a drive's limits are what they are, in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from iokeel.config.load import parse
from iokeel.core.decide import decide
from iokeel.core.enforce.backstop import Io
from iokeel.core.enforce.beneath import Beneath
from iokeel.core.enforce.jobs import BlockJob, Followed
from iokeel.core.values.counters import (
    NS_PER_S,
    Counters,
    DriveId,
    ThrottleCount,
    ThrottleCounters,
    Took,
)
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    TenantPolicy,
    UnknownPolicy,
    VmPolicy,
)
from iokeel.core.values.state import DriveState, State
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from iokeel.errors import LimitsRejected, PolicyError
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.report.explain import explain
from iokeel.report.snapshot import CgroupKnown, Known, snapshot_of
from testing.hypervisors.abilities import PATCHED, TODAYS
from tests.unit.rules.platforms import UUID, nova

VDA = DriveId("db1", "vda")
UNKNOWN_CGROUP = CgroupKnown()
POLICY = DrivePolicy(reservation=100, limit=1000)
SHARE = (
    r"Its share of .* is (\d+) iops: (\d+) by reservation and (\d+) by weight"
    r"(?:, less (\d+) to protect .*)?\."
)


def after(
    policy: DrivePolicy | None,
    seconds: int = 8,
    reads: tuple[int, int] = (0, 0),
    writes: tuple[int, int] = (0, 0),
) -> State:
    """Return the state after a drive did (requests a second, of a size) for a while."""
    state = State()
    for second in range(1, seconds + 1):
        counters = Counters(
            second * NS_PER_S,
            second * reads[0],
            second * reads[0] * reads[1],
            second * writes[0],
            second * writes[0] * writes[1],
            0,
            0,
        )
        known = state.drives.get(VDA, DriveState())
        seen = Observation({VDA: DriveSeen(policy, counters, known.sent.limits, abilities=STOCK)})
        state, _ = decide(state, seen, second * NS_PER_S)
    return state


def lines(
    state: State,
    policy_error: PolicyError | None = None,
    error: LimitsRejected | None = None,
    cgroups: Mapping[str, Mapping[str, str]] | None = None,
    in_force: ThrottleLimits | None = None,
    cgroup: CgroupKnown = UNKNOWN_CGROUP,
    jobs: Sequence[Followed] = (),
    ceiling: str | None = None,
) -> list[str]:
    told = DomainPolicy({}, ceiling=ceiling)
    vm = VmInfo("db1", {"vda": DriveInfo("vda", in_force=in_force)}, told, policy_error)
    errors = {VDA: error} if error else {}
    known = Known(state, {"db1": vm}, cgroups or {}, {}, errors, {}, 0)
    known = replace(known, cgroup_of=lambda _: cgroup, jobs={"db1": {j.job.name: j for j in jobs}})
    return explain(snapshot_of(known, ["db1"], 100 * NS_PER_S), VDA)


def test_the_settings_of_the_cgroup_are_said() -> None:
    state = after(POLICY)
    held = {"db1": {"io.max 8:0": "riops=900", "io.weight": "default 100"}, "web1": {}}
    below = "Below QEMU, the VM's cgroup has io.max 8:0: riops=900; io.weight: default 100."
    assert below in lines(state, cgroups=held)
    assert not [line for line in lines(state) if line.startswith("Below")]


def test_what_images_add_below_qemu_is_said() -> None:
    added = Io(60 * 1024, 62 * 1024, 1, 1)
    said = lines(
        after(POLICY), cgroup=CgroupKnown({"8:0": Beneath(added=added), "8:16": Beneath()})
    )
    assert (
        "On 8:0, the VM's images add to each normalized operation reads of 60 KiB and writes of 62"
        " KiB by measurement, and the bounds allow for that."
    ) in said
    assert not [line for line in said if "8:16" in line]


def test_a_bound_of_the_cgroup_that_holds_a_drive_is_said() -> None:
    held = CgroupKnown(holding={"vda": ("rbps", "wbps")})
    said = lines(after(POLICY, writes=(100, 4096)), cgroup=held)
    assert [line for line in said if line.startswith("The cgroup's rbps and wbps hold it")]
    assert "Binding now: cgroup rbps, cgroup wbps." in said
    elsewhere = lines(after(POLICY), cgroup=CgroupKnown(holding={"vdb": ("rbps",)}))
    assert "Binding now: nothing." in elsewhere


def test_a_cgroup_whose_counters_can_not_be_read_is_said() -> None:
    said = lines(after(POLICY), cgroup=CgroupKnown(uncounted=True))
    assert [line for line in said if "so it isn't known what images add below QEMU" in line]


@pytest.mark.parametrize(
    ("bps", "given", "words"),
    [
        (None, None, "has no rate, and while it moves, the cgroup has no bounds"),
        (50_000_000, 50_000_000, "is held to 50 MB/s, as [jobs] or the policy says"),
        (7_000_000, None, "is held to 7 MB/s, set by somebody else"),
    ],
)
def test_block_jobs_are_said_with_their_rates(
    bps: int | None, given: int | None, words: str
) -> None:
    job = Followed(BlockJob("backup-vda", "backup", bps, 0), given, 0)
    assert f"The backup job backup-vda {words}." in lines(after(POLICY), jobs=[job])


def test_a_drive_that_was_never_seen_is_explained() -> None:
    assert lines(State()) == [
        "The drive has no policy.",
        "What the drive did in the last interval is not known yet.",
        "Last look: its rates are not known yet.",
    ]


def test_a_drive_without_policy_is_left_alone() -> None:
    said = lines(after(None, reads=(100, 4096)))
    assert said[0] == "The drive has no policy."
    assert said[1] == (
        "In the last 1.0 s it did 100 reads/s of 4 KiB on average, which costs 100 iops."
    )
    assert said[-1] == "Last look: it has no policy and is left alone."


def test_the_steps_go_from_promise_to_bound() -> None:
    said = lines(after(POLICY, reads=(500, 8192), writes=(20, 65536)))
    # 500 reads at 1.6 and 20 writes at 10 cost 800 + 200, by the published table
    assert said[0] == "The policy gives a limit of 1000 iops, and a reservation of 100 iops."
    assert "500 reads/s of 8 KiB on average and 20 writes/s of 64 KiB on average" in said[1]
    assert said[1].endswith("which costs 1000 iops.")
    assert said[2] == "Its reservation is not guaranteed, because its storage is not known."
    assert said[3] == "So it may do 1000 iops now, and used 100 % of that."
    (when,) = [line for line in said if line.startswith("These were set ")]
    assert re.fullmatch(r"These were set 9\d s ago because .+\.", when)  # at some of 8 ticks of 100


def test_a_share_is_explained_step_by_step() -> None:
    # vda, with a reservation, and vdb share 900; both want more than there is
    state = State()
    vdb = DriveId("db1", "vdb")
    promises = {VDA: DrivePolicy(reservation=100, weight=300), vdb: DrivePolicy()}
    for second in range(1, 4):
        now_ns, done = second * NS_PER_S, second * 1600
        full = StorageCounters(now_ns, done, done * 10_000_000, 0, 0, 16, now_ns)
        storage = StorageSeen(StoragePolicy(capacity=900), full)
        seen = {
            drive: DriveSeen(
                policy,
                Counters(second * NS_PER_S, second * 800, second * 800 * 4096, 0, 0, 0, 0),
                state.drives.get(drive, DriveState()).sent.limits,
                abilities=STOCK,
                storage="sda",
            )
            for drive, policy in promises.items()
        }
        state, _ = decide(state, Observation(seen, storages={"sda": storage}), second * NS_PER_S)
    said = lines(state)
    assert said[2] == "sda can serve 900 iops now."
    # what the reservation leaves, 800, by weight 3 to 1
    assert said[3] == "Its share of sda is 700 iops: 100 by reservation and 600 by weight."


def told_of_share(
    *seconds: Mapping[DriveId, int],
    promises: Mapping[DriveId, DrivePolicy],
    capacity: int | None = None,
    tenants: Mapping[str, TenantPolicy] | None = None,
    told: str = SHARE,
) -> list[tuple[int, ...]]:
    """Return the figures told of drives' shares after reads of 4 KiB.

    They are the share, by reservation, by weight and the cut. seconds: the reads in each second;
    each takes 10 ms. told: the pattern of a line, with its figures.
    """
    state, done = State(tenants=tenants or {}), Counter[DriveId]()
    owner = next(iter(tenants or ()), None)
    for second, reads in enumerate(seconds, 1):
        done.update(reads)
        now_ns, all_done = second * NS_PER_S, done.total()
        disk = StorageCounters(
            now_ns, all_done, all_done * 10**7, 0, 0, 9, now_ns, all_done * 4096, 0
        )
        storages = {"sda": StorageSeen(StoragePolicy(capacity=capacity), disk)} if capacity else {}
        seen = {
            drive: DriveSeen(
                policy,
                Counters(
                    second * NS_PER_S, done[drive], done[drive] * 4096, 0, 0, 10**7 * done[drive], 0
                ),
                state.drives.get(drive, DriveState()).sent.limits,
                abilities=STOCK,
                storage="sda" if capacity else None,
                tenant=owner,
            )
            for drive, policy in promises.items()
        }
        state, _ = decide(state, Observation(seen, storages=storages), second * NS_PER_S)
    vms = {
        drive.domain: VmInfo(
            drive.domain, {"vda": DriveInfo("vda")}, DomainPolicy({}, tenant=owner)
        )
        for drive in promises
    }
    snapshot = snapshot_of(Known(state, vms, {}, {}, {}, {}, 0), list(vms))
    said = [line for drive in promises for line in explain(snapshot, drive)]
    return [
        tuple(int(figure or 0) for figure in found.groups())
        for line in said
        if (found := re.fullmatch(told, line))
    ]


def test_the_parts_of_a_tenants_limit_add_up() -> None:
    vdb = DriveId("db2", "vda")
    promises = {VDA: DrivePolicy(), vdb: DrivePolicy()}
    busy = {VDA: 2000}
    told = told_of_share(
        {}, busy, busy | {vdb: 50}, busy | {vdb: 150},
        promises=promises,
        tenants={"acme": TenantPolicy(limit=1000)},
        told=r"The drive's part of the limit of tenant acme is (\d+) iops\.",
    )  # fmt: skip
    assert len(told) == 2
    assert 800 <= sum(part for (part,) in told) <= 1000


def test_the_parts_of_shares_beside_a_latency_target_add_up() -> None:
    others = {DriveId(f"web{n}", "vda"): DrivePolicy(limit=500 * n, weight=100 * n) for n in (1, 2)}
    promises = {VDA: DrivePolicy(latency_target_ms=1.0, weight=50), **others}
    reads = dict.fromkeys(promises, 1500) | {VDA: 100}
    told = told_of_share({}, *[reads] * 6, promises=promises, capacity=2000)
    assert len(told) == 3
    assert any(cut for *_, cut in told)
    for share, reserved, by_weight, cut in told:
        assert share == pytest.approx(reserved + by_weight - cut, abs=2)


def test_a_cut_is_told_though_there_is_more_than_is_wanted() -> None:
    backup = DriveId("backup", "vda")
    promises = {VDA: DrivePolicy(limit=500, latency_target_ms=1.0), backup: DrivePolicy(limit=3000)}
    reads = {VDA: 100, backup: 3000}
    told = told_of_share({}, *[reads] * 20, promises=promises, capacity=9000)
    assert len(told) == 1
    share, reserved, by_weight, cut = told[0]
    assert cut > 0
    assert share == pytest.approx(reserved + by_weight - cut, abs=2)


def test_that_the_reservation_of_a_vm_is_not_guaranteed_is_told() -> None:
    state = State()
    for second in (1, 2):
        seen = DriveSeen(
            DrivePolicy(),
            Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0),
            None,
            abilities=STOCK,
            vm=VmPolicy(reservation=100),
        )
        state, _ = decide(state, Observation({VDA: seen}), second * NS_PER_S)
    told = "db1's reservation is not guaranteed, because its storage is not known."
    assert told in lines(state)


def test_limits_that_qemu_does_not_have_are_not_passed_off_as_in_force() -> None:
    state = after(POLICY, reads=(500, 8192))
    assert "Whether QEMU has them in force is not known." in lines(state)
    said = lines(state, in_force=ThrottleLimits(iops_total=70))
    assert "QEMU doesn't have them yet. In force: iops_total 70." in said
    said = lines(state, in_force=UNLIMITED)
    assert "QEMU doesn't have them yet. In force: no limits." in said
    said = lines(state, in_force=state.drives[VDA].sent.limits)
    assert not [line for line in said if "QEMU" in line]


def test_an_idle_drive_does_nothing() -> None:
    assert "In the last 1.0 s it did nothing." in lines(after(POLICY))


def test_burst_and_credit_are_told() -> None:
    policy = replace(POLICY, burst=3000, burst_seconds=30)
    said = lines(after(policy, seconds=21))
    assert "a burst of 3000 iops for up to 30 s" in said[0]
    assert "It has 20 s of burst credit; the burst is open." in said
    assert "So it may do 3000 iops now." in said


@pytest.mark.parametrize("separate", [False, True])
def test_the_vms_limit_its_credit_and_the_drives_part_are_told(separate: bool) -> None:
    state = State()
    vm = VmPolicy(100, 3000, 6000, 40)
    drives = {
        VDA: DrivePolicy(weight=200, separate_budgets=separate),
        DriveId("db1", "vdb"): DrivePolicy(),
    }
    budget = "; reads and writes each have a budget of their own" if separate else ""
    both = ", reads and writes together" if separate else ""
    for second in range(1, 4):
        counters = Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0)
        seen = {
            drive: DriveSeen(p, counters, None, abilities=STOCK, vm=vm)
            for drive, p in drives.items()
        }
        state, _ = decide(state, Observation(seen), second * NS_PER_S)
    said = lines(state)
    assert said[:2] == [
        f"The policy gives no limit{budget}.",
        "All drives of db1 together have a limit of 3000 iops, a burst of 6000 iops for up to 40 s,"
        " and a reservation of 100 iops.",
    ]
    assert "db1 has 2 s of burst credit; its burst is closed." in said
    assert "The drive's part of the limit of db1 is 2000 iops." in said
    assert f"So it may do 2000 iops now{both}." in said


def test_separate_budgets_are_told() -> None:
    policy = replace(POLICY, separate_budgets=True)
    said = lines(after(policy, reads=(1000, 4096), writes=(1000, 4096)))
    assert said[0].endswith("; reads and writes each have a budget of their own.")
    assert "So it may do 2000 iops now, reads and writes together, and used 100 % of that." in said


def test_a_policy_without_limit_promises_none() -> None:
    said = lines(after(DrivePolicy()))
    assert said[0] == "The policy gives no limit."
    assert said[-1] == "Last look: its policy sets no limit."


def test_errors_are_told() -> None:
    wrong = PolicyError("domain db1, line 1", "limit is -5", "give 1 to 100000000")
    said = lines(after(POLICY), wrong, LimitsRejected("db1/vda", "refused", "see the log"))
    assert said[0] == f"The domain's policy has an error: {wrong}."
    assert said[-1] == "Error: db1/vda: refused; see the log."


def test_a_line_is_a_line() -> None:
    for line in lines(after(POLICY, reads=(500, 8192))):
        assert len(line.splitlines()) == 1
        assert line.endswith(".")


def test_what_the_throttle_did_is_told_where_qemu_tells_it() -> None:
    state = State()
    for second in (1, 2):
        reads = ThrottleCount(
            100 * second,
            0,
            200.0 * second,
            80 * second,
            second * NS_PER_S,
            7,
            ((4096, 100 * second),),
        )
        group = ThrottleCounters(second * NS_PER_S, reads, ThrottleCount(0, 0, 0.0, 0, 0, 0))
        counters = Counters(
            second * NS_PER_S,
            100 * second,
            409_600 * second,
            0,
            0,
            1_200_000_000 * second,
            0,
            group,
        )
        known = state.drives.get(VDA, DriveState())
        seen = Observation({VDA: DriveSeen(POLICY, counters, known.sent.limits, abilities=PATCHED)})
        state, _ = decide(state, seen, second * NS_PER_S)
    told = lines(state)
    assert "which costs 200 iops" in told[1]
    assert told[2:5] == [
        "The reads were 100 % of 4 KiB to 8 KiB.",
        "They waited 10 ms each for the throttle, and the device took 2 ms.",
        "7 reads wait now.",
    ]


def test_what_requests_took_below_the_throttle_and_their_bound_there_are_told() -> None:
    state, nothing = State(), ThrottleCount(0, 0, 0.0, 0, 0, 0)
    disk = StorageSeen(StoragePolicy(capacity=100_000, latency_target_ms=1.0))
    for second in (1, 2):
        # Of 100 reads 98 took 131 to 262 us, and two a quarter of a second.
        bins = ((131_072, 98 * second), (134_217_728, 2 * second))
        took = Took(100 * second, 520_000_000 * second, bins)
        reads = ThrottleCount(100 * second, 0, 100.0 * second, 0, 0, 0, took=took)
        group = ThrottleCounters(second * NS_PER_S, reads, nothing)
        counters = Counters.of_group(group)._replace(read_bytes=409_600 * second)
        known = state.drives.get(VDA, DriveState())
        drive = DriveSeen(POLICY, counters, known.sent.limits, abilities=TODAYS, storage="sda")
        seen = Observation({VDA: drive}, storages={"sda": disk})
        state, _ = decide(state, seen, second * NS_PER_S)
    told = lines(state)
    assert told[2:4] == [
        "They waited 0 s each for the throttle, and the device took 5.2 ms.",
        "Below the throttle, half of them took up to 262 us, and 99 % up to 268 ms.",
    ]
    (bound,) = [line for line in told if "at the storage at a time" in line]
    assert bound == (
        "At most 2.44 of its requests are at the storage at a time, on average: as many as its rate"
        " needs at twice the latency target."
    )


def test_the_rate_of_a_request_that_passes_in_parts_is_told() -> None:
    state, counts = State(), ThrottleCount(0, 0, 0.0, 0, 0, 0)
    for second in (1, 2, 3):
        zeroes = ThrottleCount(1, second * 2**21, 300.0 * second, 1, 0, 1)
        counters = Counters.of_group(ThrottleCounters(second * NS_PER_S, counts, zeroes))
        known = state.drives.get(VDA, DriveState())
        seen = Observation({VDA: DriveSeen(POLICY, counters, known.sent.limits, abilities=PATCHED)})
        state, _ = decide(state, seen, second * NS_PER_S)
    assert lines(state)[1] == "In the last 1.0 s it did parts of requests, which cost 300 iops."


def test_that_large_reads_wait_in_parts_is_told_and_for_whom() -> None:
    state = State()
    promises = {
        VDA: replace(POLICY, reservation=0),
        DriveId("db2", "vda"): DrivePolicy(latency_target_ms=2.0),
        DriveId("db2", "vdb"): DrivePolicy(reservation=5),
    }
    disk = StorageSeen(StoragePolicy(), StorageCounters(0, 0, 0, 0, 0, 0, 0))
    seen = {
        drive: DriveSeen(policy, None, None, abilities=PATCHED, storage="sda")
        for drive, policy in promises.items()
    }
    state, _ = decide(state, Observation(seen, storages={"sda": disk}), NS_PER_S)
    parts = "Reads of more than 128 KiB wait in pieces, to protect db2/vda, db2/vdb."
    assert parts in lines(state)
    state, _ = decide(state, Observation({VDA: seen[VDA]}, storages={"sda": disk}), 2 * NS_PER_S)
    assert not [line for line in lines(state) if "in pieces" in line]
    assert [line for line in lines(state) if line.endswith("large reads has changed.")]


def test_a_ceiling_that_changes_the_policy_is_named() -> None:
    said = "[ceilings.guests] of this host's configuration holds it to that."
    assert lines(after(POLICY), ceiling="guests")[1] == said
    assert not [line for line in lines(after(POLICY)) if "ceilings" in line]


def test_names_are_few_and_never_run() -> None:
    drives = [DriveId("db2\x9b", f"vd{letter}") for letter in "abcdefg"]
    disk = StorageSeen(StoragePolicy(), StorageCounters(0, 0, 0, 0, 0, 0, 0))
    seen = {
        drive: DriveSeen(policy, None, None, abilities=PATCHED, storage="s\nda")
        for drive, policy in {
            VDA: POLICY,
            **dict.fromkeys(drives, DrivePolicy(latency_target_ms=2.0)),
        }.items()
    }
    state, _ = decide(State(), Observation(seen, storages={"s\nda": disk}), NS_PER_S)
    told = lines(state)
    seen[VDA] = seen[VDA]._replace(policy=replace(POLICY, reservation=0))
    state, _ = decide(state, Observation(seen, storages={"s\nda": disk}), 2 * NS_PER_S)
    told += lines(state)
    (split,) = [line for line in told if "in pieces" in line]
    listed = r"db2\x9b/vda, db2\x9b/vdb, db2\x9b/vdc, db2\x9b/vdd and 3 more."
    assert split.endswith(f"to protect {listed}")
    assert [line for line in told if r"the capacity of s\nda is not known" in line]
    assert all(line.isprintable() for line in told)


def test_that_bfq_shares_the_storage_out_is_told_and_when_its_drives_are_cut() -> None:
    web, policy = DriveId("web1", "vda"), DrivePolicy(limit=1000)
    disk = StorageSeen(StoragePolicy(capacity=120), weighted=True)
    state = State()

    def look(second: int, latency_ms: int) -> list[str]:
        nonlocal state
        done = 30 * second
        wrote = Counters(second * NS_PER_S, 0, 0, done, done * 4096, 0, done * 1_000_000)
        did = Counters(second * NS_PER_S, done, done * 4096, 0, 0, done * latency_ms * 1_000_000, 0)
        seen = {
            VDA: DriveSeen(policy, wrote, None, abilities=STOCK, storage="sda"),
            web: DriveSeen(
                DrivePolicy(latency_target_ms=33.0), did, None, abilities=STOCK, storage="sda"
            ),
        }
        state, _ = decide(state, Observation(seen, storages={"sda": disk}), second * NS_PER_S)
        return lines(state)

    look(1, 10)
    assert "BFQ shares sda out by the VMs' weights, so its capacity isn't divided." in look(2, 10)
    cut = "BFQ shares sda out by the VMs' weights, but drives write there, and to protect web1/vda"
    assert [line for line in look(3, 2000) if line.startswith(cut)]


def test_zeroes_that_are_paid_for_are_said() -> None:
    state, limits = State(), ThrottleLimits()
    said = {}
    for second in range(1, 15):
        writes, written = (1, 1 << 30) if second >= 8 else (0, 0)
        reads = 1000 * min(second, 7)
        counters = Counters(second * NS_PER_S, reads, 4096 * reads, writes, written, 0, 0)
        known = state.drives.get(VDA, DriveState())
        seen = Observation({VDA: DriveSeen(POLICY, counters, known.sent.limits, abilities=STOCK)})
        state, orders = decide(state, seen, second * NS_PER_S)
        said[second] = [line for line in lines(state) if "zeroes" in line]
        limits = orders[0].limits if orders else limits
    assert not said[7]
    # of a GiB, less what the limits and one real request may have moved
    assert re.fullmatch(
        r"It wrote at least (9\d\d|1) [MG]iB of zeroes .* ago, which its limits take for data\."
        r" Nothing that they hold passes until they are set anew, 3 s after that, or paid for\.",
        said[9][0],
    )
    assert said[9][1] == (
        "Last look: it writes zeroes, which its limits take for data until some seconds are paid."
    )
    (held, when, _) = said[11]
    assert held.startswith("It has written zeroes. In case that more come, reads and writes have")
    assert "because the drive has paid enough for zeroes" in when
    when, _ = said[14]
    assert when.endswith("because the drive writes no more zeroes.")


def test_flushes_and_discards_are_said_beside_the_rate() -> None:
    state = State()
    for second in (1, 2):
        counters = Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0, None, 5 * second, 0,
                            2 * second, 2 * second << 20)  # fmt: skip
        seen = Observation({VDA: DriveSeen(POLICY, counters, None, abilities=STOCK)})
        state, _ = decide(state, seen, second * NS_PER_S)
    beside = "Beside that it did 5 flushes/s and 2 discards/s of 1 MiB on average, which are not"
    assert f"{beside} counted in its rate." in lines(state)


def test_that_a_drive_waits_for_others_to_make_room_is_told() -> None:
    vdb = DriveId("db2", "vda")
    told = told_of_share(
        {}, {VDA: 2000}, {VDA: 2000, vdb: 50}, {VDA: 2000, vdb: 150},
        promises={VDA: DrivePolicy(), vdb: DrivePolicy()},
        tenants={"acme": TenantPolicy(limit=1000)},
        told=r"It is to have (\d+) iops, once other drives' limits have made room for that\.",
    )  # fmt: skip
    assert len(told) == 1


def by_rules(text: str, own: str = "", last: LastGood | None = None) -> list[str]:
    """Return what is said of vda of a guest of flavor io1.large, by rules and its own policy."""
    xml = nova().replace("<metadata>", f"<metadata>{own}")
    policies = Policies(BUILTIN_CLASSES, {UUID: last} if last else {}, SourceNews())
    policies.rules = parse(text.encode(), "agent.toml").rules
    policy, error = policies.read(parse_domain(xml), xml, None)
    known = policies.by_rules("instance-0000002a")
    drive = policy.for_drive("vda") if policy else None
    assert not isinstance(drive, UnknownPolicy)
    vm = VmInfo("db1", {"vda": DriveInfo("vda")}, policy, error, by_rules=known)
    snapshot = snapshot_of(Known(after(drive), {"db1": vm}, {}, {}, {}, {}, 0), ["db1"])
    return explain(snapshot, VDA)


IO1 = '[[rules]]\nname = "io1"\nwhen = {"nova.flavor" = "io1.*"}\nclass = "gold"\n'
GIVES = "a limit of 10k iops, a burst of 20k iops for up to 60 s, and a reservation of 1000 iops"


def test_the_rule_that_gives_a_policy_is_named_with_its_reason() -> None:
    assert f"Rule io1 gives {GIVES}, because nova.flavor is io1.large." in by_rules(IO1)


def test_each_source_of_a_policy_is_named() -> None:
    own = "<i:policy xmlns:i='urn:iokeel:policy:1'><i:drive target='vda' limit='5'/></i:policy>"
    said = by_rules(IO1, own)
    assert any(
        line.startswith("Its own policy and rule io1 give a limit of 5 iops") for line in said
    )
    two = '[[rules]]\nname = "slow"\n[[rules.drives]]\nlimit = 5\n' + IO1
    said = by_rules(two)
    assert any(line.startswith("Rules slow, io1 give a limit of 5 iops") for line in said)


def test_a_rule_that_fits_no_more_and_one_that_leaves_alone_are_told() -> None:
    last = LastGood(DomainPolicy({}, BUILTIN_CLASSES["gold"]), UUID, {" limit": "io1"})
    assert "Rule io1 doesn't fit any more, and none gives what stays as it was." in by_rules(
        '[[rules]]\nname = "none"\nwhen = {name = "x"}', last=last
    )
    said = by_rules('[[rules]]\nname = "free"\npolicy = "none"')
    assert said[:2] == ["The drive has no policy.", "Rule free leaves the guest alone."]


def test_that_max_bytes_holds_a_drive_is_told() -> None:
    policy = DrivePolicy(limit=50_000, max_bytes=200_000_000)
    told = lines(after(policy, reads=(3100, 65536), seconds=8))
    assert "The policy gives a limit of 50k iops, and max-bytes of 200 MB/s." in told
    assert "Its max-bytes of 200 MB/s holds it." in told
    assert "Binding now: max-bytes." in told
    told = lines(after(policy, reads=(1000, 65536), seconds=8))
    assert not any("holds it" in line for line in told)


def test_a_drive_that_only_max_bytes_holds_is_told() -> None:
    told = lines(after(DrivePolicy(max_bytes=200_000_000), reads=(3100, 65536)))
    assert "The policy gives no limit, and max-bytes of 200 MB/s." in told
    assert "Its max-bytes of 200 MB/s holds it." in told
    assert "Last look: its policy sets no limit but that of its bytes." in told


def test_that_a_limit_of_one_direction_holds_a_drive_is_told() -> None:
    policy = DrivePolicy(limit=1000, limit_write=400, separate_budgets=True)
    told = lines(after(policy, writes=(400, 4096)))
    gives = "The policy gives a limit of 1000 iops; reads and writes each have a budget of their"
    assert f"{gives} own, writes of 400 iops." in told
    assert "Its limit-write of 400 iops holds it." in told
    assert any(line.startswith("So it may do 1400 iops now, reads and writes") for line in told)
