"""The API's records: a VM, a drive, a storage, a drive's history, the fleet, an error.

The command reads these records too. So this file doesn't import the control law, whose memory
snapshot.py fills them from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from iokeel.errors import IokeelError

#: The version of the API (docs/api.md): grows if a field goes, or changes its type or its meaning.
API_VERSION = 1
#: All its paths begin with it, so that who asks by another version is told, and misreads nothing.
API = f"/v{API_VERSION}"


class ErrorReport(Struct, kw_only=True):
    """An error: the thing at fault, the fault, and the mend."""

    where: str
    what: str
    mend: str = ""

    @classmethod
    def of(cls, error: IokeelError) -> ErrorReport:
        """Return the report of an error."""
        return cls(where=error.where, what=error.what, mend=error.mend)

    def error(self) -> IokeelError:
        """Return the error again."""
        return IokeelError(self.where, self.what, self.mend)


class Refusal(Struct, kw_only=True):
    """The body of every answer of the API that is not a success."""

    error: ErrorReport


class ThrottleReport(Struct, kw_only=True):
    """The statistics of a drive's throttle group in one direction, since it was created.

    cost: charged, in operations of the iops limits. waited: requests that had to wait, and wait_s
    how long in all. waiting: requests that wait now. sizes: requests by size, as the largest power
    of two that is not above it. recent_sizes: those of the last interval. recent_half_s,
    recent_most_s: what half and 99 % of its requests took below it at most; None unless QEMU times
    them.
    """

    bytes: int
    cost: float
    waited: int
    wait_s: float
    waiting: int
    sizes: dict[int, int]
    recent_sizes: dict[int, int]
    recent_half_s: float | None = None
    recent_most_s: float | None = None


class Above(NamedTuple):
    """How long a drive did more than it would have been held to, in seconds, and by how much.

    operations: normalized, those above that rate.
    """

    seconds: float = 0.0
    operations: float = 0.0


class Kept(NamedTuple):
    """For how long a promise to a drive was kept, and missed, in seconds."""

    kept_s: float = 0.0
    missed_s: float = 0.0


class Account(Struct):
    """What a drive did, in normalized operations, and how its promises were kept, by name."""

    reads: float = 0.0
    writes: float = 0.0
    promises: dict[str, Kept] = {}


class DriveReport(Struct, kw_only=True):
    """A drive. Rates are of the last interval; None: not known.

    has_policy: False if it validly has none, so that it is left alone.
    mode: "exact" if its QEMU charges by the cost curve, "retune" if the agent adjusts its limits;
    None if it is not held. allowed_iops: its limit, or its burst while that is open, and never more
    than its share of its storage, tenant and VM; None: nothing limits it. If reads and writes have
    a budget each, limit_iops and allowed_iops are of both together. bursts: it did more than its
    limit in the last interval, in one budget at least, and its burst is open. Latencies are mean
    values in seconds, with the throttle's wait and, as *_device_latency_s, without it.
    Requests, bytes, flush_s and discard_s are counted from the guest's start. read, write: None
    unless QEMU counts. Flushes and discards are None if nobody counts them; libvirt counts only
    flushes.
    large_wait_s: how long one request of 1 MiB waits at its limit, its VM's or its tenant's.
    limits_in_force: as last read from QEMU or libvirt, in QEMU's words; empty if nothing is
    limited. binding: the limits that the last interval used up, the policy's bounds beside the
    limit ("max-bytes"), and those of its VM's cgroup that held it, such as "cgroup wbps". errors:
    orders that failed; error: that of the last one, if it failed. rule: the one that gives it its
    limit, or else something;
    None if none gives it anything. mode is "observe" if nothing of its policy is enforced:
    limit_iops, allowed_iops and the like are what would be then, binding is "would" while it does
    more, and above_s and above_operations (normalized) are how long and by how much it did, since
    the agent has observed it. read_operations, write_operations: what it did, in normalized
    operations, since the agent has known it. promises: those to it, "reservation", "limit" and
    "latency_target", for as long as they were tried in that time (core/promises.py). class_name:
    the class that its policy names.
    """

    domain: str
    target: str
    tenant: str | None
    storage: str | None
    mode: str | None
    normalized_iops: float | None
    limit_iops: int | None
    allowed_iops: float | None
    reservation_iops: int
    raw_read_iops: float | None
    raw_write_iops: float | None
    read_bps: float | None
    write_bps: float | None
    mean_read_bytes: float | None
    mean_write_bytes: float | None
    read_latency_s: float | None
    write_latency_s: float | None
    read_device_latency_s: float | None
    write_device_latency_s: float | None
    read_requests: int | None
    write_requests: int | None
    read_bytes: int | None
    write_bytes: int | None
    read: ThrottleReport | None
    write: ThrottleReport | None
    credit_s: float
    burst_open: bool
    bursts: bool
    binding: list[str]
    throttled_s: float
    retunes: int
    overwritten: int
    errors: int
    error: ErrorReport | None
    verdict: str
    has_policy: bool = True  # an older agent doesn't tell
    limits_in_force: dict[str, int] | None
    raw_flush_iops: float | None = None  # an older agent tells none of these
    raw_discard_iops: float | None = None
    discard_bps: float | None = None
    flush_requests: int | None = None
    flush_s: float | None = None
    discard_requests: int | None = None
    discard_bytes: int | None = None
    discard_s: float | None = None
    large_wait_s: float | None = None
    rule: str | None = None
    above_s: float = 0.0
    above_operations: float = 0.0
    read_operations: float = 0.0
    write_operations: float = 0.0
    promises: dict[str, Kept] = {}
    class_name: str | None = None


class StorageReport(Struct, kw_only=True):
    """A storage. Rates are normalized I/O operations a second; None: not known.

    usable_iops: the rate that its drives may share now. reserved_iops: the sum of its drives'
    reservations; reservations_kept: the part of those asked for that fits. room_ratio: the part
    that drives without a latency target may use; None if no drive has one. cut_iops: what they give
    up for that now. suffering: drives above their latency target; exhausted: cutting the others
    further isn't possible or doesn't help them. by_weight: its scheduler shares it out by VMs'
    weights, so its capacity isn't used.
    """

    storage: str
    drives: int
    capacity_iops: int | None
    usable_iops: float | None
    normalized_iops: float
    wanted_iops: float | None
    reserved_iops: float
    reservations_kept: float
    oversold: bool
    room_ratio: float | None
    cut_iops: float
    latency_s: float | None
    latency_target_s: float | None
    queue: float | None
    busy_ratio: float | None
    suffering: list[str]
    exhausted: bool
    by_weight: bool


class VmReport(Struct, kw_only=True):
    """A VM: its drives, and the error in its policy, if any.

    has_policy: False if it validly has none, so that its drives are left alone. observed: nothing
    of its policy is enforced. from_libvirt: False if it is a [[vm]] of the configuration, which
    then has its policy. uuid: None if it isn't known.
    limit_iops, reservation_iops: of all drives together. allowed_iops: that limit, or the burst
    while that is open. credit_s: seconds of burst saved. None: there is none. cgroup: the agent's
    settings in its cgroup, by file and device.
    """

    domain: str
    tenant: str | None
    limit_iops: int | None
    allowed_iops: int | None
    reservation_iops: int
    credit_s: float
    burst_open: bool
    has_policy: bool = True  # an older agent tells none of these
    observed: bool = False
    from_libvirt: bool = True
    uuid: str | None = None
    policy_error: ErrorReport | None
    cgroup: dict[str, str]
    drives: list[DriveReport]


class FleetBudgetReport(Struct, kw_only=True):
    """A tenant or storage of the fleet, as this host knows it.

    Rates are normalized I/O operations a second. set_iops: over all hosts, as an operator has set
    it; limit_iops: the same, corrected by a storage's latency, less the rate of its drives without
    a policy. allowed_iops: what its drives here may do now; None: what they have, because etcd
    hasn't answered since the agent's start. floor_iops: this host's; 0 if it has no part yet.
    held_iops: the most that its QEMUs may be held to; None: that has no end. stale_s: how long ago
    its ledger was read, or since when this host takes part. charges: what each host is charged, by
    name; silent: those of the others that don't report. coordinator: None if there is none.
    """

    name: str
    set_iops: int
    limit_iops: int
    allowed_iops: int | None
    floor_iops: int
    held_iops: int | None
    stale_s: float
    charges: dict[str, int]
    silent: list[str]
    coordinator: str | None
    error: ErrorReport | None


class FleetReport(Struct, kw_only=True):
    """This host's part in the fleet.

    host: its name there. error: what is wrong with etcd; None if nothing is. tenants, storages:
    those whose drives are here.
    """

    host: str
    error: ErrorReport | None
    tenants: list[FleetBudgetReport]
    storages: list[FleetBudgetReport]


class HostReport(Struct, kw_only=True):
    """The host at one moment. fleet: None without [fleet]."""

    vms: list[VmReport]
    storages: list[StorageReport]
    fleet: FleetReport | None


#: The length of the history of ten minutes, in seconds; how much of that of weeks is told if
#: nothing else is asked.
SPAN_S, WEEK_S = 600, 7 * 24 * 3600
SERIES = ("normalized_iops", "allowed_iops", "latency_s", "wait_s", "credit_s")


class OrderReport(Struct, kw_only=True):
    """A change of a drive's limits, age_s seconds ago, and its reason."""

    age_s: float
    reason: str


class DriveHistory(Struct, kw_only=True):
    """A drive's figures by name (SERIES), each oldest first. None: not known.

    normalized_iops, allowed_iops, credit_s: as in DriveReport. latency_s, wait_s: means per request
    over reads and writes; wait_s is the throttle's, None unless QEMU counts. orders: the last
    changes of its limits, oldest first; only in the history of one VM or drive.
    """

    domain: str
    target: str
    series: dict[str, list[float | None]]
    orders: list[OrderReport] = []


class OneHistory(DriveHistory, kw_only=True):
    """A drive's figures, which were ages_s ago."""

    ages_s: list[float]


class HistoryReport(Struct, kw_only=True):
    """Drives' figures at the same moments, which were ages_s ago."""

    ages_s: list[float]
    drives: list[DriveHistory]


class DriveUse(Struct, kw_only=True):
    """What a drive did over weeks, by its samples of each two seconds.

    uuid: its VM's; None if that has none. seconds: how long it was recorded. until_s: when it was
    seen last, in seconds since 1970, to the hour; None if it is here still. p50_iops and the like:
    the normalized rates that it didn't exceed in 50, 95 and 99 % of the time. limit_iops: of its
    policy, as it was last. held_ratio: the part of the time in which its limits held it, or would
    have if it is only observed. would_hold: the same by each limit of RecommendReport, without
    credit for bursts.
    """

    domain: str
    target: str
    uuid: str | None
    storage: str | None
    tenant: str | None
    seconds: float
    until_s: int | None
    p50_iops: float
    p95_iops: float
    p99_iops: float
    peak_iops: float
    limit_iops: int | None
    observed: bool
    held_ratio: float
    would_hold: dict[str, float]


class StorageUse(Struct, kw_only=True):
    """What the drives of a storage did at once over weeks, as normalized rates.

    usable_iops: the least that they could share; None: not known. reserved_iops: the most that was
    reserved. more_iops: what can be promised beyond that, by p99_iops; None: not known. missed_s:
    how long a promise on it was missed.
    """

    storage: str
    p50_iops: float
    p95_iops: float
    p99_iops: float
    peak_iops: float
    usable_iops: float | None
    reserved_iops: float
    more_iops: float | None
    missed_s: float


class RecommendReport(Struct, kw_only=True):
    """What drives and storages did over weeks.

    seconds: how long was recorded. limits: normalized rates by the names of classes, or the one
    that was asked for.
    """

    seconds: float
    limits: dict[str, int]
    drives: list[DriveUse]
    storages: list[StorageUse]


class StoragePlot(Struct, kw_only=True):
    """What the drives of a storage did at once in each hour, as normalized rates.

    p95_iops: in 95 % of each hour; None: not recorded. missed_s: how long a promise on it was
    missed in each. usable_iops: the least that its drives could share; None: not known.
    """

    storage: str
    p95_iops: list[float | None]
    missed_s: list[float]
    usable_iops: float | None


class SectionReport(Struct, kw_only=True):
    """A section of the report: its finding in a sentence, and a table. Names are as they are."""

    title: str
    finding: str
    headings: list[str]
    rows: list[list[str]]


class WeeksReport(Struct, kw_only=True):
    """The report of weeks, for people.

    span: since when, and how much of that was recorded, in words. since_s, until_s: the begin of
    the first hour of the plots, and the end of the last one, in seconds since 1970. notes: what it
    lacks. plots: of the storages that were fullest.
    """

    span: str
    since_s: int
    until_s: int
    notes: list[str]
    sections: list[SectionReport]
    plots: list[StoragePlot]


class PromiseReport(Struct, kw_only=True):
    """The promise to a drive, a VM or a tenant, in policy attributes. Rates are normalized.

    None: no limit, no burst, no latency target, no bound on bytes. A VM has no weight, and a tenant
    no burst; neither has what follows the weight.
    """

    reservation_iops: int
    limit_iops: int | None
    burst_iops: int | None = None
    burst_seconds: int | None = None
    weight: int | None = None
    latency_target_ms: float | None = None
    separate_budgets: bool = False
    limit_read_iops: int | None = None
    limit_write_iops: int | None = None
    max_bytes: int | None = None
    start_credit_seconds: int = 0


class CurvesReport(Struct, kw_only=True):
    """Cost curves.

    Points of a size in bytes and the cost of such a request, which is linear between them, the same
    below the first, and goes on beyond the last by the last slope.
    """

    read_curve: list[tuple[int, float]]
    write_curve: list[tuple[int, float]]


class SettingsReport(CurvesReport, kw_only=True):
    """The settings that give a policy its meaning.

    version: the agent's. api_version: this API's. libvirt_uri: its connection to libvirt; None if
    it has none. read_curve, write_curve: of drives on other storages than those in `storages`,
    which have curves of their own. storages, classes, tenants: by name.
    """

    version: str
    api_version: int = API_VERSION  # an agent that doesn't tell has 1
    libvirt_uri: str | None
    storages: dict[str, CurvesReport]
    classes: dict[str, PromiseReport]
    tenants: dict[str, PromiseReport]


class PolicyReport(Struct, kw_only=True):
    """A policy that somebody may write: its error, or its promises.

    error: why it can't be used. warning: it names drives that the VM doesn't have, maybe not yet or
    not any more; the drives that it doesn't name then keep the policies that they have. drives: the
    promise to each of the VM's drives, by target; None: it has none. vm: that to all of them
    together; None: there is none. Both are empty after an error, and if the XML has no policy.
    large_waits_s: how long one request of 1 MiB waits at a drive's limit, its VM's or its tenant's,
    by target. long_waits: what is to be said of limits at which that is long.
    job_bps: the rate of each of its block jobs, in bytes a second; None: the configuration's.
    """

    error: ErrorReport | None
    warning: ErrorReport | None = None
    tenant: str | None = None
    drives: dict[str, PromiseReport | None] = {}
    vm: PromiseReport | None = None
    large_waits_s: dict[str, float] = {}
    long_waits: list[str] = []
    job_bps: int | None = None


class HookReport(Struct, kw_only=True, omit_defaults=True):
    """The answer to libvirt's hook. error: what is wrong with the policy in a domain's XML."""

    ok: bool
    error: str | None = None


class RuleReport(Struct, kw_only=True):
    """A rule: what it asks for, and what it gives, as it is written; templates are not filled in.

    drives: how many tables of drives it has. leaves_alone: policy = "none". mode: as in a policy.
    """

    name: str
    when: dict[str, list[str]]
    tenant: str | None = None
    class_name: str | None = None
    vm: dict[str, int] = {}
    job_bps: int | None = None
    drives: int = 0
    leaves_alone: bool = False
    mode: str | None = None


class ValueReport(Struct, kw_only=True):
    """A value of a guest's policy, and where it comes from.

    of: the drive; "" for one that isn't plugged in yet; None if it is of the whole guest. name: as
    in a policy (burst-seconds). rule: None if it is from the domain's own policy. because: why the
    rule fits; "" if it fits every guest. kept: no rule gives it any more, so it stays as it was.
    """

    of: str | None
    name: str
    value: str
    rule: str | None
    because: str = ""
    kept: bool = False


class GuestReport(Struct, kw_only=True):
    """A guest as the rules see it.

    facts: by name; drives: those of each drive by target. fits: the rules that fit, in their order.
    values: its policy. errors: of what rules can't give it. promised: the promise in force to each
    drive, None for none; vm: to all together. own: its own policy, as it is written.
    """

    domain: str
    facts: dict[str, str]
    drives: dict[str, dict[str, str]]
    fits: list[str] = []
    leaves_alone: str | None = None
    values: list[ValueReport] = []
    errors: list[str] = []
    promised: dict[str, PromiseReport | None] = {}
    vm: PromiseReport | None = None
    tenant: str | None = None
    own: dict[str, object] | None = None


class RulesReport(Struct, kw_only=True):
    """The rules that are in force, and the guests that they can be asked of.

    unknown: the running guests of libvirt's whose facts can't be read.
    """

    rules: list[RuleReport]
    guests: list[GuestReport]
    unknown: list[str] = []


class ChangeReport(Struct, kw_only=True):
    """A promise that another configuration would change.

    target: None for all drives of the VM together. loses_limit: it has a limit now, or its VM has,
    and no source would give it one. Its last policy stays then, unless a rule leaves it alone.
    """

    domain: str
    target: str | None
    before: PromiseReport | None
    after: PromiseReport | None
    before_tenant: str | None = None
    after_tenant: str | None = None
    loses_limit: bool = False


class BudgetInFleet(NamedTuple):
    """A tenant or storage of the fleet, as this host knows it: its record, and more.

    charged_iops: what this host is charged; 0 if it has no part yet. others: other hosts' amounts,
    by name.
    """

    report: FleetBudgetReport
    charged_iops: int
    others: Mapping[str, int]


class FleetSnapshot(NamedTuple):
    """This host's part in the fleet.

    host: its name there. error: etcd's; None if it has none. trips, failures: etcd's answers, and
    how often one of its members failed. tenants, storages: those whose drives are here. rules: the
    digest of its rules.
    """

    host: str
    error: IokeelError | None
    trips: int
    failures: int
    tenants: Mapping[str, BudgetInFleet]
    storages: Mapping[str, BudgetInFleet]
    rules: str = ""

    @property
    def report(self) -> FleetReport:
        """Its record."""
        return FleetReport(
            host=self.host,
            error=ErrorReport.of(self.error) if self.error else None,
            tenants=[tenant.report for tenant in self.tenants.values()],
            storages=[storage.report for storage in self.storages.values()],
        )
