/** The agent's answers. Each field is described in agent/src/iokeel/report/records.py. */

import * as v from "valibot";

const count = v.number();
const maybe = v.nullable(v.number());

export const Fault = v.object({ where: v.string(), what: v.string(), mend: v.string() });
export type Fault = v.InferOutput<typeof Fault>;

export const Refusal = v.object({ error: Fault });

const Throttle = v.object({
    waiting: count,
    recent_sizes: v.record(v.string(), count),
});

export const Drive = v.object({
    domain: v.string(),
    target: v.string(),
    tenant: v.nullable(v.string()),
    storage: v.nullable(v.string()),
    mode: v.nullable(v.string()),
    normalized_iops: maybe,
    limit_iops: maybe,
    allowed_iops: maybe,
    reservation_iops: count,
    raw_read_iops: maybe,
    raw_write_iops: maybe,
    read_bps: maybe,
    write_bps: maybe,
    mean_read_bytes: maybe,
    mean_write_bytes: maybe,
    read_latency_s: maybe,
    write_latency_s: maybe,
    read_device_latency_s: maybe,
    write_device_latency_s: maybe,
    read: v.nullable(Throttle),
    write: v.nullable(Throttle),
    credit_s: count,
    burst_open: v.boolean(),
    bursts: v.boolean(),
    binding: v.array(v.string()),
    retunes: count,
    rule: v.optional(v.nullable(v.string()), null),
    error: v.nullable(Fault),
    verdict: v.string(),
});
export type Drive = v.InferOutput<typeof Drive>;

export const Vm = v.object({
    domain: v.string(),
    tenant: v.nullable(v.string()),
    limit_iops: maybe,
    allowed_iops: maybe,
    reservation_iops: count,
    from_libvirt: v.boolean(),
    policy_error: v.nullable(Fault),
    drives: v.array(Drive),
});
export type Vm = v.InferOutput<typeof Vm>;

export const Storage = v.object({
    storage: v.string(),
    drives: count,
    capacity_iops: maybe,
    usable_iops: maybe,
    normalized_iops: count,
    wanted_iops: maybe,
    reserved_iops: count,
    reservations_kept: count,
    oversold: v.boolean(),
    latency_s: maybe,
    latency_target_s: maybe,
    queue: maybe,
    suffering: v.array(v.string()),
    exhausted: v.boolean(),
    by_weight: v.boolean(),
});
export type Storage = v.InferOutput<typeof Storage>;

const FleetBudget = v.object({
    name: v.string(),
    set_iops: count,
    limit_iops: count,
    allowed_iops: maybe,
    floor_iops: count,
    held_iops: maybe,
    stale_s: maybe,
    charges: v.record(v.string(), count),
    silent: v.array(v.string()),
    coordinator: v.nullable(v.string()),
    error: v.nullable(Fault),
});
export type FleetBudget = v.InferOutput<typeof FleetBudget>;

export const Fleet = v.object({
    host: v.string(),
    error: v.nullable(Fault),
    tenants: v.array(FleetBudget),
    storages: v.array(FleetBudget),
});
export type Fleet = v.InferOutput<typeof Fleet>;

/** The host at one moment. fleet: null if the agent is in none. */
export const Host = v.object({
    vms: v.array(Vm),
    storages: v.array(Storage),
    fleet: v.nullable(Fleet),
});
export type Host = v.InferOutput<typeof Host>;

export const History = v.object({
    ages_s: v.array(v.number()),
    drives: v.array(
        v.object({
            domain: v.string(),
            target: v.string(),
            series: v.record(v.string(), v.array(maybe)),
            orders: v.array(v.object({ age_s: count, reason: v.string() })),
        }),
    ),
});
export type History = v.InferOutput<typeof History>;

export const Why = v.record(v.string(), v.array(v.string()));

export const Promised = v.object({
    reservation_iops: count,
    limit_iops: maybe,
    burst_iops: maybe,
    burst_seconds: maybe,
    weight: maybe,
    latency_target_ms: maybe,
    separate_budgets: v.boolean(),
    limit_read_iops: maybe,
    limit_write_iops: maybe,
    max_bytes: maybe,
    start_credit_seconds: count,
});
export type Promised = v.InferOutput<typeof Promised>;

const Curve = v.array(v.tuple([v.number(), v.number()]));
export type Curve = v.InferOutput<typeof Curve>;

const Curves = v.object({ read_curve: Curve, write_curve: Curve });
export type Curves = v.InferOutput<typeof Curves>;

export const Settings = v.object({
    ...Curves.entries,
    version: v.string(),
    libvirt_uri: v.nullable(v.string()),
    storages: v.record(v.string(), Curves),
    classes: v.record(v.string(), Promised),
    tenants: v.record(v.string(), Promised),
});
export type Settings = v.InferOutput<typeof Settings>;

export const Checked = v.object({
    error: v.nullable(Fault),
    warning: v.nullable(Fault),
    tenant: v.nullable(v.string()),
    drives: v.record(v.string(), v.nullable(Promised)),
    vm: v.nullable(Promised),
    large_waits_s: v.optional(v.record(v.string(), v.number()), {}),
    long_waits: v.optional(v.array(v.string()), []),
});
export type Checked = v.InferOutput<typeof Checked>;

export const Section = v.object({
    title: v.string(),
    finding: v.string(),
    headings: v.array(v.string()),
    rows: v.array(v.array(v.string())),
});
export type Section = v.InferOutput<typeof Section>;

export const Plot = v.object({
    storage: v.string(),
    p95_iops: v.array(maybe),
    missed_s: v.array(v.number()),
    usable_iops: maybe,
});
export type Plot = v.InferOutput<typeof Plot>;

/** The report of weeks. sections: none if nothing is recorded. */
export const Report = v.object({
    span: v.string(),
    since_s: v.number(),
    until_s: v.number(),
    notes: v.array(v.string()),
    sections: v.array(Section),
    plots: v.array(Plot),
});
export type Report = v.InferOutput<typeof Report>;
